"""Replay against a drafter that recomputes everything for every draft, and against hand counts."""

import json
import math

import pytest
import tiny
import torch

from draftprobe.cli import main
from draftprobe.drafter import golden
from draftprobe.errors import InputError
from draftprobe.measure.acceptance import walk
from draftprobe.measure.replay import Observations, observe, spread
from draftprobe.measure.summary import paired, summarise
from draftprobe.states.record import open_states

STEPS = 3


def brute(made, states, steps):
    """Per (sequence, slot, step): right, inside, log-likelihood; straight from the definitions."""
    ids = made.target_ids().tolist()
    found = {}
    for sequence in range(len(states)):
        text = states.sequence(sequence, made.wiring.taps)
        taps, tokens, n = tiny.taps_of(made, text.h), text.tokens.tolist(), len(text.tokens)
        for slot in range(n - 2):
            for step in range(1, steps + 1):
                label = slot + 1 + step
                shift = made.wiring.token_shift
                if label >= n or not text.mask[slot + 2 : label + 1].all():
                    break
                if slot + shift < 0 or slot + shift + step - 1 >= n:
                    break
                forced = tokens[slot + shift + 1 : slot + shift + step]
                o = tiny.outputs(made, taps, text.tokens, slot, forced)[-1]
                logits = made.logits(o).detach().double()
                wanted = tokens[label]
                inside = wanted in ids
                share = logits[ids.index(wanted)] - logits.logsumexp(0) if inside else torch.nan
                right = ids[int(logits.argmax())] == wanted
                found[sequence, slot, step] = (right, inside, float(share))
    return found


@pytest.mark.parametrize(
    "wires",
    [
        {},
        {"feedback": "post_norm"},
        {"position_start": 3, "position_advance": 0},
        {"token_shift": 0},
        {"token_shift": 2},
        {"half_order": "hidden_first", "residual": "normed"},
        {"pre_fc_norm": "per_tap", "taps": ("N", 0, 2)},
    ],
    ids=str,
)
def test_every_observation_equals_the_brute_force(tmp_path, wires):
    made = tiny.drafter(**wires)
    planter = tiny.drafter(**{k: v for k, v in wires.items() if k != "token_shift"})
    states, _ = tiny.planted_states(tmp_path / "s", planter, count=4, steps=STEPS)
    seen, wanted = observe(made, states, STEPS), brute(made, states, STEPS)
    got = {}
    for i, key in enumerate(zip(seen.sequence.tolist(), seen.slot.tolist(), strict=True)):
        for step in range(STEPS):
            if seen.valid[step, i]:
                got[(*key, step + 1)] = (
                    bool(seen.correct[step, i]),
                    bool(seen.inside[step, i]),
                    float(seen.log_likelihood[step, i]),
                )
            else:
                assert not seen.correct[step, i]
                assert not seen.inside[step, i]
                assert math.isnan(seen.log_likelihood[step, i])
    assert got.keys() == wanted.keys()
    for key, (right, inside, likely) in wanted.items():
        assert got[key][:2] == (right, inside), key
        assert got[key][2] == pytest.approx(likely, abs=1e-4, nan_ok=True), key
    if wires.get("token_shift", 1) == 1:  # not vacuous: there are right drafts at every step
        assert all(seen.correct[step].sum() >= 5 for step in range(STEPS))
    assert not seen.inside[seen.valid].all()


def test_a_sample_sees_the_same_tokens_as_the_whole(tmp_path):
    made = tiny.drafter()
    states, _ = tiny.planted_states(tmp_path / "s", made)
    whole, some = observe(made, states, STEPS), observe(made, states, STEPS, limit=25)
    assert whole.whole
    assert not some.whole
    assert len(some.slot) == 25
    assert some.sequence.bincount().tolist() == [4, 4, 4, 4, 4, 5]
    keys = list(zip(whole.sequence.tolist(), whole.slot.tolist(), strict=True))
    rows = [keys.index(key) for key in zip(some.sequence.tolist(), some.slot.tolist(), strict=True)]
    assert rows == sorted(set(rows))
    for name in ("started", "valid", "inside", "correct"):
        assert torch.equal(getattr(some, name), getattr(whole, name)[..., rows])
    torch.testing.assert_close(
        some.log_likelihood, whole.log_likelihood[:, rows], equal_nan=True, rtol=1e-4, atol=1e-5
    )


