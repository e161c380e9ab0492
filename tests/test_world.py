"""The test world holds: its targets answer, its drafters draft, its files are whole."""

import json
import random

import pytest
import torch
from world import language, targets
from world.drafters import DRAFTERS
from world.figures import decoded, neighbours, open_drafter, replayed
from world.make import WORLD as RELATIVE

from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.states.capture import Plan, capture
from draftprobe.states.prompts import read_prompts
from draftprobe.states.record import open_states
from draftprobe.states.target import load_target, text_config

WORLD = targets.FOLDER
TARGETS = [name for name in targets.RECIPES if (WORLD / name).exists()]
SHIPPED = {name: made for name, made in DRAFTERS.items() if (WORLD / name).exists()}
GOOD = [name for name, made in SHIPPED.items() if made.good]
TEXTS = 24
SEED = 40_000_003  # of texts that no training and no table used


@pytest.fixture(scope="module")
def loaded():
    return {name: load_target(WORLD / name) for name in TARGETS}


@pytest.fixture(scope="module")
def states(loaded, tmp_path_factory):
    """Every boundary of each target on a few fresh prompts, with its own greedy answers."""
    folder, made = tmp_path_factory.mktemp("world"), {}
    prompts = language.write_prompts(folder / "prompts.jsonl", TEXTS, SEED)
    for name, target in loaded.items():
        items, template = read_prompts(prompts, target.tokenizer, 256)
        plan = Plan(target.structure.boundaries(), "float32", TEXTS, 64, template=template)
        capture(target, items, plan, folder / f"{name}.safetensors")
        made[name] = open_states(folder / f"{name}.safetensors")
    return made


def test_the_world_is_there():
    assert "llama" in TARGETS
    assert {"l2_5_7", "l1_4_8_fcnorm"} <= set(SHIPPED)


def test_texts_follow_their_own_rules():
    """The answer is what the prompt's record and tasks say, worked out here by another way."""
    for text in language.texts(200, seed=7):
        rows = " ".join(text.prompt).split(" ask ")[0].split(" . ")
        people = {row.split()[0]: row.split() for row in rows}
        tasks = " ".join(text.prompt).split(" ask ")[1].removesuffix(" ?")
        answers = " ".join(text.answer).split(" . ")
        for ordinal, answer in zip(language.ORDINALS, answers[:-1], strict=False):
            task = tasks.split(f"{ordinal} ")[1].split()
            ends = [i for i, word in enumerate(task) if word in language.ORDINALS]
            kind, *words = task[: ends[0]] if ends else task
            said = answer.split()[1:]
            if kind == "say":
                assert said[2:] == words
            elif kind == "back":
                assert said[2:] == words[::-1]
            elif kind == "sort":
                assert list(map(int, said[2:])) == sorted(map(int, words))
            elif kind == "from":
                assert list(map(int, said[2:])) == list(range(int(words[0]) + 1, int(words[2]) + 1))
            elif kind == "where":
                assert said[-1] == people[words[0]][6]
            elif kind == "many":
                assert said[3:] == people[words[0]][2:5]
            elif kind == "total":
                assert int(said[4]) == sum(int(people[name][2]) for name in words)
            else:
                assert kind == "whose"
                assert people[said[-1]][4] == words[0] == said[2]
    assert language.text(random.Random(7)) == language.texts(1, seed=7)[0]


def test_tokens_are_words(loaded):
    for target in loaded.values():
        assert len(target.tokenizer) == target.text_config.vocab_size == len(language.WORDS)
        text = language.texts(1, seed=3)[0]
        chat = [{"role": "user", "content": " ".join(text.prompt)}]
        rendered = target.tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )
        prompt, answer = text.ids()
        assert target.tokenizer(rendered)["input_ids"] == prompt
        chat.append({"role": "assistant", "content": " ".join(text.answer)})
        whole = target.tokenizer.apply_chat_template(chat, tokenize=False)
        assert target.tokenizer(whole)["input_ids"] == prompt + answer


@pytest.mark.parametrize("name", TARGETS)
def test_target_answers(name, loaded):
    found = targets.answers(loaded[name].model, 40, SEED)
    assert found["accuracy"] > targets.FLOORS[name], found


@pytest.mark.parametrize("name", TARGETS)
def test_answers_end_and_differ(name, states):
    texts = [s.tokens[s.mask].tolist() for s in states[name].sequences(())]
    assert sum(text[-1] == language.END for text in texts) >= 0.9 * TEXTS
    assert len({tuple(text) for text in texts}) == TEXTS


@pytest.mark.parametrize("name", TARGETS)
def test_no_boundary_is_a_copy(name, states):
    for _, moved, cosine in neighbours(states[name], TEXTS):
        assert moved > 0.5
        assert cosine < 0.9


@pytest.mark.parametrize("name", SHIPPED)
def test_drafter_folder_is_whole(name):
    made, folder = DRAFTERS[name], WORLD / name
    checkpoint = open_checkpoint(folder)
    names = sorted(checkpoint.tensors)
    assert checkpoint.info("fc.weight").shape == (128, 128 * len(made.taps))
    size = made.draft_vocabulary or len(language.WORDS)
    assert checkpoint.info("lm_head.weight").shape == (size, 128)
    if made.draft_vocabulary:
        offsets, kept = checkpoint.read("d2t"), checkpoint.read("t2d").bool()
        assert torch.equal(torch.arange(size) + offsets, kept.nonzero().flatten())
    assert ("input_norm.weight" in names) == ("norm_before_fc" in made.flags)
    config = json.loads((folder / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == list(made.taps)
    assert text_config(WORLD / made.target)["hidden_size"] == 128
    assert "/" not in (folder / "config.json").read_text().replace(str(RELATIVE / made.target), "")


def test_all_of_it_is_small():
    assert sum(path.stat().st_size for path in WORLD.rglob("*") if path.is_file()) < 16e6


@pytest.mark.parametrize("name", GOOD)
def test_drafter_drafts(name, states):
    made = DRAFTERS[name]
    drafter = open_drafter(WORLD / name, made.taps, WORLD / made.target)
    found = replayed(drafter, states[made.target])
    assert found["steps"][0]["top1"] >= 0.7
    assert found["expected_acceptance"] >= 2.5


@pytest.mark.parametrize("name", GOOD)
def test_real_decode(name, tmp_path):
    made = DRAFTERS[name]
    prompts = language.write_prompts(tmp_path / "prompts.jsonl", 6, SEED + 1)
    found = decoded(WORLD / made.target, WORLD / name, made.taps, prompts)
    assert found["same_text"] == found["n"] == 6
    assert found["speculative"]["acceptance_length"] >= 2.5
