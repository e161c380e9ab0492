"""The search against planted taps, an exhaustive table, and replay as an independent path."""

import json
from dataclasses import replace
from itertools import product
from statistics import median

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from draftprobe.diagnose.pool import Limits, Pool, rewired
from draftprobe.diagnose.search import ablate, acceptance_costs, sample, search
from draftprobe.drafter.model import Drafter, unroll
from draftprobe.drafter.shape import Latent, Shape
from draftprobe.drafter.vocabulary import tables
from draftprobe.drafter.wiring import Rope, eagle3, tap_name
from draftprobe.errors import InputError
from draftprobe.measure.replay import observe
from draftprobe.states.record import Provenance, open_states, provenance_metadata

HIDDEN, VOCABULARY, DRAFT = 16, 40, 32


def random_drafter(taps, seed=0, scale=1.0, form=(), **wires):
    generator = torch.Generator().manual_seed(seed)
    shape = Shape(HIDDEN, HIDDEN, len(taps), 4, 2, 4, 24, DRAFT, VOCABULARY, 1e-6)
    shape = replace(shape, **dict(form))
    wiring = replace(eagle3(tuple(taps), Rope(theta=100.0)), **wires)
    table = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    made = Drafter(shape, wiring, table)
    with torch.no_grad():
        for parameter in made.parameters():
            matrix = parameter.dim() > 1
            size = 1.5 * parameter.shape[-1] ** -0.5 if matrix else 0.3
            noise = size * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise if matrix else 1 + noise)
        made.lm_head.weight.mul_(scale)
        kept = torch.randperm(VOCABULARY, generator=generator)[:DRAFT].sort().values
        made.d2t.copy_(tables(kept, VOCABULARY)[0])
    return made.eval()


def layered(count, rows, layers, step, generator):
    """States of a residual stream: each boundary is the one before it and an increment."""
    h = {0: torch.randn(count, rows, HIDDEN, generator=generator)}
    for layer in range(1, layers + 1):
        increment = torch.randn(count, rows, HIDDEN, generator=generator)
        h[layer] = h[layer - 1] + step * increment
    h["N"] = torch.nn.functional.rms_norm(h[layers], (HIDDEN,))
    return h


@torch.inference_mode()
def planted(path, made, layers=6, count=40, length=22, step=0.6, seed=1, same=(), prompt=3):
    """States whose text is drawn from the drafter's own distribution, as it is wired.

    ``same`` is a pair of boundaries that are made identical.
    """
    generator = torch.Generator().manual_seed(seed)
    h = layered(count, length - 1, layers, step, generator)
    if same:
        h[same[1]] = h[same[0]].clone()
    tokens = torch.randint(VOCABULARY, (count, length), generator=generator)
    taps = torch.cat([h[tap] for tap in made.wiring.taps], dim=-1)
    for slot in range(prompt - 2, length - 2):
        (o,) = unroll(made, taps, tokens, 1)
        drawn = torch.multinomial(made.logits(o[:, slot]).softmax(-1), 1, generator=generator)
        tokens[:, slot + 2] = made.target_ids()[drawn[:, 0]]
    mask = torch.arange(length).expand(count, -1) >= prompt
    tensors = {tap_name(tap): state.flatten(0, 1).contiguous() for tap, state in h.items()}
    tensors["tokens"] = tokens.flatten().to(torch.int32)
    tensors["loss_mask"] = mask.flatten().to(torch.uint8)
    tensors["lengths"] = torch.full((count,), length, dtype=torch.int32)
    provenance = Provenance(
        "dataset", "tiny", "llama", "", layers, HIDDEN, VOCABULARY, "float32", "float32", 1, None,
        ("",) * count, {},
    )  # fmt: skip
    save_file(tensors, path, metadata=provenance_metadata(provenance))
    return open_states(path)


def replayed(made, states, taps, pool, tokens):
    """Log-likelihoods of the pool's tokens by replay, and which are right."""
    seen = observe(rewired(made, taps), states, 1)
    places = zip(seen.sequence.tolist(), seen.slot.tolist(), strict=True)
    place = {key: number for number, key in enumerate(places)}
    keys = zip(pool.sequence[tokens].tolist(), pool.slot[tokens].tolist(), strict=True)
    rows = torch.tensor([place[key] for key in keys])
    return seen.log_likelihood[0, rows].double(), seen.correct[0, rows]


