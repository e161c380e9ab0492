"""The table of wires, and what each new wire does to a replay, against a replay by brute force."""

import math
from dataclasses import replace

import pytest
import tiny
import torch

from draftprobe.diagnose.wires import BY_NAME, WIRES, changed, facts_of, neighbours, parse_wire
from draftprobe.drafter.model import unroll
from draftprobe.drafter.parts import NORMS, parts_of, rewire
from draftprobe.drafter.wiring import LATER, Rope, eagle3, from_json, to_json
from draftprobe.errors import InputError
from draftprobe.measure.replay import observe

STEPS = 3


def parts_with_all(made):
    """Parts as a target's folder would add them."""
    generator = torch.Generator().manual_seed(9)
    own = torch.randn(made.embedding.shape, generator=generator)
    norm = 1 + 0.5 * torch.randn(tiny.SHAPE.target_hidden, generator=generator)
    return replace(parts_of(made), own_embedding=own, target_head=own.flip(0), target_norm=norm)


def every_cut(made):
    parts = parts_with_all(made)
    facts = facts_of(made, parts, 4, Rope(1000.0, scaling=(("factor", 2.0), ("type", "linear"))))
    return parts, neighbours(made.wiring, facts, faults=True)


def test_a_neighbour_differs_in_its_wire_alone():
    made = tiny.drafter()
    _, cuts = every_cut(made)
    for wiring, wire in cuts.items():
        assert changed(wiring, made.wiring) == (wire,)
        assert wire.put(wiring, wire.value(made.wiring)) == made.wiring
    names = {wire.name for wire in cuts.values()}
    # One per tap is a norm that this drafter has no weights for; the last tap is normed already.
    without = {"taps", "pre_fc_norm", "tap_norm"} | {f"initial:{n}" for n in NOT_HERE}
    assert names == {wire.name for wire in WIRES} - without


NOT_HERE = ("input_norm.weight", "fc_norm.0.weight")


def test_names_and_findings_are_one_to_one_but_for_tensors():
    findings = [wire.finding for wire in WIRES if not wire.name.startswith("initial:")]
    assert len(set(findings)) == len(findings)
    assert len(BY_NAME) == len(WIRES)


def test_what_only_a_fault_makes_is_never_wanted():
    made = tiny.drafter()
    facts = facts_of(made, parts_with_all(made), 4, None)
    wanted = neighbours(made.wiring, facts)
    assert set(wanted) < set(neighbours(made.wiring, facts, faults=True))
    for wiring in wanted:
        assert wiring.feedback != "stale"
        assert (wiring.state_shift, wiring.token_advance) == (0, 1)
        assert (wiring.window, wiring.position_limit) == (None, None)
        assert not wiring.initial


def test_a_fault_that_is_served_can_be_undone():
    made = tiny.drafter()
    facts = facts_of(made, parts_with_all(made), 4, None, made.wiring)
    for cut, wire in every_cut(made)[1].items():
        assert made.wiring in neighbours(cut, facts), wire.name


@pytest.mark.parametrize("name", LATER)
def test_a_golden_file_of_before_has_the_papers_value(name):
    paper = eagle3((0, 2), Rope(100.0))
    data = to_json(paper)
    assert data.pop(name) == LATER[name]
    assert from_json(data, "here") == paper


def test_every_wiring_survives_json():
    for wiring in every_cut(tiny.drafter())[1]:
        assert from_json(to_json(wiring), "here") == wiring


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("feedback=post_norm", "feedback", "post_norm"),
        ("token_shift=0", "token_shift", 0),
        ("head_norm=false", "head_norm", False),
        ("window=16", "window", 16),
        ("embedding_scale=24", "embedding_scale", 24.0),
        ("rope.theta=1e6", "rope", Rope(1e6)),
        ('rope.scaling={"type": "linear", "factor": 4.0}', "rope",
         Rope(100.0, scaling=(("factor", 4.0), ("type", "linear")))),
        ("initial:norm.weight=true", "initial", frozenset({"norm.weight"})),
    ],
)  # fmt: skip
def test_a_wire_as_given(text, field, value):
    assert getattr(parse_wire(text, eagle3((0, 2), Rope(100.0))), field) == value


@pytest.mark.parametrize(
    "text",
    ["feedback", "feedback=hot", "taps=1", "nothing=1", "window=-1", "token_shift=x",
     "head_norm=[1]", "rope.theta=0", "initial:norm.weight=2"],
)  # fmt: skip
def test_a_malformed_wire_is_told(text):
    with pytest.raises(InputError):
        parse_wire(text, eagle3((0, 2), Rope(100.0)))


