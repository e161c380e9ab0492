"""What a real-size drafter needs, on a tiny one: mapped weights, bf16, sampled rows, cost told."""

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draftprobe.diagnose import pool as pool_module
from draftprobe.diagnose import projections, witness
from draftprobe.diagnose.imprint import block_of, directions_of, draw_null, imprint
from draftprobe.diagnose.plan import plan
from draftprobe.diagnose.pool import Limits, Pool
from draftprobe.diagnose.run import open_subject
from draftprobe.diagnose.search import rewired, sample, search
from draftprobe.diagnose.sketch import sketch
from draftprobe.diagnose.tokens import Sample, sample_states
from draftprobe.drafter import matrix, model
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import unroll
from draftprobe.drafter.vocabulary import draft_labels
from draftprobe.states.record import open_states

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from at_size_case import Sizes, make

SIZES = Sizes(64, 6, 4, 2, 16, 96, 400, 120, sequences=24, length=12, taps=(0, 2, 5), served=(1, 2))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return make(tmp_path_factory.mktemp("case"), SIZES)


@pytest.fixture(params=["bfloat16", "float32"])
def mapped(request, monkeypatch):
    """A drafter that is too large to be held, on a machine that is quick in one dtype."""
    monkeypatch.setattr(model, "RESIDENT", 0)
    quick = getattr(torch, request.param)
    monkeypatch.setattr(matrix, "speed", lambda dtype, device: float(dtype == quick))
    return quick


def subject_of(case):
    return open_subject(*case, None, "cpu", "eagle")


def outputs(subject, taps=SIZES.taps):
    """Scores [slots, D] of the first sequence, two steps."""
    recorded = subject.states.sequence(0, taps)
    with torch.inference_mode():
        fed = recorded.taps(taps)[None].to(subject.drafter.dtype)
        made = unroll(rewired(subject.drafter, taps), fed, recorded.tokens[None], 2)
        return [subject.drafter.logits(o.float())[0] for o in made]


def test_mapped_matrices_give_what_held_ones_give(case, mapped):
    subject = subject_of(case)
    matrices = [p for p in subject.drafter.parameters() if p.dim() > 1]
    assert all(p.dtype == torch.bfloat16 for p in matrices)
    assert subject.drafter.dtype == mapped
    found = outputs(subject)
    model.RESIDENT = 2**31
    held = subject_of(case)
    assert {p.dtype for p in held.drafter.parameters()} == {torch.float32}
    near = 1e-4 if mapped == torch.float32 else 0.5  # of scores that spread by 6
    for one, other in zip(found, outputs(held), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=near)
        assert float((one - other).square().mean().sqrt()) < near / 5


def test_search_of_a_mapped_drafter(case, mapped):
    pool = Pool(subject_of(case).drafter, open_states(case[1]))
    found = search(pool)
    assert found.best == SIZES.taps
    assert found.decided


def test_the_best_in_bf16_is_that_of_the_whole_table(case, monkeypatch):
    held = subject_of(case)
    candidates = [0, 1, 2, 3, 5]
    exact = Pool(held.drafter, held.states, candidates)
    monkeypatch.setattr(model, "RESIDENT", 0)
    monkeypatch.setattr(matrix, "speed", lambda dtype, device: float(dtype == torch.bfloat16))
    rounded = Pool(subject_of(case).drafter, held.states, candidates)
    tokens = sample(exact, 0)
    table = list(itertools.product(candidates, repeat=3))
    one, other = (p.log_likelihoods(table, tokens).mean(-1) for p in (exact, rounded))
    assert table[int(one.argmax())] == table[int(other.argmax())] == SIZES.taps
    assert float((one - other).abs().max()) < 0.03
    assert float(one.max() - one.sort().values[-2]) > 0.1


def test_the_best_by_some_rows_of_the_head_is_that_by_all(case):
    subject = subject_of(case)
    whole = Pool(subject.drafter, subject.states)
    some = Pool(subject.drafter, subject.states, limits=Limits(vocabulary=30))
    assert whole.scored_rows == SIZES.draft
    assert 30 <= some.scored_rows < SIZES.draft
    assert search(some).best == search(whole).best == SIZES.taps
    tokens = torch.arange(len(some))
    fewer, more = (p.log_likelihood((1, 2, 3), tokens) for p in (some, whole))
    assert bool((fewer >= more).all())  # less stands in the denominator


def test_scores_of_some_rows_are_the_softmax_over_them(case):
    subject = subject_of(case)
    pool = Pool(subject.drafter, subject.states, limits=Limits(vocabulary=30))
    labels = draft_labels(subject.drafter.target_ids(), SIZES.vocabulary)
    first = subject.states.sequence(0, ())
    here = (pool.sequence == 0).nonzero().flatten()
    text = subject.states.tokens.split(list(subject.states.lengths))
    pairs = zip(pool.sequence.tolist(), pool.slot.tolist(), strict=True)
    kept = {int(labels[text[index][slot + 2]]) for index, slot in pairs}
    kept |= set(torch.randperm(120, generator=torch.Generator().manual_seed(0))[:30].tolist())
    assert pool.scored_rows == len(kept)
    scores = outputs(subject)[0][:, sorted(kept)].log_softmax(-1)
    wanted = labels[first.tokens[pool.slot[here] + 2]].tolist()
    expected = [
        scores[s, sorted(kept).index(w)] for s, w in zip(pool.slot[here], wanted, strict=True)
    ]
    found = pool.log_likelihood(SIZES.taps, here)
    torch.testing.assert_close(found, torch.stack(expected).double(), rtol=0, atol=1e-4)


