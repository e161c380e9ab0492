"""Search and witness on trained drafters of a real target, each on held-out text."""

from functools import cache

import pytest
import real

from draftprobe.diagnose.claims import Claims
from draftprobe.diagnose.diagnosis import judge, weigh
from draftprobe.diagnose.pool import Pool, rewired
from draftprobe.diagnose.search import sample, search
from draftprobe.diagnose.slots import combine, wanted_taps
from draftprobe.diagnose.witness import sample_states
from draftprobe.diagnose.witness import testify as question
from draftprobe.drafter import golden
from draftprobe.measure.replay import observe
from draftprobe.measure.summary import paired

RESAMPLES = 50


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    return real.held_out(tmp_path_factory.mktemp("held_out") / "states.safetensors")


@pytest.fixture(scope="module")
def asked(states):
    """Each drafter with its pool, search and witness, asked once."""

    @cache
    def ask(name):
        drafter = real.drafter(real.DATA / name)
        pool = Pool(drafter, states)
        witness = question(drafter.fc.weight.detach(), sample_states(states), 0)
        return drafter, pool, search(pool), witness

    return ask


@pytest.mark.parametrize("name", real.TRAINED)
def test_golden_file_names_what_it_was_trained_on(name):
    assert golden.read(real.DATA / name).wiring.taps == real.TRAINED[name]


@pytest.mark.parametrize("name", real.TRAINED)
def test_trained_taps_are_recovered(name, asked, states):
    drafter, pool, found, witness = asked(name)
    slots = combine(found, witness)
    print(name, [(slot.replay, slot.weights, slot.silent) for slot in slots])
    trained = real.TRAINED[name]
    assert not any(slot.disagree for slot in slots)
    for tap, slot in zip(trained, slots, strict=True):
        assert tap in slot.tied
        assert len(slot.tied) <= 3
    wanted = wanted_taps(found, slots, pool)
    if wanted != trained:  # told apart by nothing, so it must cost nothing either
        a, b = (observe(rewired(drafter, taps), states, 5) for taps in (wanted, trained))
        assert abs(paired(a, b).acceptance.value) < 0.02


@pytest.mark.parametrize("name", real.SMALL)
def test_healthy_over_resamples_is_never_called_miswired(name, asked, states):
    """Among the trained boundaries, their neighbours and some others; benchmarks/ takes all."""
    drafter, pool, _, witness = asked(name)
    trained = real.TRAINED[name]
    near = {tap + step for tap in trained for step in (-1, 0, 1)} | {6, 14, 22, 30}
    candidates = [tap for tap in states.boundaries if tap in near]

    @cache
    def whole(taps):
        return observe(rewired(drafter, taps), states, 2)

    kinds = []
    for seed in range(RESAMPLES):
        chosen = sample(pool, seed, tokens=192, sequences=32)
        kept = pool.sequence[chosen].unique()
        evidence = weigh(
            search(pool, chosen, candidates, seed=seed, starts=1), witness, pool,
            lambda taps, kept=kept: whole(taps).only(kept), states, trained, Claims(),
        )  # fmt: skip
        kinds.append(judge(evidence))
    print(name, {kind: kinds.count(kind) for kind in set(kinds)})
    assert set(kinds) <= {"healthy", "undecided"}
    assert kinds.count("healthy") >= RESAMPLES // 2


def test_few_tokens_name_how_many_would_decide(asked, states):
    """Over 10 resamples, the number at which a search first decides, against what was told."""
    _, pool, _, _ = asked("t12_24")
    every = range(0, 31, 4)  # so coarse that this text can tell them apart
    ratios = []
    for seed in range(10):
        order = sample(pool, seed)
        few = sample(pool, seed, tokens=64, sequences=16)
        told = search(pool, few, every, seed=seed).needed
        if told is None:
            continue
        for tokens in (64, 128, 256, 512, 1024, len(order)):
            if search(pool, order[:tokens], every, seed=seed).decided:
                ratios.append(tokens / told.tokens)
                break
    print(sorted(ratios))
    assert len(ratios) >= 5
    assert 1 / 3 <= sorted(ratios)[len(ratios) // 2] <= 3
