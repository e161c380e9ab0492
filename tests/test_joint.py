"""The joint search on planted texts: cut a wire and it is named; cut none, and none is named.

The texts follow a random drafter's own drafts, made by brute force, so that its wiring is the best
one by construction; nothing but the planted wiring is right, and what changes nothing is a tie.
"""

from dataclasses import replace
from functools import cache

import pytest
import tiny

from draftprobe.diagnose.bench import Bench, Sample
from draftprobe.diagnose.joint import joint
from draftprobe.diagnose.suspects import suspects
from draftprobe.diagnose.wires import BY_NAME, facts_of, neighbours
from draftprobe.drafter.parts import parts_of, rewire
from draftprobe.drafter.wiring import Rope

STEPS = 3
ROPE = Rope(theta=100.0)
PLANTERS = {
    "paper": {},
    "normed": {"pre_fc_norm": "whole", "residual": "normed"},
    "post_norm": {"pre_fc_norm": "per_tap", "feedback": "post_norm"},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")

    @cache
    def make(name):
        made = tiny.drafter(seed=3, **PLANTERS[name])
        states, _ = tiny.planted_states(folder / name, made, count=32, steps=STEPS)
        parts = parts_of(made)
        facts = facts_of(made, parts, 4, ROPE)
        return made.wiring, facts, Bench(made, parts, states, STEPS, Sample(sequences=40))

    return make


def asked(bench, facts, served):
    return joint(bench, facts, served, lambda wiring, look: (wiring,))


def found(answer):
    return {wire.wire: wire.status for wire in answer.wires if wire.loss is not None}


@pytest.mark.parametrize("name", PLANTERS)
def test_a_good_drafter_wired_right_has_no_wire_accused(name, world):
    truth, facts, bench = world(name)
    answer = asked(bench, facts, truth)
    assert answer.wanted == answer.served == truth
    assert not answer.of("cut", "open", "ambiguous", "harmless")
    assert {"half_order", "residual", "vocabulary", "token_shift"} <= {
        wire.wire for wire in answer.of("right")
    }
    assert not answer.guessing


@pytest.mark.parametrize("name", PLANTERS)
def test_every_cut_wire_is_named_and_no_other(name, world):
    truth, facts, bench = world(name)
    named, harmless = set(), set()
    for served, wire in neighbours(truth, facts, faults=True).items():
        if not bench.allows(served):
            continue
        loss = bench.acceptance(served, truth)
        answer = asked(bench, facts, served)
        accused = {entry.wire for entry in answer.of("cut")}
        assert accused <= {wire.name}, (wire.name, served)
        if accused:
            assert answer.wanted == truth
            assert loss.value > 0.02
            named.add(wire.name)
        elif loss.value < 0.1:
            harmless.add(wire.name)
        else:
            pytest.fail(f"{wire.name}: costs {loss.value:.2f} and was not named: {found(answer)}")
    print(name, "named", sorted(named), "harmless", sorted(harmless - named))
    assert {"half_order", "feedback", "token_shift", "token_advance", "state_shift"} <= named
    assert len(named) >= 12


@pytest.mark.parametrize(
    "pair",
    [
        ("feedback", "token_shift"), ("half_order", "residual"), ("vocabulary", "hidden_norm"),
        ("token_advance", "embedding_norm"), ("state_shift", "feedback"),
    ],
)  # fmt: skip
def test_two_cut_wires_are_both_named(pair, world):
    truth, facts, bench = world("paper")
    served = truth
    for name in pair:
        served = next(iter(BY_NAME[name].alternatives(served, facts, True)))
    answer = asked(bench, facts, served)
    assert {entry.wire for entry in answer.of("cut")} == set(pair)
    assert answer.wanted == truth


def test_what_changes_nothing_is_a_tie_with_its_figures(world):
    truth, facts, bench = world("paper")
    answer = asked(bench, facts, replace(truth, position_start=1))
    (entry,) = (wire for wire in answer.wires if wire.wire == "position_start")
    assert entry.status == "not separable"
    assert entry.served == entry.wanted == "1"
    (tied,) = entry.tied
    assert tied.same
    assert tied.acceptance.value == 0
    assert not answer.of("cut")


def test_wrong_taps_and_a_cut_wire_together(world):
    truth, facts, bench = world("paper")
    served = replace(truth, taps=(2, 0, "N"), half_order="hidden_first")

    def propose(wiring, look):  # the taps that another witness names stand second
        return tuple(replace(wiring, taps=taps) for taps in (served.taps, truth.taps))

    answer = joint(bench, facts, served, propose)
    assert answer.wanted == truth
    assert [entry.wire for entry in answer.of("cut")] == ["half_order"]


def test_one_sequence_accuses_nothing(tmp_path):
    made = tiny.drafter(seed=3)
    states, _ = tiny.planted_states(tmp_path / "one", made, count=1, steps=STEPS)
    parts = parts_of(made)
    bench = Bench(made, parts, states, STEPS, Sample())
    facts = facts_of(made, parts, 4, ROPE)
    answer = asked(bench, facts, replace(made.wiring, half_order="hidden_first"))
    assert not answer.of("cut")


def test_a_drafter_that_only_guesses_is_said_to_guess(world):
    _, _, bench = world("paper")
    other = tiny.drafter(seed=11)
    parts = parts_of(other)
    guess = Bench(other, parts, bench.states, STEPS, Sample(sequences=40))
    answer = asked(guess, facts_of(other, parts, 4, ROPE), other.wiring)
    assert answer.guessing
    assert not answer.of("cut")


def test_a_part_of_a_bench_gives_the_same_numbers(world):
    truth, _, bench = world("paper")
    part = bench.part([1, 0])
    assert part.members() == bench.part([1]).members() + bench.part([0]).members()
    whole = bench.observed(truth)
    some = part.observed(truth, 1)
    chosen = whole.only(some.sequence.unique())
    assert int(chosen.correct.sum()) == int(some.correct.sum())


@pytest.mark.parametrize("cut", [{"feedback": "post_norm"}, {"token_shift": 0}, {"window": 1}])
def test_served_rates_point_at_the_cut_that_made_them(cut, world):
    truth, facts, bench = world("paper")
    steps = bench.summary(replace(truth, **cut), "").steps
    rates = [round(step.joint.value, 2) for step in steps]
    ranked = suspects(bench, facts, truth, None, rates)
    (wire,) = cut
    assert ranked[0].wire == wire
    assert ranked[0].finding == BY_NAME[wire].finding
    distances = [suspect.distance for suspect in ranked]
    assert distances == sorted(distances)
    (none,) = (suspect for suspect in ranked if suspect.wire == "none")
    assert none.distance > ranked[0].distance


def test_rewired_drafters_share_their_replays(world):
    truth, _, bench = world("paper")
    before = bench.replays
    bench.observed(truth)
    bench.observed(rewire(bench.drafter, truth, bench.parts).wiring)
    assert bench.replays == before