def test_pieces_change_nothing(case, monkeypatch):
    subject = subject_of(case)
    tables = [(1, 2, 3), (0, 2, 5), (6, 6, "N")]
    whole = Pool(subject.drafter, subject.states)
    tokens = torch.arange(len(whole))
    expected = whole.log_likelihoods(tables, tokens)
    monkeypatch.setattr(projections, "_FILLED", 3 * 9 * 64 * 4)  # four slots at a time
    monkeypatch.setattr(pool_module, "_ROWS", 7)
    pieces = Pool(subject.drafter, subject.states)
    torch.testing.assert_close(pieces.log_likelihoods(tables, tokens), expected, rtol=0, atol=1e-4)


def early(h, generator):
    """A block that training moved along its state."""
    start = torch.randn(64, 64, generator=generator)
    return start + 3 * torch.randn(64, 40, generator=generator) @ h[:40] / h.norm(dim=1).mean()


def test_sketch_is_the_statistic_without_eigenproblems():
    generator = torch.Generator().manual_seed(0)
    layers = {k: torch.randn(300, 8, generator=generator) @ torch.randn(8, 64, generator=generator)
              + 0.3 * torch.randn(300, 64, generator=generator) for k in range(4)}  # fmt: skip
    fc = torch.cat([early(layers[k], generator) for k in (1, 2)], dim=1)
    some = Sample((0, 1, 2, 3), 4, torch.arange(128), lambda tap: layers[tap][:128])
    values, mean, sd = sketch(fc.split(64, dim=1), some, torch.Generator().manual_seed(1))
    null = draw_null(64, 64, torch.Generator().manual_seed(2))
    for column, h in layers.items():
        state = directions_of(h[:128], with_basis=True)
        for slot, weight in enumerate(fc.split(64, dim=1)):
            exact = imprint(block_of(weight), state)[2:]
            torch.testing.assert_close(values[slot, 2:, column], exact, rtol=0.02, atol=0)
        drawn = null.values(state)[:, 2:]
        torch.testing.assert_close(mean[2:, column], drawn.mean(0), rtol=0.05, atol=0)
        torch.testing.assert_close(sd[2:, column], drawn.std(0), rtol=0.25, atol=0)
    assert values[:, 2].argmax(-1).tolist() == [1, 2]


def test_a_cpu_is_not_asked_for_what_is_too_dear(case, monkeypatch):
    subject = subject_of(case)
    monkeypatch.setattr(witness, "DEAR", 0)
    said = witness.testify(subject.drafter.fc.weight.detach(), sample_states(subject.states), 0)
    for slot in said.slots:
        assert slot.decision == "undetermined"
        assert "eigenproblems of hidden size 64" in str(slot.reason)
        assert [reading.values is None for reading in slot.readings] == [True, True, False, False]
    assert 2 in said.shortlist(1, 3)
    assert json.dumps([slot.reason for slot in said.slots])


def test_plan_counts_by_hand(case):
    checkpoint, states = open_checkpoint(case[0]), open_states(case[1])
    said = plan(checkpoint, states, Limits(tokens=100), steps=2, trainer="eagle")
    h, rows, a = 64, 24 * 11, 8  # h[0]..h[6] and h[N]
    fc, kv, body = 3 * h * h, 2 * 32 * 2 * h, 64 * 2 * h + h * 64 + 3 * h * 96
    assert (said.boundaries, said.exhaustive, said.attended, said.tokens) == (a, a**3, rows, 100)
    assert said.parameters == fc + kv + body + 120 * h
    work = {stage.name: stage.work for stage in said.stages}
    assert work["projections"] == a * rows * (fc + 3 * kv // 2) + rows * h * a * a * 6
    assert work["replays"] == 2 * (rows * fc + 100 * 2 * (body + kv + 120 * h))
    assert work["witness"] == 5 * 64**3 * (8 + 3 + 128 + 8 * 3 * 5)  # 10 H^3 operations each
    assert said.dtype == "float32"
    assert said.mapped == 0
    assert all(stage.seconds >= 0 for stage in said.stages)
    assert json.loads(json.dumps(said.to_json()))["seconds"] == pytest.approx(said.seconds)
    assert "of 512 tuples on at most 100 tokens" in said.lines()[0]


def test_tuples_of_a_plan_are_about_those_scored(case):
    subject = subject_of(case)
    found = search(Pool(subject.drafter, subject.states))
    said = plan(open_checkpoint(case[0]), subject.states, trainer="eagle")
    assert found.tuples / 3 < said.tuples < 3 * found.tuples


def test_search_and_a_loop_of_speculators_agree(case):
    pytest.importorskip(
        "speculators",
        reason="speculators is not installed: `make test` installs it, without its dependencies",
    )
    from at_size import side_by_side

    found = side_by_side(*case)
    assert found["same_best"]
    assert found["search"]["best"] == "h[0], h[2], h[5]"
    assert found["loop"]["tuples"] == 7**3
    assert found["likelihood_differs_by"] < 1e-4


def test_the_planted_wiring_is_decisive(case):
    """Else a search on such a case shows nothing."""
    subject = subject_of(case)
    pool = Pool(subject.drafter, subject.states)
    tokens = torch.arange(len(pool))
    right = float(pool.log_likelihood(SIZES.taps, tokens).mean())
    assert right > -2.5
    for slot in range(3):
        near = replace(SIZES, taps=(*SIZES.taps[:slot], 3, *SIZES.taps[slot + 1 :])).taps
        assert float(pool.log_likelihood(near, tokens).mean()) < right - 0.1
