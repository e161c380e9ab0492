"""Decode: speculative text is the plain text, whatever is drafted, and the books are right."""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from draftprobe import cli
from draftprobe.drafter.model import Drafter, Shape, unroll
from draftprobe.drafter.vocabulary import draft_labels
from draftprobe.drafter.wiring import Rope, eagle3
from draftprobe.errors import InputError
from draftprobe.measure.acceptance import walk
from draftprobe.measure.decode import Chain, Decoded, Mode, Reader, compare, decode, parting
from draftprobe.measure.replay import observe
from draftprobe.states.capture import Item, Plan, capture
from draftprobe.states.record import open_states
from draftprobe.states.target import Recorder, Target, find_structure

VOCABULARY, HIDDEN, NEW = 64, 32, 40
TAPS = (0, 2, 3)
SAID: dict[tuple, tuple[int, ...]] = {}


def target_of(model) -> Target:
    model.generation_config = GenerationConfig()
    return Target(model.eval(), None, find_structure(model), type(model).__name__)


@pytest.fixture(scope="module")
def target() -> Target:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        initializer_range=0.3,  # wide, so that greedy text is not one token for ever
    )
    return target_of(LlamaForCausalLM(config))


def random_prompts(count: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 12, (count,), generator=generator).tolist()
    return [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def generated(target: Target, prompt: list[int], new: int = NEW, **options) -> tuple[int, ...]:
    """What transformers' own generate says; asked once for each prompt."""
    key = (target.name, *prompt, new, str(options))
    if key not in SAID:
        SAID[key] = ask(target, prompt, new, **options)
    return SAID[key]


def ask(target: Target, prompt: list[int], new: int, **options) -> tuple[int, ...]:
    config = GenerationConfig(max_new_tokens=new, do_sample=False, pad_token_id=0, **options)
    with torch.inference_mode():
        out = target.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            generation_config=config,
        )
    return tuple(out[0, len(prompt) :].tolist())


def untrained(**wires) -> Drafter:
    """A drafter that can say 48 of the 64 tokens."""
    torch.manual_seed(1)
    shape = Shape(HIDDEN, HIDDEN, len(TAPS), 4, 2, 8, 64, 48, VOCABULARY, 1e-6)
    wiring = replace(eagle3(TAPS, Rope(10000.0)), **wires)
    drafter = Drafter(shape, wiring, torch.zeros(VOCABULARY, HIDDEN))
    drafter.d2t[16:] = 16  # ids 0..15 and 32..63
    return drafter.eval()


def known_prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(VOCABULARY, (16, 6), generator=generator).tolist()