def brute(made, h, tokens, slot, steps):
    """Outputs of one chain by a mask over everything it may see, written from the wires' words."""
    wiring, last = made.wiring, len(tokens) - 2
    rows = [min(max(s + wiring.state_shift, 0), last) for s in range(slot + 1)]
    taps = torch.cat([h[tap][rows] for tap in wiring.taps], dim=-1)
    if wiring.tap_norm == "last":
        width = tiny.SHAPE.target_hidden
        x = taps[:, -width:]
        x = x * (x.square().mean(-1, keepdim=True) + tiny.SHAPE.epsilon).rsqrt() * made.target_norm
        taps = torch.cat([taps[:, :-width], x], dim=-1)
    g = list(made.fc(taps))
    read = [s + wiring.token_shift for s in range(slot + 1)]
    places, outs = list(range(slot + 1)), []
    for step in range(1, steps + 1):
        at = torch.tensor([min(p, (wiring.position_limit or 10**6) - 1) for p in places])
        e = made.embed(tokens[torch.tensor(read).clamp(0, len(tokens) - 1)])

        def see(_layer, q, k, v):
            group, n = q.shape[1] // k.shape[1], q.shape[2]
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            for i in range(n):
                for j in range(n):
                    gone = wiring.window is not None and j <= i - wiring.window
                    if j > i or gone:
                        scores[..., i, j] = -torch.inf
            return scores.softmax(-1) @ v

        o = made.block(e[None], torch.stack(g)[None], at, see)[0, -1]
        outs.append(o)
        read.append(slot + wiring.token_shift + step * wiring.token_advance)
        places.append(slot + step * wiring.position_advance)
        g.append({"pre_norm": o, "post_norm": made.norm(o), "stale": g[-1]}[wiring.feedback])
    return outs


NEW = {
    "late": {"state_shift": -1},
    "early": {"state_shift": 1},
    "normed tap": {"tap_norm": "last", "taps": (0, "N", 2)},
    "stale state": {"feedback": "stale"},
    "stale token": {"token_advance": 0},
    "clamped": {"position_limit": 5},
    "window": {"window": 3},
    "self only": {"window": 1},
    "several": {"window": 4, "feedback": "stale", "state_shift": -1, "position_limit": 6},
}


@pytest.mark.parametrize("name", NEW)
@torch.no_grad()
def test_a_new_wire_does_what_its_words_say(name):
    plain = tiny.drafter(**{k: v for k, v in NEW[name].items() if k == "taps"})
    made = rewire(plain, replace(plain.wiring, **NEW[name]), parts_with_all(plain))
    generator = torch.Generator().manual_seed(3)
    n = 14
    h = {tap: torch.randn(n - 1, 16, generator=generator) for tap in tiny.TAPS}
    tokens = torch.randint(40, (n,), generator=generator)
    shifted = (torch.arange(n - 1) + made.wiring.state_shift).clamp(0, n - 2)
    taps = torch.cat([h[tap][shifted] for tap in made.wiring.taps], dim=-1)
    slots = torch.tensor([[0, 4, 9]])
    every = list(unroll(made, taps[None], tokens[None], STEPS))
    some = list(unroll(made, taps[None], tokens[None], STEPS, slots))
    for column, slot in enumerate(slots[0].tolist()):
        for step, wanted in enumerate(brute(made, h, tokens, slot, STEPS)):
            torch.testing.assert_close(every[step][0, slot], wanted, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(some[step][0, column], wanted, rtol=1e-4, atol=1e-4)
    before = list(unroll(plain, taps[None], tokens[None], STEPS))
    assert name in ("late", "early") or any(
        not torch.allclose(a, b, atol=1e-3) for a, b in zip(before, every, strict=True)
    )


def test_rows_of_a_neighbouring_token_are_those_of_the_shifted_file(tmp_path):
    made = tiny.drafter()
    states, _ = tiny.planted_states(tmp_path / "a", made, count=2)
    texts = []
    for s in states.sequences(tiny.TAPS):
        late = {tap: torch.cat([rows[:1], rows[:-1]]) for tap, rows in s.h.items()}
        texts.append((s.tokens, s.mask, late))
    shifted = tiny.save_states(tmp_path / "b", texts)
    other = rewire(made, replace(made.wiring, state_shift=-1), parts_of(made))
    a, b = observe(other, states, STEPS), observe(made, shifted, STEPS)
    assert torch.equal(a.correct, b.correct)
    torch.testing.assert_close(a.log_likelihood, b.log_likelihood, equal_nan=True)


def test_rewiring_copies_nothing_and_leaves_the_first_as_it_was():
    made = tiny.drafter()
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    parts, cuts = every_cut(made)
    for wiring in cuts:
        other = rewire(made, wiring, parts)
        assert other.fc.weight is made.fc.weight
        assert other.wiring == wiring
    assert made.wiring == tiny.drafter().wiring
    assert before.keys() == made.state_dict().keys()
    assert all(torch.equal(before[name], made.state_dict()[name]) for name in before)


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_left_at_its_initial_value_has_ones(name):
    made = tiny.drafter()
    other = rewire(made, replace(made.wiring, initial=frozenset({name})), parts_of(made))
    state = other.state_dict()
    assert torch.equal(state[name], torch.ones(16))
    assert all(torch.equal(state[n], t) for n, t in made.state_dict().items() if n != name)


@pytest.mark.parametrize(
    "wires", [{"embedding": "own"}, {"head": "target"}, {"pre_fc_norm": "whole"}]
)
def test_what_is_not_at_hand_is_told(wires):
    made = tiny.drafter()
    with pytest.raises(InputError, match="expected"):
        rewire(made, replace(made.wiring, **wires), parts_of(made))
