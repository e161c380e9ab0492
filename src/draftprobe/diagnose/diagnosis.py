"""From a drafter, states, a served wiring and claims to a Verdict: the drafter or the wiring?

Runs searches, weights' witness and replays, and hands on what they say. Writes no file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from draftprobe.diagnose.bench import Bench, Sample
from draftprobe.diagnose.claims import Claims, beats, checked
from draftprobe.diagnose.evidence import Evidence, few, judge
from draftprobe.diagnose.joint import joint
from draftprobe.diagnose.pool import Limits, Pool
from draftprobe.diagnose.quality import Quality, quality
from draftprobe.diagnose.search import Search, search
from draftprobe.diagnose.slots import SlotEvidence, combine, confidence, wanted_taps
from draftprobe.diagnose.suspects import Suspect, suspects
from draftprobe.diagnose.told import findings as _findings
from draftprobe.diagnose.told import headline as _headline
from draftprobe.diagnose.told import unjudged as _unjudged
from draftprobe.diagnose.verdict import Confidence, Kind, NotEvaluated, Verdict
from draftprobe.diagnose.windows import dear
from draftprobe.diagnose.wire_evidence import Joint
from draftprobe.diagnose.wires import Facts, changed, facts_of
from draftprobe.diagnose.witness import Witness, sample_states, testify
from draftprobe.drafter.model import Drafter
from draftprobe.drafter.parts import Parts, parts_of, rewire
from draftprobe.drafter.wiring import Rope, Tap, Wiring, taps_name
from draftprobe.errors import InputError
from draftprobe.measure.interval import Estimate, ratio
from draftprobe.measure.replay import Observations, observe
from draftprobe.measure.summary import paired, summarise
from draftprobe.states.record import States

_REPLAYED = 8  # members of a slot's tie set whose cost is replayed
STEPS = 3
"""Draft steps of the chains on which wires are compared."""

Say = Callable[[str], None]
Replay = Callable[[tuple[Tap, ...]], Observations]
"""The drafter's weights replayed with other taps."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What is served, as far as it is known.

    Attributes:
        taps: boundaries; None if not known.
        wiring: every other wire; its taps are not looked at.
        parts: what else can be wired; rope: the target's, None if not known.
        trained: what the drafter's own config speaks of, None if not known.
    """

    taps: tuple[Tap, ...] | None
    wiring: Wiring
    parts: Parts
    rope: Rope | None = None
    trained: Wiring | None = None

    def facts(self, drafter: Drafter, states: States) -> Facts:
        """What alternatives to it depend on."""
        return facts_of(drafter, self.parts, states.provenance.layers, self.rope, self.trained)


class Questions:
    """What a diagnosis asks of weights and text; each search is run once for its wires.

    Attributes:
        witness: what fc's weights say of the taps, whatever the other wires.
    """

    def __init__(
        self,
        drafter: Drafter,
        states: States,
        served: Served,
        limits: Limits,
        seed: int,
        say: Say = lambda stage: None,
    ) -> None:
        """Question the weights; all else is asked when it is needed."""
        self.drafter, self.states, self.served = drafter, states, served
        self.limits, self.seed, self.say = limits, seed, say
        self._key: Wiring | None = None
        self._found: tuple[Pool, Search] | None = None
        say("asking fc's weights what they were trained on")
        self.witness = testify(drafter.fc.weight.detach(), sample_states(states), seed)

    def wired(self, wiring: Wiring) -> Drafter:
        """The drafter under a wiring."""
        return rewire(self.drafter, wiring, self.served.parts)

    def searched(self, wiring: Wiring) -> tuple[Pool, Search]:
        """The taps' search under a wiring; the last one is kept, as its pool is large."""
        key = self.key(wiring)
        if self._found is None or key != self._key:
            self._found = None
            slots, many = self.drafter.shape.taps, len(self.states.boundaries)
            self.say(f"projecting {many} boundaries through {slots} slots")
            pool = Pool(self.wired(key), self.states, limits=self.limits)
            self.say("searching for the taps that the weights want, by replay")
            self._key, self._found = key, (pool, search(pool, seed=self.seed))
        return self._found

    def key(self, wiring: Wiring) -> Wiring:
        """What the search of taps depends on: no taps, and no wire that shows from step 2 on."""
        some = (self.states.boundaries[0],) * self.drafter.shape.taps
        return replace(wiring, taps=some, feedback="pre_norm", token_advance=1, position_advance=1)

    def propose(self, wiring: Wiring, look: bool) -> tuple[Wiring, ...]:
        """Taps worth trying; see ``joint.Propose``."""
        named = [slot.named[0] for slot in self.witness.slots if slot.named]
        whole = len(named) == self.drafter.shape.taps
        given = [self.served.taps, tuple(named) if whole else None]
        if look:
            pool, found = self.searched(wiring)
            slots = combine(found, self.witness)
            wanted = wanted_taps(found, slots, pool)
            alone = tuple(
                slot.weights[0] if slot.weights else tap
                for slot, tap in zip(slots, wanted, strict=True)
            )
            given = [wanted, *given, alone]
        return tuple(replace(wiring, taps=taps) for taps in dict.fromkeys(given) if taps)

    def bench(self, steps: int) -> Bench | None:
        """Chains to compare wires on, of as many steps as the text allows; None if of none."""
        base = self.wired(self.key(self.served.wiring))
        sample = Sample(chains=2 if dear(base) else 8, seed=self.seed)
        for length in range(min(steps, STEPS), 0, -1):
            try:
                return Bench(base, self.served.parts, self.states, length, sample)
            except InputError:
                continue
        return None

    def replay(self, wiring: Wiring, steps: int) -> Observations:
        """The drafter under a wiring on all counted tokens."""
        return observe(self.wired(wiring), self.states, steps)