WIRES = {
    "plain": {},
    "per_tap": {"pre_fc_norm": "per_tap"},
    "whole": {"pre_fc_norm": "whole"},
    "hidden_first": {"half_order": "hidden_first", "residual": "normed"},
    "bare": {"hidden_norm": False, "embedding_norm": False, "head_norm": False},
    "shift": {"token_shift": 0, "position_start": 3, "embedding_scale": 2.0},
    "rope": {"rope": Rope(theta=50.0, style="interleaved", partial=0.5)},
}


@pytest.mark.parametrize("wires", WIRES.values(), ids=WIRES.keys())
def test_scores_are_those_of_replay(tmp_path, wires):
    made = random_drafter((1, 4, "N"), **wires)
    states = planted(tmp_path / "s", made, count=5)
    pool = Pool(made, states, limits=Limits(tokens=60))
    tokens = sample(pool, 3)
    for taps in [(1, 4, "N"), (5, 0, 2), (3, 3, 3)]:
        likely, correct = replayed(made, states, taps, pool, tokens)
        # in two parts, so that the second is computed with the first already there
        pool.log_likelihood(taps, tokens[:7])
        torch.testing.assert_close(pool.log_likelihood(taps, tokens), likely, rtol=0, atol=2e-4)
        assert torch.equal(pool.correct(taps, tokens), correct)


FORMS = {
    "norms of heads": {"qk_norm": True},
    "biases": {"biases": frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "fc"})},
    "latent": {"latent": Latent(12, 10, 6, 4, 5), "kv_heads": 4, "head_dim": 10},
    "latent, biases": {
        "latent": Latent(0, 10, 6, 4, 5), "kv_heads": 4, "head_dim": 10,
        "biases": frozenset({"kv_a_proj_with_mqa"}),
    },
}  # fmt: skip