@pytest.fixture(scope="module")
def drafter(target: Target) -> Drafter:
    """Trained for some seconds on the target's answers to ``known_prompts``, half by heart."""
    drafter = untrained()
    drafter.embedding = target.model.get_input_embeddings().weight.detach()
    prompts = torch.tensor(known_prompts())
    config = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    with torch.no_grad(), Recorder(target.structure, TAPS) as recorder:
        tokens = target.model.generate(
            prompts, attention_mask=torch.ones_like(prompts), generation_config=config
        )
        states = recorder.take()
    taps = torch.cat([states[tap] for tap in TAPS], dim=-1)
    labels = draft_labels(drafter.target_ids(), VOCABULARY)[tokens]
    optimizer = torch.optim.AdamW(drafter.parameters(), 1e-2)
    for _ in range(150):
        loss = torch.zeros(())
        for step, o in enumerate(unroll(drafter, taps, tokens, 3), start=1):
            wanted = labels[:, step + 1 :]
            scores = drafter.logits(o[:, : wanted.shape[1]]).transpose(1, 2)
            loss = loss + F.cross_entropy(scores, wanted, ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return drafter.eval()


class Script:
    """A proposer that knows the text in advance and errs where it is told to."""

    taps = (1,)

    def __init__(self, prompt: list[int], text: tuple[int, ...], steps: int, wrong: set[int]):
        self.steps = steps
        self._text = torch.tensor([*prompt, *text])
        self._wrong = [len(prompt) + index for index in wrong]
        self.known = 0
        self.states: list[torch.Tensor] = []

    def propose(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        assert len(states) == len(tokens)
        assert tokens.tolist() == self._text[self.known + 1 :][: len(tokens)].tolist()
        self.known += len(tokens)
        self.states.append(states)
        padded = F.pad(self._text, (0, self.steps + 1))
        for index in self._wrong:
            padded[index] += 1
        return padded[self.known + 1 :][: self.steps] % VOCABULARY


def test_plain_is_what_generate_says(target):
    for prompt in random_prompts(16, seed=3):
        plain = decode(target, prompt, NEW)
        assert plain.tokens == generated(target, prompt)
        assert plain.runs == (0,) * (NEW - 1)
        assert (plain.emitted, plain.accepted, plain.drafted) == (NEW - 1, 0, 0)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_speculative_text_is_the_plain_text(target, drafter, steps):
    prompts = known_prompts()[:12] + random_prompts(4, seed=4)
    compared = compare(target, prompts, {"drafter": drafter}, steps, NEW)
    for prompt, text in zip(prompts, compared.drafted["drafter"].texts, strict=True):
        assert text.tokens == generated(target, prompt)
    assert compared.partings("drafter") == []
    assert compared.noise("drafter") < 1e-4
    figures = compared.drafted["drafter"].figures()
    assert 1.2 < figures["acceptance_length"] < 1 + steps  # neither idle nor an oracle
    assert 0.2 < figures["rates"][0] < 0.95
    assert all(a >= b for a, b in pairwise(figures["rates"]))


def test_a_random_drafter_costs_passes_not_text(target):
    drafter = untrained()
    for prompt in random_prompts(16, seed=5):
        text = decode(target, prompt, NEW, Chain(drafter, 4))
        assert text.tokens == generated(target, prompt)
        assert text.rounds > NEW / 2


def test_books_by_hand(target):
    """Ten tokens x_0..x_9, chains of 3, wrong drafts for x_3 and x_8.

    The prefill says x_0. Pass 1 drafts x_1 x_2 X: 2 right, and the bonus x_3. Pass 2 drafts
    x_4 x_5 x_6: 3 right, bonus x_7. Pass 3 drafts X: 0 right, bonus x_8. Pass 4 drafts x_9 and
    two that lie behind the end: 1 right, its bonus is cut.
    """
    prompt = random_prompts(1, seed=6)[0]
    truth = generated(target, prompt, 10)
    script = Script(prompt, truth, 3, wrong={3, 8})
    text = decode(target, prompt, 10, script)
    assert text.tokens == truth
    assert text.runs == (2, 3, 0, 1)
    assert (text.rounds, text.emitted, text.accepted, text.drafted) == (4, 9, 6, 12)
    mode = Mode(((text,),))
    assert mode.length.value == 9 / 4
    assert [rate.value for rate in mode.rates] == [3 / 4, 2 / 4, 1 / 4]


def test_states_reach_the_proposer_once_and_in_order(target):
    prompt = random_prompts(1, seed=7)[0]
    truth = generated(target, prompt, 20)
    script = Script(prompt, truth, 4, wrong={2, 3, 9, 11, 12})
    decode(target, prompt, 20, script)
    states = torch.cat(script.states)
    assert len(states) == script.known
    with torch.inference_mode():
        whole = target.model(
            torch.tensor([[*prompt, *truth]]), output_hidden_states=True
        ).hidden_states[1][0]
    torch.testing.assert_close(states, whole[: len(states)], rtol=1e-4, atol=1e-4)


def test_end_token_ends_the_text_where_generate_ends_it(target, drafter):
    ends = []
    for prompt in known_prompts():
        stop = generated(target, prompt)[17]
        target.model.generation_config.eos_token_id = [stop, VOCABULARY - 1]
        try:
            truth = generated(target, prompt, eos_token_id=[stop, VOCABULARY - 1])
            plain = decode(target, prompt, NEW)
            text = decode(target, prompt, NEW, Chain(drafter, 5))
            script = Script(prompt, truth, 5, wrong=set())
            knowing = decode(target, prompt, NEW, script)
        finally:
            target.model.generation_config.eos_token_id = None
        assert plain.tokens == text.tokens == knowing.tokens == truth
        assert stop not in truth[:-1]
        assert text.emitted in (text.accepted + text.rounds, text.accepted + text.rounds - 1)
        assert knowing.rounds == -(-(len(truth) - 1) // 6)
        ends.append(len(truth))
    assert len(set(ends)) > 1


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_walk_on_recorded_text_takes_the_same_rounds(target, drafter, tmp_path, steps, ends):
    """Replay never decodes, decode never replays; a prompt may differ at a tie of floats only."""
    prompts = known_prompts()
    stops = [generated(target, prompt)[index] for index, prompt in enumerate(prompts[5:9], 9)]
    target.model.generation_config.eos_token_id = stops if ends else None
    try:
        items = [Item(tuple(prompt), (False,) * len(prompt)) for prompt in prompts]
        plan = Plan(TAPS, dtype="float32", batch=1, greedy=NEW)
        capture(target, items, plan, tmp_path / "states")
        compared = compare(target, prompts, {"drafter": drafter}, steps, NEW)
    finally:
        target.model.generation_config.eos_token_id = None
    states = open_states(tmp_path / "states")
    walked = walk(observe(drafter, states, steps))
    texts = dict(enumerate(compared.drafted["drafter"].texts))
    assert any(text.emitted < NEW - 1 for text in texts.values()) == ends
    done = zip(walked.sequences, walked.rounds, walked.emitted, walked.accepted, strict=True)
    differing = {
        index: min(compared.plain.texts[index].gaps)
        for index, *counts in done
        if counts != [texts[index].rounds, texts[index].emitted, texts[index].accepted]
    }
    assert all(gap <= compared.noise("drafter") for gap in differing.values()), differing
    assert sum(walked.rounds) == sum(text.rounds for text in texts.values()) or differing
    assert len(walked.sequences) == sum(text.rounds > 0 for text in texts.values())


@pytest.mark.parametrize("new", [1, 2, 3, 7])
def test_max_new_is_never_passed(target, drafter, new):
    for prompt in random_prompts(4, seed=9):
        text = decode(target, prompt, new, Chain(drafter, 5))
        assert text.tokens == generated(target, prompt, new)
        assert len(text.gaps) == new
    if new == 1:
        assert text.rounds == 0
        assert Mode(((text,),)).figures()["acceptance_length"] is None


def test_a_prompt_of_one_token(target, drafter):
    assert decode(target, [5], NEW, Chain(drafter, 3)).tokens == generated(target, [5])


def test_reader_forgets(target):
    """After a rollback the cache is as if the tokens had never been there."""
    tokens = torch.tensor(random_prompts(1, seed=10)[0] + [1, 2, 3])
    with torch.inference_mode():
        whole = target.model(tokens[None], output_hidden_states=True)
        with Reader(target, (0, 4)) as reader:
            reader.read(tokens[:2])
            assert reader.length == 2
            reader.read(torch.tensor([60, 61, 62, 63]))
            reader.forget(4)
            assert reader.length == 2
            logits, states = reader.read(tokens[2:])
    assert reader.length == len(tokens)
    torch.testing.assert_close(logits, whole.logits[0, 2:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(states[:, :HIDDEN], whole.hidden_states[0][0, 2:])


def test_chain_forgets_its_own_steps(target, drafter):
    """A drafter that drafted in between drafts as one that meets all true states at once."""
    tokens = torch.tensor(random_prompts(1, seed=11)[0] + [1, 2, 3, 4])
    states = torch.randn(len(tokens) - 1, HIDDEN * len(TAPS))
    with torch.inference_mode():
        stepwise, at_once = Chain(drafter, 4), Chain(drafter, 4)
        stepwise.propose(states[:2], tokens[1:3])
        assert stepwise.length == 2
        stepwise.propose(states[2:3], tokens[3:4])
        late = stepwise.propose(states[3:], tokens[4:])
        early = at_once.propose(states, tokens[1:])
    assert stepwise.length == at_once.length == len(tokens) - 1
    assert late.tolist() == early.tolist()


def test_sliding_windows_roll_back(target):
    """What a rejected draft pushed out of a sliding window comes back."""
    torch.manual_seed(3)
    config = Qwen3Config(
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=VOCABULARY,
        initializer_range=0.3,
        use_sliding_window=True,
        sliding_window=6,
        max_window_layers=2,
    )
    sliding = target_of(Qwen3ForCausalLM(config))
    assert "sliding_attention" in config.layer_types
    for prompt in random_prompts(8, seed=12):
        truth = generated(sliding, prompt)
        script = Script(prompt, truth, 4, wrong={4, 5, 9, 15, 16, 17, 22, 30})
        assert decode(sliding, prompt, NEW, script).tokens == truth
        assert decode(sliding, prompt, NEW).tokens == truth


def test_partings_tell_where_and_how_close(target):
    plain = Decoded((1, 2, 3), (0.5, 0.4, 0.3), (0, 0), 0, 0.1, 0.1)
    other = Decoded((1, 2, 4), (0.5, 0.41, 0.2), (1,), 2, 0.1, 0.1)
    shorter = Decoded((1, 2), (0.5, 0.4), (1,), 2, 0.1, 0.1)
    assert parting(plain, plain) is None
    assert parting(plain, other) == 2
    assert parting(plain, shorter) == 2


def test_what_cannot_be_decoded(target, drafter):
    with pytest.raises(InputError, match="token_shift: expected 1, found 2"):
        Chain(untrained(token_shift=2), 3)
    with pytest.raises(InputError, match="steps"):
        Chain(drafter, 0)
    with pytest.raises(InputError, match="at least one prompt"):
        compare(target, [], {"drafter": drafter}, 3, NEW)
    with pytest.raises(InputError, match="at least one prompt"):
        compare(target, [[]], {"drafter": drafter}, 3, NEW)
    with pytest.raises(InputError, match=r"h\[9\] does not exist"):
        compare(target, [[1]], {"drafter": untrained(taps=(0, 2, 9))}, 3, NEW)
    shape = replace(drafter.shape, vocabulary=VOCABULARY + 1)
    other = Drafter(shape, drafter.wiring, torch.zeros(VOCABULARY + 1, HIDDEN))
    with pytest.raises(
        InputError, match="expects a target of 65 tokens and hidden size 32, found 64"
    ):
        compare(target, [[1]], {"drafter": other}, 3, NEW)


def test_positions_and_repeats(target, drafter):
    """Positions are relative: a shifted drafter drafts the same. Repeats only add times."""
    prompts = random_prompts(4, seed=13)
    shifted = Drafter(
        drafter.shape, replace(drafter.wiring, position_start=7), drafter.embedding
    ).eval()
    shifted.load_state_dict(drafter.state_dict())
    compared = compare(target, prompts, {"a": drafter, "b": shifted}, 4, NEW, repeats=2)
    a, b = compared.drafted["a"], compared.drafted["b"]
    assert [text.runs for text in a.repeats[0]] == [text.runs for text in a.repeats[1]]
    assert [text.runs for text in a.texts] == [text.runs for text in b.texts]
    assert len(a.speeds) == len(compared.plain.speeds) == 2


# The command


@pytest.fixture(scope="module")
def folders(target, drafter, tmp_path_factory) -> Path:
    """A target folder with a tokenizer, a drafter folder, and prompts."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    root = tmp_path_factory.mktemp("decode")
    target.model.save_pretrained(root / "target")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(root / "target")
    (root / "drafter").mkdir()
    save_file(drafter.state_dict(), root / "drafter" / "model.safetensors")
    config = {"hidden_size": HIDDEN, "num_attention_heads": 4, "vocab_size": VOCABULARY,
              "rope_theta": 10000.0, "rms_norm_eps": 1e-6}  # fmt: skip
    (root / "drafter" / "config.json").write_text(json.dumps(config))
    texts = [" ".join(f"w{token}" for token in prompt) for prompt in known_prompts()]
    (root / "prompts.txt").write_text("\n".join(texts))
    (root / "empty.txt").write_text("\n")
    return root


def run(monkeypatch, capsys, folders: Path, *options: str) -> tuple[int, str, str]:
    arguments = [folders / "target", folders / "drafter", "--max-new", "20", *options]
    monkeypatch.setattr(sys, "argv", ["draftprobe", "decode", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_command(monkeypatch, capsys, folders, target, drafter):
    options = ("--prompts", str(folders / "prompts.txt"), "--taps", "0,2,3", "--steps", "3")
    code, out, _ = run(monkeypatch, capsys, folders, *options, "--json")
    found = json.loads(out)
    wanted = compare(target, known_prompts(), {"drafter": drafter}, 3, 20)
    told = {key: value for key, value in found["speculative"].items() if key != "tokens_per_s"}
    figures = wanted.drafted["drafter"].figures()
    assert told == {key: figures[key] for key in told}
    assert (code, found["same_text"], found["n"], found["partings"]) == (0, 16, 16, [])
    assert found["plain"]["acceptance_length"] == 1
    code, out, _ = run(monkeypatch, capsys, folders, *options)
    assert code == 0
    assert "taps h[0], h[2], h[3]; 3 drafts per pass" in out
    assert "same text          16/16" in out
    assert f"acceptance length  {figures['acceptance_length']:.3f}" in out
    assert f"accepted           {figures['accepted']} of {figures['drafted']} drafts" in out
    assert "one run, no benchmark" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompts", "empty.txt", "--taps", "0,2,3"], "empty file"),
        (["--prompts", "none.txt", "--taps", "0,2,3"], "cannot be read"),
        (["--prompts", "prompts.txt"], "does not carry its wiring; give --taps"),
        (["--prompts", "prompts.txt", "--taps", "0,2,9"], "h[9] does not exist"),
        (["--prompts", "prompts.txt", "--taps", "0,2"], "hidden size"),
        (["--prompts", "prompts.txt", "--taps", "0,2,x"], "expected boundaries"),
        (["--prompts", "prompts.txt", "--taps", "0,2,3", "--dtype", "int4"], "--dtype"),
        (["--prompts", "prompts.txt", "--taps", "0,2,3", "--limit", "3"], "more than the limit"),
    ],
)
def test_command_with_bad_input(monkeypatch, capsys, folders, options, message):
    options[1] = str(folders / options[1])
    code, out, err = run(monkeypatch, capsys, folders, *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_command_with_another_target(monkeypatch, capsys, folders, tmp_path):
    config = json.loads((folders / "drafter" / "config.json").read_text())
    other = tmp_path / "drafter"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(config | {"vocab_size": VOCABULARY + 8}))
    (other / "model.safetensors").symlink_to(folders / "drafter" / "model.safetensors")
    arguments = [folders / "target", other, "--prompts", folders / "prompts.txt", "--taps", "0,2,3"]
    monkeypatch.setattr(sys, "argv", ["draftprobe", "decode", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert "is it this drafter's target?" in capsys.readouterr().err