def test_small_batches_change_nothing(tmp_path, monkeypatch):
    made = tiny.drafter()
    states, _ = tiny.planted_states(tmp_path / "s", made)
    once = observe(made, states, STEPS)
    calls = []
    for module in ("measure.replay", "drafter.model"):
        monkeypatch.setattr(f"draftprobe.{module}.WORKING_SET", 300)
    piecewise = observe(
        made, states, STEPS, progress=lambda done, total: calls.append((done, total))
    )
    assert calls == [(i, 6) for i in range(1, 7)]
    for name in ("sequence", "slot", "started", "valid", "inside", "correct"):
        assert torch.equal(getattr(once, name), getattr(piecewise, name))
    torch.testing.assert_close(
        once.log_likelihood, piecewise.log_likelihood, equal_nan=True, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("capacities", "limit", "quotas"),
    [
        ([10, 10, 10], 6, [2, 2, 2]),
        ([1, 10, 10], 7, [1, 3, 3]),
        ([0, 5, 2], 7, [0, 5, 2]),
        ([4, 4, 4, 4], 2, [0, 1, 0, 1]),
        ([3], 2, [2]),
    ],
)
def test_a_limit_is_shared_evenly(capacities, limit, quotas):
    shared = spread(capacities, limit)
    assert sum(shared) == min(limit, sum(capacities))
    assert sorted(shared) == sorted(quotas)
    if limit >= len(capacities):
        assert shared == quotas


def test_masks_with_gaps_end_a_chain(tmp_path):
    made = tiny.drafter()
    tokens, h, _ = tiny.plant(made, 2, 12, STEPS, torch.Generator().manual_seed(0))
    mask = torch.tensor([0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 1]).bool()
    seen = observe(made, tiny.save_states(tmp_path / "s", [(tokens, mask, h)]), STEPS)
    # Slot t predicts tokens t+2, t+3, t+4: 3 4 5 | 4 5 | 5 | 8 | 10 11 | 11
    assert seen.slot.tolist() == [1, 2, 3, 6, 8, 9]
    assert seen.valid.sum(0).tolist() == [3, 2, 1, 1, 2, 1]
    assert seen.started.tolist() == [False, True, True, False, False, True]


def test_states_that_do_not_fit_are_told(tmp_path):
    made = tiny.drafter()
    text = tiny.plant(made, 2, 8, STEPS, torch.Generator().manual_seed(0))
    tokens, h = text[:2]
    counted, nothing = torch.ones(8, dtype=torch.bool), torch.tensor([1] * 2 + [0] * 6).bool()
    cases = {
        "hidden size": tiny.save_states(
            tmp_path / "a", [(tokens, counted, {t: x[:, :8] for t, x in h.items()})], hidden_size=8
        ),
        "40 tokens": tiny.save_states(tmp_path / "b", [(tokens, counted, h)], vocab_size=41),
        "no token counts": tiny.save_states(tmp_path / "c", [(tokens, nothing, h)]),
    }
    for message, states in cases.items():
        with pytest.raises(InputError, match=message):
            observe(made, states, STEPS)
    fits = tiny.save_states(tmp_path / "d", [(tokens, counted, h)])
    for taps, message in (((0, 2, 5), "does not exist"), ((0, 2, 3), r"expected states of h\[3\]")):
        with pytest.raises(InputError, match=message):
            observe(tiny.drafter(taps=taps), fits, STEPS)
    overflowing = tiny.drafter()
    with torch.no_grad():
        overflowing.lm_head.weight[0, 0] = math.inf
    with pytest.raises(InputError, match="NaN or infinite"):
        observe(overflowing, fits, STEPS)


