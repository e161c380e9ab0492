"""Capture: what is recorded is what transformers computes, for every family and on every way."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_targets import BUILDERS, HIDDEN, LAYERS, VOCABULARY, build
from transformers import GenerationConfig, PreTrainedTokenizerFast

from draftprobe.errors import InputError
from draftprobe.measure.decode import decode
from draftprobe.states.capture import Item, Plan, capture
from draftprobe.states.prompts import read_prompts, read_texts, read_tokens
from draftprobe.states.record import open_states
from draftprobe.states.target import Recorder, Target, find_structure, load_target

ALL = (*range(LAYERS + 1), "N")
NEW = 12


@pytest.fixture(scope="module", params=[name for name in BUILDERS if name != "qwen3_next"])
def target(request, tmp_path_factory) -> Target:
    """Saved to a folder and loaded from it, as a user's target is."""
    folder = tmp_path_factory.mktemp(request.param)
    model = build(request.param)
    model.save_pretrained(folder)
    loaded = load_target(folder)
    loaded.model.generation_config = GenerationConfig()  # some configs bring end tokens
    with torch.inference_mode():  # the folder holds the very model
        tokens = torch.tensor([[5, 6, 7]])
        assert torch.equal(loaded.model(tokens).logits, model(tokens).logits)
    return loaded


@pytest.fixture(scope="module")
def llama() -> Target:
    return in_memory("llama")


def in_memory(family: str) -> Target:
    model = build(family)
    return Target(model, None, find_structure(model), family)


def items_of(lengths=(9, 3, 14, 2, 7), seed=1) -> list[Item]:
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    return [Item(tuple(text), (True,) * len(text)) for text in texts]


def plan_of(**changes) -> Plan:
    return replace(Plan(ALL, dtype="float32", batch=2, greedy=0), **changes)


def truth(target: Target, tokens: torch.Tensor) -> dict:
    """transformers' own hidden states of one text, [n, H] by boundary; h[L] is not among them."""
    with torch.inference_mode():
        states = target.model(
            tokens[None], output_hidden_states=True, use_cache=False
        ).hidden_states
    assert len(states) == LAYERS + 1
    return dict(enumerate(state[0] for state in states[:-1])) | {"N": states[-1][0]}


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest relative error of a token's state."""
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())


def same_states(target: Target, path: Path) -> None:
    for sequence in open_states(path).sequences(ALL):
        wanted = truth(target, sequence.tokens)
        for tap, state in wanted.items():
            assert error(sequence.h[tap], state[:-1]) < 1e-5, tap
        with torch.inference_mode():
            normed = target.structure.norm(sequence.h[LAYERS])
        assert error(normed, wanted["N"][:-1]) < 1e-5
        assert error(sequence.h[LAYERS], sequence.h["N"]) > 0.01  # before the norm is not after it


def generated(target: Target, prompt: tuple[int, ...], **options) -> tuple[int, ...]:
    """One prompt alone through transformers' own generate, prompt included."""
    config = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0, **options)
    tokens = torch.tensor([prompt])
    with torch.inference_mode():
        out = target.model.generate(
            tokens, attention_mask=torch.ones_like(tokens), generation_config=config
        )
    return tuple(out[0].tolist())


def test_recorded_text(target, tmp_path):
    items = items_of()
    capture(target, items, plan_of(), tmp_path / "states")
    same_states(target, tmp_path / "states")
    states = open_states(tmp_path / "states")
    assert [tuple(s.tokens.tolist()) for s in states.sequences(())] == [i.tokens for i in items]
    assert states.provenance.source == "dataset"
    assert states.provenance.layers == LAYERS
    assert states.provenance.hidden_size == HIDDEN