def diagnose(
    drafter: Drafter,
    states: States,
    served: Served | tuple[Tap, ...] | None,
    claims: Claims,
    steps: int,
    not_evaluated: Sequence[NotEvaluated],
    provenance: dict[str, Any],
    say: Say = lambda stage: None,
    limits: Limits | None = None,
    seed: int = 0,
) -> tuple[Verdict, Search, Witness]:
    """Search for the wanted wiring, question the weights, replay, judge.

    Args:
        drafter: wired in any way; its taps are not looked at.
        states: with the boundaries that are candidates.
        served: what the server runs; taps alone where its other wires are the drafter's own.
        claims: what was claimed.
        steps: draft steps per chain.
        not_evaluated: what the caller did not check.
        provenance: goes into the verdict.
        say: told each stage.
        limits: text that the search may take.
        seed: of samples and null draws.

    Raises:
        InputError: states and drafter do not fit.
    """
    if not isinstance(served, Served):
        served = Served(served, drafter.wiring, parts_of(drafter))
    ask = Questions(drafter, states, served, limits or Limits(), seed, say)
    evidence, found, bench = investigate(ask, claims, steps)
    wanted = evidence.joint.wanted if evidence.joint else served.wiring
    wanted = replace(wanted, taps=evidence.wanted)
    suspected: tuple[Suspect, ...] = ()
    if claims.rates and bench is not None:
        say("replaying every single cut for the served rates")
        suspected = suspects(
            bench, served.facts(drafter, states), wanted, served.taps, claims.rates
        )
    say("asking how good weights and text are")
    told = quality(ask.wired(wanted), states, served.parts)
    verdict = verdict_of(evidence, not_evaluated, provenance, suspected, told)
    return verdict, found, ask.witness


def investigate(
    ask: Questions, claims: Claims, steps: int
) -> tuple[Evidence, Search, Bench | None]:
    """All wires together, then the taps under the wanted ones; the bench is None without chains."""
    served, states, say = ask.served, ask.states, ask.say
    bench, wires = ask.bench(steps), None
    if bench is not None:
        facts = served.facts(ask.drafter, states)
        say("replaying each wire's other values from the served wiring")
        some = served.taps or ask.key(served.wiring).taps
        wires = joint(bench, facts, replace(served.wiring, taps=some), ask.propose, say)
    wanted = wires.wanted if wires else served.wiring
    pool, found = ask.searched(wanted)
    say("replaying the best wiring" + (" and the served one" if served.taps else ""))

    def replay(taps: tuple[Tap, ...]) -> Observations:
        return ask.replay(replace(wanted, taps=taps), steps)

    evidence = weigh(found, ask.witness, pool, replay, states, served.taps, claims)
    if wires is not None:
        evidence = _with_wires(evidence, wires, ask, steps)
    return evidence, found, bench