@pytest.mark.parametrize("wires", [{}, {"hidden_norm": False}], ids=["normed", "bare"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_scores_of_other_forms_are_those_of_replay(tmp_path, form, wires):
    made = random_drafter((1, 4, "N"), form=form, **wires)
    states = planted(tmp_path / "s", made, count=4)
    pool = Pool(made, states, limits=Limits(tokens=60))
    tokens = sample(pool, 3)
    for taps in [(1, 4, "N"), (5, 0, 2)]:
        likely, correct = replayed(made, states, taps, pool, tokens)
        torch.testing.assert_close(pool.log_likelihood(taps, tokens), likely, rtol=0, atol=2e-4)
        assert torch.equal(pool.correct(taps, tokens), correct)


def test_what_has_no_closed_form_is_refused(tmp_path):
    states = planted(tmp_path / "s", random_drafter((1, 2)), count=4)
    for form, message in (
        ({"layers": 2}, "one decoder layer, found 2"),
        ({"biases": frozenset({"fc"})}, "no bias of fc"),
    ):
        made = random_drafter((1, 2), form=form, pre_fc_norm="whole")
        with pytest.raises(InputError, match=message):
            Pool(made, states)


def test_only_counted_tokens_of_the_draft_vocabulary_are_scored(tmp_path):
    made = random_drafter((1, 2))
    states = planted(tmp_path / "s", made, count=4, length=12, prompt=5)
    pool = Pool(made, states)
    # 12 tokens, 5 of them prompt: x_5..x_11, predicted at slots 3..9; all drawn by the drafter
    assert pool.slot.tolist() == 4 * list(range(3, 10))
    assert pool.sequence.tolist() == [i for i in range(4) for _ in range(7)]
    assert pool.cut == 0
    few = Pool(made, states, limits=Limits(tokens=8, sequences=2))
    assert len(few) == 8
    assert len(few.sequence.unique()) == 2


def test_a_context_that_is_cut_is_the_text_behind_the_cut(tmp_path):
    made = random_drafter((1, 2))
    states = planted(tmp_path / "s", made, count=3, length=40, prompt=24)
    pool = Pool(made, states, limits=Limits(context=20))
    assert pool.cut == 3
    # first scored slot 22, ten slots of room behind it: slots 12..31
    assert (int(pool.slot.min()), int(pool.slot.max())) == (22, 31)
    sequence = states.sequence(0, (1, 2))
    tokens = (pool.sequence == 0).nonzero().flatten()
    e = made.embed(sequence.tokens[13:33])[None]
    g = made.fuse(sequence.taps((1, 2))[12:32])[None]

    def attend(_layer, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )

    with torch.no_grad():
        o = made.block(e, g, torch.arange(12, 32), attend)[0]
        scores = made.logits(o).log_softmax(-1)
    ids = made.target_ids().tolist()
    for token in tokens.tolist():
        slot = int(pool.slot[token])
        label = ids.index(int(sequence.tokens[slot + 2]))
        expected = float(scores[slot - 12, label])
        found = float(pool.log_likelihood((1, 2), torch.tensor([token])))
        assert found == pytest.approx(expected, abs=1e-4)


def test_a_pool_too_large_for_memory(tmp_path):
    made = random_drafter((1, 2))
    states = planted(tmp_path / "s", made)
    whole = Pool(made, states)
    need = sum(
        tensor.numel() * 4
        for tensor in (
            whole._made._hidden_half,
            whole._made._projections,
            *whole._made._products.values(),
        )
    )
    half = Pool(made, states, limits=Limits(memory=need // 2))
    assert len(half.sequence.unique()) == 20
    with pytest.raises(InputError, match="do not hold 16 sequences; give fewer candidates"):
        Pool(made, states, limits=Limits(memory=need // 4))


PLANTED = [(4,), (5, 1), (2, 2), (0, 3, 5), (6, 4, 1), (3, "N", 0), (5, 0, 2, 3)]


@pytest.mark.parametrize("taps", PLANTED, ids=str)
def test_planted_taps_are_found(tmp_path, taps):
    made = random_drafter(taps, scale=1.5)
    states = planted(tmp_path / "s", made)
    pool = Pool(rewired(made, (0,) * len(taps)), states)  # the drafter's own claim is not read
    found = search(pool)
    assert found.best == taps
    assert found.decided
    assert [slot.taps for slot in found.slots] == [(tap,) for tap in taps]
    assert found.tuples == pool.fillings
    assert found.candidates == 8
    if len(taps) > 2:
        assert found.tuples < 8 ** len(taps) / 4
    runner_up = found.ranking[1]
    assert runner_up.cost.value > 0
    assert not runner_up.tied
    assert found.ranking[0].cost.value == 0
    assert json.loads(json.dumps(found.to_json()))["decided"] is True


def test_the_best_is_that_of_the_whole_table(tmp_path):
    made = random_drafter((1, 4, 2), scale=1.5)
    states = planted(tmp_path / "s", made, count=24)
    candidates = (0, 1, 2, 4, "N")
    pool = Pool(made, states, candidates)
    tokens = sample(pool, 5, tokens=300)
    found = search(pool, tokens)
    table = {
        taps: replayed(made, states, taps, pool, tokens)[0].mean().item()
        for taps in product(candidates, repeat=3)
    }
    best = max(table, key=table.__getitem__)
    assert found.best == best
    assert found.log_likelihood.value == pytest.approx(table[best], abs=1e-5)
    for rival in found.ranking[1:]:
        assert rival.cost.value == pytest.approx(table[best] - table[rival.taps], abs=1e-5)
    second = max((taps for taps in table if taps != best), key=table.__getitem__)
    assert found.ranking[1].taps == second


def test_identical_boundaries_are_a_tie_that_nothing_decides(tmp_path):
    made = random_drafter((5, 1), scale=1.5)
    states = planted(tmp_path / "s", made, same=(1, 3))
    found = search(Pool(made, states))
    assert found.slots[0].taps == (5,)
    assert set(found.slots[1].taps) == {1, 3}
    assert not found.decided
    assert found.needed is None
    assert "no number of tokens would" in found.undecided
    tie = found.slots[1].tied[1]
    assert (tie.cost.value, tie.cost.low, tie.cost.high) == (0, 0, 0)


def test_one_sequence_has_no_interval(tmp_path):
    made = random_drafter((5, 1))
    states = planted(tmp_path / "s", made, count=2, length=40)
    pool = Pool(made, states)
    found = search(pool, sample(pool, 0, tokens=32, sequences=1))
    assert (found.tokens, found.sequences) == (32, 1)
    assert not found.decided
    assert "32 tokens of one sequence have no interval" in found.undecided
    assert "at least 16 sequences" in found.undecided
    assert found.log_likelihood.low is None


def test_a_sample_is_spread_evenly_at_any_length(tmp_path):
    made = random_drafter((5, 1))
    pool = Pool(made, planted(tmp_path / "s", made))
    order = sample(pool, 7)
    assert order.sort().values.tolist() == list(range(len(pool)))
    for n in (64, 100, 256):
        counts = pool.sequence[order[:n]].bincount(minlength=40)
        assert int(counts.max()) - int(counts.min()) <= 1
    some = sample(pool, 7, tokens=64, sequences=16)
    assert pool.sequence[some].unique(return_counts=True)[1].tolist() == [4] * 16
    assert not torch.equal(sample(pool, 8), order)


def test_resamples_of_one_pool_never_exclude_the_planted_taps(tmp_path):
    made = random_drafter((2, 4))
    states = planted(tmp_path / "s", made, step=0.25, count=60)
    pool = Pool(made, states)
    decided = 0
    for seed in range(50):
        found = search(pool, sample(pool, seed, tokens=300), seed=seed)
        assert (2, 4) in [rival.taps for rival in found.tied]
        decided += found.decided
    assert 0 < decided < 50  # neighbours are close enough for ties


def test_the_number_that_would_decide(tmp_path):
    """Said from 64 tokens of 16 sequences; found by growing the same sample until it decides."""
    made = random_drafter((2, 4), seed=3)
    states = planted(tmp_path / "s", made, step=0.25, count=600, length=9, layers=5)
    pool = Pool(made, states, limits=Limits(tokens=4000, sequences=600))
    ratios = []
    for seed in range(10):
        told = search(pool, sample(pool, seed, tokens=64, sequences=16), seed=seed)
        assert f"about {told.needed.tokens} tokens of {told.needed.sequences}" in told.undecided
        sequences = 16
        while True:
            sequences = int(sequences * 1.25)
            if sequences > 600:
                break
            chosen = sample(pool, seed, tokens=4 * sequences, sequences=sequences)
            if search(pool, chosen, seed=seed).decided:
                break
        ratios.append(told.needed.tokens / (4 * sequences))
    assert 1 / 3 <= median(ratios) <= 3, ratios


def test_what_a_slot_is_worth(tmp_path):
    made = random_drafter((2, 4), scale=1.5)
    with torch.no_grad():
        made.fc.weight[:, :HIDDEN] *= 1e-4
    states = planted(tmp_path / "s", made)
    pool = Pool(made, states)
    tokens = sample(pool, 0)
    dead, alive = ablate(pool, (2, 4), tokens)
    assert dead.log_likelihood.value == pytest.approx(0, abs=1e-3)
    assert dead.accuracy.low <= 0 <= dead.accuracy.high
    assert alive.log_likelihood.high < -0.1
    assert alive.accuracy.high < 0
    zeroed = random_drafter((2, 4), scale=1.5)
    with torch.no_grad():
        zeroed.fc.weight[:, :HIDDEN] *= 1e-4
        zeroed.fc.weight[:, HIDDEN:] = 0
    whole, without = (replayed(d, states, (2, 4), pool, tokens)[0] for d in (made, zeroed))
    expected = float((without - whole).mean())
    assert alive.log_likelihood.value == pytest.approx(expected, abs=1e-5)


def test_ties_in_expected_acceptance(tmp_path):
    made = random_drafter((5, 1), scale=1.5)
    states = planted(tmp_path / "s", made, count=12, same=(1, 3))
    same, other = acceptance_costs(made, states, (5, 1), [(5, 3), (0, 1)], steps=3)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert other.value < 0
    first, second = (observe(rewired(made, t), states, 3) for t in [(5, 1), (0, 1)])
    lengths = [
        np.sum([_walk(o.run_lengths[o.sequence == s].tolist()) for s in range(12)], axis=0)
        for o in (first, second)
    ]
    by_hand = [emitted / rounds for rounds, emitted in lengths]
    assert other.value == pytest.approx(by_hand[1] - by_hand[0])


def _walk(runs):
    """Rounds and tokens of one text whose first counted token is the prefill's."""
    runs, t, rounds = runs[1:], 0, 0
    while t < len(runs):
        t, rounds = t + runs[t] + 1, rounds + 1
    return rounds, len(runs)