def test_greedy_continuation_in_a_left_padded_batch(target, tmp_path):
    items = [replace(item, mask=(False,) * len(item.tokens)) for item in items_of()]
    capture(target, items, plan_of(greedy=NEW, batch=3), tmp_path / "states")
    same_states(target, tmp_path / "states")
    states = open_states(tmp_path / "states")
    assert states.provenance.source == "greedy"
    for item, sequence in zip(items, states.sequences(()), strict=True):
        assert tuple(sequence.tokens.tolist()) == generated(target, item.tokens)
        assert sequence.mask.tolist() == [False] * len(item.tokens) + [True] * NEW


def test_decode_reads_the_same_target(target):
    """Any family decodes, and says what generate says, with drafts rejected on the way."""

    class Stubborn:
        taps, steps = (0, LAYERS), 3

        def propose(self, states, tokens):
            assert states.shape == (len(tokens), 2 * HIDDEN)
            return torch.tensor([answer[len(prompt) + 1], 1, 2])

    for item in items_of(lengths=(9, 3, 14)):
        prompt = item.tokens
        answer = generated(target, prompt)
        assert decode(target, prompt, NEW).tokens == answer[len(prompt) :]
        text = decode(target, prompt, NEW, Stubborn())
        assert text.tokens == answer[len(prompt) :]
        assert text.runs[0] >= 1


def test_a_running_state_cannot_forget(tmp_path):
    """Captured and decoded plainly as any other; rejected drafts are refused, not mixed in."""
    target = in_memory("qwen3_next")
    capture(target, items_of(), plan_of(batch=1), tmp_path / "states")
    same_states(target, tmp_path / "states")
    prompt = items_of()[0].tokens
    assert decode(target, prompt, NEW).tokens == generated(target, prompt)[len(prompt) :]

    class Wrong:
        taps, steps = (0,), 1

        def propose(self, states, tokens):
            return (tokens[-1:] + 1) % VOCABULARY

    with pytest.raises(InputError, match="keeps a running state"):
        decode(target, prompt, NEW, Wrong())


def test_end_token_ends_a_sequence(llama, tmp_path):
    items = items_of(lengths=(6, 4, 8, 5))
    ends = [generated(llama, items[0].tokens)[6 + 4], generated(llama, items[1].tokens)[4]]
    llama.model.generation_config.eos_token_id = ends
    try:
        capture(llama, items, plan_of(greedy=NEW, batch=4), tmp_path / "states")
    finally:
        llama.model.generation_config.eos_token_id = None
    same_states(llama, tmp_path / "states")
    lengths = []
    for item, sequence in zip(items, open_states(tmp_path / "states").sequences(()), strict=True):
        alone = generated(llama, item.tokens, eos_token_id=ends)
        assert tuple(sequence.tokens.tolist()) == alone
        lengths.append(len(alone) - len(item.tokens))
    assert lengths[1] == 1
    assert max(lengths[:1]) <= 5


@pytest.mark.parametrize(
    "option",
    [{"repetition_penalty": 3.0}, {"no_repeat_ngram_size": 2}, {"do_sample": True, "top_k": 5}],
)
def test_greedy_is_greedy_whatever_the_model_prefers(llama, tmp_path, option):
    """Qwen2.5 ships a repetition penalty in its generation config."""
    item = items_of(lengths=(6,))[0]
    alone = generated(llama, item.tokens)
    own = llama.model.generation_config = GenerationConfig(**option)
    try:
        capture(llama, [item], plan_of(greedy=NEW), tmp_path / "states")
        assert llama.model.generation_config is own
    finally:
        llama.model.generation_config = GenerationConfig()
    assert tuple(open_states(tmp_path / "states").tokens.tolist()) == alone