def _with_wires(evidence: Evidence, wires: Joint, ask: Questions, steps: int) -> Evidence:
    """The evidence with what the joint search found, what is served replayed as it is served."""
    served = ask.served
    evidence = replace(evidence, joint=wires)
    if not evidence.cut:
        return evidence
    wanted = replace(wires.wanted, taps=evidence.wanted)
    taps = served.taps or evidence.wanted
    fed = ask.replay(replace(served.wiring, taps=taps), steps)
    name = f"served: {taps_name(taps)}, " + ", ".join(
        f"{wire.wire} {wire.served}" for wire in evidence.cut
    )
    best = ask.replay(wanted, steps)
    losses = {
        wire.name: paired(ask.replay(wire.put(wanted, wire.value(served.wiring)), steps), best)
        for wire in changed(wanted, replace(served.wiring, taps=evidence.wanted))
    }
    return replace(
        evidence,
        fed=summarise(fed, name),
        losses={name: loss.acceptance for name, loss in losses.items()},
    )


def weigh(
    found: Search,
    witness: Witness | None,
    pool: Pool,
    replay: Replay,
    states: States,
    served: tuple[Tap, ...] | None,
    claims: Claims,
) -> Evidence:
    """Replay what the search and the weights leave, and what is served; see :class:`Evidence`."""
    slots = combine(found, witness)
    wanted = wanted_taps(found, slots, pool)
    best, fed = replay(wanted), replay(served) if served else None
    evidence = Evidence(
        slots=slots,
        wanted=wanted,
        served=served,
        best=summarise(best, "wanted: " + taps_name(wanted)),
        fed=summarise(fed, "served: " + taps_name(served)) if fed and served else None,
        difference=paired(fed, best) if fed else None,
        over_guess=_over_guess(best, states),
        undecided=found.undecided,
        spread=None,
        claims=claims,
        missing=len(set(range(states.provenance.layers + 1)) - set(states.boundaries)),
        recorded=len(states.boundaries),
    )
    if few(slots) or not evidence.served_tied:
        return evidence
    return replace(evidence, spread=_spread(best, replay, wanted, slots))


def _over_guess(best: Observations, states: States) -> Estimate:
    """Step-1 accuracy less that of always guessing the text's own most frequent token."""
    starts = torch.tensor([0, *states.lengths]).cumsum(0)[:-1]
    labels = states.tokens[starts[best.sequence] + best.slot + 2]
    valid = best.valid[0]
    guess = labels[valid].mode().values
    gain = best.correct[0].long() - ((labels == guess) & valid).long()
    return ratio(best.sums(gain), best.sums(valid))


def _spread(
    best: Observations, replay: Replay, wanted: tuple[Tap, ...], slots: Sequence[SlotEvidence]
) -> Estimate | None:
    """The tie set's member that differs most from the wanted wiring, one slot swapped at a time."""
    swaps: list[tuple[Tap, ...]] = [
        (*wanted[: slot.slot], tap, *wanted[slot.slot + 1 :])
        for slot in slots
        for tap in slot.tied[:_REPLAYED]
        if tap != wanted[slot.slot]
    ]
    costs = [paired(best, replay(taps)).acceptance for taps in swaps]
    return max(costs, key=lambda cost: abs(cost.value or 0.0)) if costs else None


def verdict_of(
    evidence: Evidence,
    not_evaluated: Sequence[NotEvaluated],
    provenance: dict[str, Any],
    suspected: Sequence[Suspect] = (),
    told: Quality | None = None,
) -> Verdict:
    """What the evidence says, with all it rests on."""
    kind = judge(evidence)
    return Verdict(
        verdict=kind,
        confidence=_confidence(kind, evidence),
        headline=_headline(kind, evidence),
        wanted=evidence.wanted,
        served=evidence.served,
        tied=tuple(slot.tied for slot in evidence.slots),
        findings=tuple(_findings(evidence)),
        replays=(evidence.best, evidence.fed) if evidence.fed else (evidence.best,),
        not_evaluated=(*_unjudged(evidence), *not_evaluated),
        slots=evidence.slots,
        claims=checked(evidence.claims, evidence.best, evidence.fed or evidence.best),
        wires=evidence.joint,
        suspects=tuple(suspected),
        quality=told,
        provenance=provenance | {"proved": evidence.worse and not evidence.missing},
    )


def _confidence(kind: Kind, evidence: Evidence) -> Confidence:
    """As the slots have it; a cut wire is sure if it costs accepted drafts on all tokens too.

    Low where a boundary that was not recorded could be wanted.
    """
    if kind == "undecided" or evidence.missing:
        return "low"
    sure = confidence(evidence.slots)
    losses = [evidence.losses.get(wire.wire) for wire in evidence.cut]
    if sure == "low" or not losses:
        return sure
    tapped = evidence.served_tied is False and evidence.worse
    if all(loss is not None and beats(loss) for loss in losses):
        return sure if tapped else "high"
    return "medium"