def hand_made():
    """Two sequences of 3 and 2 chains, 2 steps; the last chain of each has no second token."""
    return Observations(
        sequence=torch.tensor([0, 0, 0, 4, 4]),
        slot=torch.tensor([1, 2, 3, 63, 64]),
        started=torch.tensor([False, True, True, False, True]),
        valid=torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]]).bool(),
        inside=torch.tensor([[1, 1, 0, 1, 1], [1, 0, 0, 1, 0]]).bool(),
        correct=torch.tensor([[1, 0, 0, 1, 1], [1, 0, 0, 0, 0]]).bool(),
        log_likelihood=torch.tensor(
            [[-1.0, -3.0, math.nan, -2.0, -4.0], [-1.0, math.nan, math.nan, -5.0, math.nan]]
        ),
        whole=True,
        source="greedy",
    )


def test_a_summary_by_hand():
    found = summarise(hand_made(), "by hand")
    first, second = found.steps
    assert (first.top1.value, first.top1.n, first.top1.clusters) == (3 / 5, 5, 2)
    assert first.conditional == first.joint == first.top1
    assert (first.nll.value, first.nll.n) == (10 / 4, 4)
    assert (second.top1.value, second.top1.n) == (1 / 3, 3)
    assert (second.joint.value, second.joint.n) == (1 / 3, 3)
    assert (second.conditional.value, second.conditional.n) == (1 / 2, 2)
    assert (second.nll.value, second.nll.n) == (6 / 2, 2)
    assert (found.coverage.value, found.coverage.n) == (4 / 5, 5)
    buckets = [(b.first, b.last, b.top1[0].value, b.top1[1].n) for b in found.buckets]
    assert buckets == [(0, 63, 2 / 4, 3), (64, 127, 1.0, 0)]
    # decodes stand at slots 2, 3 (nothing right) and 64 (right, at the text's end)
    assert (found.walk.rounds, found.walk.emitted, found.acceptance.value) == ((2, 1), (2, 1), 1)
    assert found.exact
    assert json.loads(json.dumps(found.to_json())) == found.to_json()
    step = found.to_json()["steps"][0]
    assert (step["top1"], step["n"]) == (3 / 5, 5)
    assert 0 <= step["low"] < 3 / 5 < step["high"] <= 1


def test_a_paired_difference_by_hand():
    a, b = hand_made(), hand_made()
    b.correct[0] = torch.tensor([1, 1, 0, 1, 0]).bool()
    b.log_likelihood[0] = torch.tensor([-1.5, -1.0, math.nan, -2.0, -1.0])
    b.inside[0, 3] = False
    b.log_likelihood[0, 3] = math.nan
    found = paired(a, b)
    assert (found.accuracy[0].value, found.accuracy[0].n) == (0, 5)  # one gained, one lost
    assert (found.log_likelihood[0].value, found.log_likelihood[0].n) == ((-0.5 + 2 + 3) / 3, 3)
    assert found.accuracy[1].value == found.log_likelihood[1].value == 0
    assert found.acceptance.value == pytest.approx(3 / 2 - 3 / 3)  # a round less at slots 2, 3
    b.slot[0] = 0
    with pytest.raises(ValueError, match="slot differs"):
        paired(a, b)


def test_a_cut_wire_is_worse_and_the_difference_says_by_how_much(tmp_path):
    made = tiny.drafter()
    states, _ = tiny.planted_states(tmp_path / "s", made, count=12)
    served = tiny.drafter(taps=(2, 0, "N"))
    good, bad = observe(made, states, STEPS), observe(served, states, STEPS)
    found = paired(bad, good)
    for step in range(STEPS):
        difference = good.correct[step].sum() - bad.correct[step].sum()
        assert found.accuracy[step].value == pytest.approx(
            float(difference / good.valid[step].sum())
        )
        assert found.accuracy[step].low > 0
    assert found.log_likelihood[0].low > 0
    lengths = [walk(o).length.value for o in (good, bad)]
    assert found.acceptance.value == pytest.approx(lengths[0] - lengths[1])
    assert found.acceptance.low > 0.3
    some = [observe(d, states, STEPS, limit=60) for d in (served, made)]
    assert paired(*some).log_likelihood[0].low > 0