def test_a_boundary_given_twice_is_recorded_once(llama):
    tokens = torch.tensor([[3, 4, 5]])
    with torch.inference_mode(), Recorder(llama.structure, (2, 2, "N", 2)) as recorder:
        llama.model(tokens)
        llama.model(tokens[:, :2])
        states = recorder.take()
    assert {tap: state.shape[1] for tap, state in states.items()} == {2: 5, "N": 5}


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("greedy", [0, NEW])
def test_an_interrupted_run_resumes(llama, tmp_path, greedy):
    plan = plan_of(greedy=greedy)

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        capture(llama, items_of(), plan, tmp_path / "a", stop)
    parts = sorted((tmp_path / "a.parts").glob("*.safetensors"))
    assert len(parts) == 2
    assert not (tmp_path / "a").exists()
    before = [part.stat().st_mtime_ns for part in parts]
    seen = []

    def look(done: int, total: int) -> None:
        seen.append([part.stat().st_mtime_ns for part in parts])

    capture(llama, items_of(), plan, tmp_path / "a", look)
    assert all(times == before for times in seen)  # what was done was not done again
    capture(llama, items_of(), plan, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("plan", "items"),
    [
        (plan_of(batch=3), items_of()),
        (plan_of(boundaries=(0, 2)), items_of()),
        (plan_of(dtype="float16"), items_of()),
        (plan_of(greedy=1), items_of()),
        (plan_of(), items_of(seed=2)),
    ],
)
def test_parts_of_another_job_are_refused(llama, tmp_path, plan, items):
    def stop(done: int, total: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        capture(llama, items_of(), plan_of(), tmp_path / "states", stop)
    with pytest.raises(InputError, match="parts of another capture"):
        capture(llama, items, plan, tmp_path / "states")


def test_nothing_is_overwritten(llama, tmp_path):
    out = tmp_path / "states"
    out.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        capture(llama, items_of(), plan_of(), out)
    assert out.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["states"]


def test_float16_overflow_is_refused(tmp_path):
    loud = in_memory("llama")
    with torch.no_grad():
        loud.model.get_input_embeddings().weight[:, 3] = 1e5
    out = tmp_path / "states"
    with pytest.raises(InputError, match=r"h\[0\]: states are NaN or overflow float16"):
        capture(loud, items_of(), plan_of(dtype="float16"), out)
    assert not out.exists()
    (tmp_path / "states.parts").joinpath("job.json").unlink()  # as the message's reader would
    capture(loud, items_of(), plan_of(dtype="bfloat16"), out)


@pytest.mark.parametrize(
    ("items", "plan", "message"),
    [
        ([], plan_of(), "at least one sequence"),
        ([Item((), ())], plan_of(), "found none"),
        ([Item((1, VOCABULARY), (True, True))], plan_of(), "found others"),
        ([Item((1, -1), (True, True))], plan_of(), "found others"),
        (items_of(), plan_of(boundaries=(0, LAYERS + 1)), r"h\[5\] does not exist"),
        (items_of(), plan_of(dtype="int8"), "expected one of float32"),
        ([Item((1,), (True,))], plan_of(), "shorter than 2 tokens"),
    ],
)
def test_bad_jobs(llama, tmp_path, items, plan, message):
    with pytest.raises(InputError, match=message):
        capture(llama, items, plan, tmp_path / "states")
    assert not (tmp_path / "states").exists()


def test_a_folder_to_write_to(llama, tmp_path):
    with pytest.raises(InputError, match="expected a folder to write to"):
        capture(llama, items_of(), plan_of(), tmp_path / "none" / "states")


def test_a_target_without_some_of_its_weights_is_refused(tmp_path):
    build("llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.2.mlp.down_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"model\.layers\.2\.mlp\.down_proj\.weight"):
        load_target(tmp_path)


def test_targets_that_are_none(tmp_path):
    with pytest.raises(InputError, match=r"config\.json, found none"):
        load_target(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no such model"}')
    with pytest.raises(InputError, match="cannot be loaded as a causal model"):
        load_target(tmp_path)


# Input files


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["?", "<u>", "<a>", "one", "two", "three", "four"])}
    raw = Tokenizer(models.WordLevel(words, unk_token="?"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="?")
    made.chat_template = (
        "{% for m in messages %}{{ ' <u> ' if m.role == 'user' else ' <a> ' }}{{ m.content }}"
        "{% endfor %}{% if add_generation_prompt %} <a> {% endif %}"
    )
    return made


def written(tmp_path: Path, text: str, name: str = "in.jsonl") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_texts(tokenizer, tmp_path):
    plain = written(tmp_path, "one two\n\n  \nthree four one two\n", "in.txt")
    assert [item.tokens for item in read_texts(plain, tokenizer, 3)] == [(3, 4), (5, 6, 3)]
    objects = written(tmp_path, '{"text": "one two", "kind": "k"}\n')
    assert read_texts(objects, tokenizer, 9) == [Item((3, 4), (True, True), "k")]


def test_prompts(tokenizer, tmp_path):
    plain = written(tmp_path, "one two\nthree\n", "in.txt")
    items, digest = read_prompts(plain, tokenizer, 9)
    assert [item.tokens for item in items] == [(1, 3, 4, 2), (1, 5, 2)]
    assert not any(flag for item in items for flag in item.mask)
    assert len(digest) == 64
    chat = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two three"}]
    lines = [{"prompt": "four", "kind": "k"}, {"messages": chat}, {"messages": chat[:1]}]
    items, _ = read_prompts(written(tmp_path, "\n".join(map(json.dumps, lines))), tokenizer, 9)
    assert items == [
        Item((1, 6, 2), (False,) * 3, "k"),
        Item((1, 3, 2, 4, 5), (False, False, False, True, True), ""),
        Item((1, 3, 2), (False,) * 3, ""),
    ]


def test_token_ids(tmp_path):
    path = written(
        tmp_path,
        '{"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1], "kind": "k"}\n{"input_ids": [4]}\n',
    )
    assert read_tokens(path, 2) == [Item((1, 2), (False, True), "k"), Item((4,), (True,), "")]


def test_a_line_separator_inside_a_string_ends_no_line(tokenizer, tmp_path):
    line = json.dumps({"text": "one\u2028two\x85three"}, ensure_ascii=False)
    assert len(read_texts(written(tmp_path, line + "\r\n" + line), tokenizer, 9)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found an empty file"),
        ("\n \n", "found an empty file"),
        ("one two", r"in\.jsonl:1: expected a JSON object"),
        ('{"text": "one"}\n[1]', r"in\.jsonl:2: expected a JSON object, found list"),
        ('{"txt": "one"}', "expected a string under 'text'"),
        ('{"text": 3}', "expected a string under 'text'"),
        ("[" * 100_000, "expected a JSON object"),
    ],
)
def test_malformed_texts(tokenizer, tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_texts(written(tmp_path, text), tokenizer, 9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"text": "one"}', "expected a string under 'prompt'"),
        ('{"messages": "one"}', "expected messages to be a list"),
        ('{"messages": []}', "expected messages to be a list"),
        ('{"messages": [{"role": "user"}]}', "expected a string under 'content'"),
        ('{"prompt": "one two three one two three"}', "8 tokens, more than the limit of 6"),
    ],
)
def test_malformed_prompts(tokenizer, tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_prompts(written(tmp_path, text), tokenizer, 6)


@pytest.mark.parametrize(
    "line",
    [
        {"input_ids": "1 2"},
        {"input_ids": [1, 2.5]},
        {"input_ids": [1, True]},
        {"input_ids": [1, 2], "loss_mask": [1]},
        {"input_ids": [1, 2], "loss_mask": [1, 2]},
        {"tokens": [1, 2]},
    ],
)
def test_malformed_token_ids(tmp_path, line):
    with pytest.raises(InputError, match=r"in\.jsonl:1: expected input_ids"):
        read_tokens(written(tmp_path, json.dumps(line)), 9)


def test_files_that_cannot_be_read(tokenizer, tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_texts(tmp_path / "none.txt", tokenizer, 9)
    (tmp_path / "in.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="expected UTF-8"):
        read_texts(tmp_path / "in.txt", tokenizer, 9)
    with pytest.raises(InputError, match="the target has none"):
        read_texts(written(tmp_path, "one"), None, 9)
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, unk_token="?")
    with pytest.raises(InputError, match="no chat template"):
        read_prompts(written(tmp_path, "one"), bare, 9)
