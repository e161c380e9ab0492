"""Replay against a drafter that recomputes everything for every draft, and against hand counts."""

import math

import pytest
import tiny
import torch

from draftprobe.errors import InputError
from draftprobe.measure.replay import observe, spread

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
    monkeypatch.setattr("draftprobe.measure.replay._NUMBERS", 300)
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