@pytest.fixture
def folder(tmp_path):
    """A drafter, its target and states whose header names that target."""
    made = tiny.drafter()
    tiny.save_drafter(tmp_path / "draft", made)
    tiny.save_target(tmp_path / "target", made.embedding)
    tiny.planted_states(tmp_path / "states", made, model=str(tmp_path / "target"))
    return tmp_path


def run(monkeypatch, capsys, *arguments):
    """Exit code, stdout and stderr of the command line."""
    monkeypatch.setattr("sys.argv", ["draftprobe", "replay", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0, *capsys.readouterr()


def test_the_command_prints_a_table(folder, monkeypatch, capsys):
    taps = ("--taps", "0,2,N")
    code, out, err = run(
        monkeypatch, capsys, folder / "draft", "--states", folder / "states", *taps, "--steps", 3
    )
    assert (code, err) == (0, "")
    states = open_states(folder / "states")
    found = summarise(observe(tiny.drafter(), states, 3), "")
    lines = out.splitlines()
    assert lines[0] == (
        f"replayed h[0], h[2], h[N]: 6 sequences, {found.tokens} tokens, 3 steps, greedy text"
    )
    assert lines[1].split() == ["step", "top-1", "95", "%", "given", "before", "joint", "nll", "n"]
    assert lines[2].split()[:2] == ["1", f"{found.steps[0].top1.value:.3f}"]
    assert f"expected acceptance length {found.acceptance.value:.3f}" in out
    assert f"{sum(found.walk.rounds)} rounds of 3 drafts, on the target's own greedy text" in out
    code, out, _ = run(
        monkeypatch, capsys, folder / "draft", "--states", folder / "states", *taps,
        "--limit", 30, "--json",
    )  # fmt: skip
    data = json.loads(out)
    assert (data["tokens"], data["acceptance"]["method"]) == (30, "joint")


def test_the_drafters_own_wiring_is_the_default(folder, monkeypatch, capsys):
    made = tiny.drafter()
    text = open_states(folder / "states").sequence(5, tiny.TAPS)
    golden.write(golden.make(made, text.tokens, text.taps(tiny.TAPS), 3), folder / "draft")
    code, out, _ = run(monkeypatch, capsys, folder / "draft", "--states", folder / "states")
    assert code == 0
    assert out.startswith("replayed h[0], h[2], h[N]: 6 sequences")


def test_bad_input_is_one_line_and_exit_code_2(folder, monkeypatch, capsys):
    states = ("--states", folder / "states")
    truncated = folder / "truncated"
    truncated.write_bytes((folder / "states").read_bytes()[:-10])
    (folder / "pickled").mkdir()
    (folder / "pickled" / "config.json").write_text("{}")
    (folder / "pickled" / "model.safetensors").write_bytes(b"\x80\x04\x95 not weights")
    poisoned = {t: torch.full((9, 16), math.nan) for t in tiny.TAPS}
    tiny.save_states(
        folder / "nan", [(torch.arange(10), torch.ones(10, dtype=torch.bool), poisoned)],
        model=str(folder / "target"),
    )  # fmt: skip
    tiny.save_target(folder / "other", torch.zeros(tiny.SHAPE.vocabulary + 1, 16))
    draft, taps = folder / "draft", ("--taps", "0,2,N")
    cases = [
        ((folder / "none", *states, *taps), "expected a checkpoint folder"),
        ((folder / "pickled", *states, *taps), "pickle is never loaded"),
        ((draft, "--states", truncated, *taps), "complete safetensors"),
        ((draft, "--states", folder / "nan", *taps), "NaN"),
        ((draft, *states), "give --taps"),
        ((draft, *states, "--taps", "0,2,9"), "h[9]"),
        ((draft, *states, "--taps", "0,2"), "give 3 taps"),
        (
            (draft, *states, *taps, "--target", folder / "other"),
            "captured from, found vocab_size 41",
        ),
        ((draft, *states, *taps, "--target", folder / "none"), "give --target"),
    ]
    before = sorted(folder.rglob("*"))
    for arguments, message in cases:
        code, out, err = run(monkeypatch, capsys, *arguments)
        assert (code, out, len(err.splitlines())) == (2, "", 1), (arguments, err)
        assert message in err
    assert sorted(folder.rglob("*")) == before
