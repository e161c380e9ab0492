"""From a drafter, states, a served wiring and claims to a Verdict: the drafter or the wiring?

Runs search, weights' witness and replays, and judges what they say. Writes no file. Thin evidence
gives 'undecided', never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from draftprobe.diagnose.claims import Claims, acceptance_place, accuracy_met, beats, checked
from draftprobe.diagnose.pool import Limits, Pool, rewired
from draftprobe.diagnose.search import Search, search
from draftprobe.diagnose.slots import SlotEvidence, combine, confidence, wanted_taps
from draftprobe.diagnose.taps import taps_finding
from draftprobe.diagnose.verdict import Finding, Kind, NotEvaluated, Verdict
from draftprobe.diagnose.witness import Witness, sample_states, testify
from draftprobe.drafter.model import Drafter
from draftprobe.drafter.wiring import Tap, taps_name
from draftprobe.measure.interval import Estimate, ratio
from draftprobe.measure.replay import Observations, observe
from draftprobe.measure.summary import Paired, Summary, paired, summarise
from draftprobe.states.record import States

HARMLESS = 0.02
"""Expected acceptance length that members of a tie set may differ by and still be called one."""
FEW = 3
"""Members of a tie set in one slot that still name a wiring."""

_REPLAYED = 8  # members of a slot's tie set whose cost is replayed

Say = Callable[[str], None]
Replay = Callable[[tuple[Tap, ...]], Observations]
"""The drafter's weights replayed with other taps."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a verdict is judged on.

    Attributes:
        slots: what each slot wants; wanted: the best wiring's taps; served: None if not known.
        best: replay of the wanted wiring; fed: of the served one, if it is another.
        difference: best less fed, paired.
        over_guess: step 1 of the best wiring less the best constant guess, paired.
        undecided: why the search did not decide.
        spread: of expected acceptance in the tie set; measured only where the served wiring is in
            it and more than a few are tied.
        claims: what was claimed.
    """

    slots: tuple[SlotEvidence, ...]
    wanted: tuple[Tap, ...]
    served: tuple[Tap, ...] | None
    best: Summary
    fed: Summary | None
    difference: Paired | None
    over_guess: Estimate
    undecided: str | None
    spread: Estimate | None
    claims: Claims

    @property
    def served_tied(self) -> bool | None:
        """The served wiring cannot be told from the wanted one; None if it is not known."""
        if self.served is None:
            return None
        pairs = zip(self.served, self.slots, strict=True)
        return self.served == self.wanted or all(tap in slot.tied for tap, slot in pairs)

    @property
    def named(self) -> bool:
        """Every slot has at most a few tied boundaries, or they differ by next to nothing."""
        return _few(self.slots) or (self.spread is not None and _within(self.spread, HARMLESS))

    @property
    def worse(self) -> bool:
        """The served wiring is worse by both paired intervals."""
        gain = self.difference
        return gain is not None and beats(gain.log_likelihood[0]) and beats(gain.acceptance)

    @property
    def place(self) -> str | None:
        """Where the served acceptance stands to the walk under the served wiring."""
        return acceptance_place(self.claims.acceptance, self.fed or self.best)


def _few(slots: Sequence[SlotEvidence]) -> bool:
    return all(len(slot.tied) <= FEW for slot in slots)


def _within(estimate: Estimate, bound: float) -> bool:
    low, high = estimate.low, estimate.high
    return low is not None and high is not None and -bound < low and high < bound


def judge(evidence: Evidence) -> Kind:
    """The verdict, in one word; the order of the questions is the order of trust."""
    missed = accuracy_met(evidence.claims.accuracy, evidence.best) is False
    if evidence.over_guess.low is None:
        return "undecided"
    if not beats(evidence.over_guess):  # weights that say nothing accuse no wire
        return "quality" if missed else "undecided"
    if evidence.served_tied is False and evidence.worse and evidence.place != "above":
        return "several" if missed else "wiring"
    if missed:
        return "quality"
    if evidence.place == "below":
        return "wiring"
    if evidence.served_tied and evidence.named:
        return "healthy"
    return "undecided"


def diagnose(
    drafter: Drafter,
    states: States,
    served: tuple[Tap, ...] | None,
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
        served: what the server feeds, if known.
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
    say(f"projecting {len(states.boundaries)} boundaries through {drafter.shape.taps} slots")
    pool = Pool(drafter, states, limits=limits or Limits())
    say("searching for the taps that the weights want, by replay")
    found = search(pool, seed=seed)
    say("asking fc's weights what they were trained on")
    witness = testify(drafter.fc.weight.detach(), sample_states(states), seed)
    say("replaying the best wiring" + (" and the served one" if served else ""))

    def replay(taps: tuple[Tap, ...]) -> Observations:
        return observe(rewired(drafter, taps), states, steps)

    evidence = weigh(found, witness, pool, replay, states, served, claims)
    return verdict_of(evidence, not_evaluated, provenance), found, witness


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
    )
    if _few(slots) or not evidence.served_tied:
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
    evidence: Evidence, not_evaluated: Sequence[NotEvaluated], provenance: dict[str, Any]
) -> Verdict:
    """What the evidence says, with all it rests on."""
    kind = judge(evidence)
    sure = confidence(evidence.slots) if kind != "undecided" else "low"
    return Verdict(
        verdict=kind,
        confidence=sure,
        headline=_headline(kind, evidence),
        wanted=evidence.wanted,
        served=evidence.served,
        tied=tuple(slot.tied for slot in evidence.slots),
        findings=tuple(_findings(evidence)),
        replays=(evidence.best, evidence.fed) if evidence.fed else (evidence.best,),
        not_evaluated=(*_unjudged(evidence), *not_evaluated),
        slots=evidence.slots,
        claims=checked(evidence.claims, evidence.best, evidence.fed or evidence.best),
        provenance=provenance | {"proved": evidence.worse},
    )


def _headline(kind: Kind, evidence: Evidence) -> str:
    best, fed = evidence.best.steps[0].top1, evidence.fed
    text = f"the weights want {taps_name(evidence.wanted)}: next token {best.value:.3f}"
    if evidence.served is None:
        text += "; what the server feeds is not known"
    elif fed:
        same = "cannot be told apart, " if evidence.served_tied else ""
        text += f"; served {taps_name(evidence.served)}: {same}{fed.steps[0].top1.value:.3f}"
    if kind == "undecided":
        return f"{_why_undecided(evidence)}; so far {text}"
    if kind == "wiring" and not (evidence.served_tied is False and evidence.worse):
        return f"another wire remains, or the engine: {_off(evidence)}; {text}"
    if kind in ("quality", "several"):
        text += f"; claimed {evidence.claims.accuracy:.3f} is not reached under any wiring"
    return text


def _why_undecided(evidence: Evidence) -> str:
    if evidence.over_guess.low is None:
        return evidence.undecided or "one sequence has no interval: record at least 16 sequences"
    if not beats(evidence.over_guess):
        guess = evidence.over_guess
        return (
            "under its best wiring the drafter does not beat guessing the most frequent token "
            f"({guess.value:+.3f}, {guess.low:+.3f} to {guess.high:+.3f}), so no wire can be judged"
        )
    if evidence.served is None:
        return "no served wiring to judge (give --served or --engine)"
    if evidence.place == "above" and evidence.served_tied is False:
        fed = taps_name(evidence.served or ())
        return f"the server does not feed {fed}, or drafts otherwise: {_off(evidence)}"
    if evidence.served_tied is False:
        return "the served wiring is another one, but no loss was measured"
    return evidence.undecided or "the tie set is too wide to call the served wiring right"


def _off(evidence: Evidence) -> str:
    walk = (evidence.fed or evidence.best).acceptance
    return (
        f"the walk predicts {walk.value:.2f} ({walk.low:.2f} to {walk.high:.2f}) tokens per pass, "
        f"served {evidence.claims.acceptance:.2f}"
    )


def _findings(evidence: Evidence) -> list[Finding]:
    found = []
    if evidence.served_tied is False and evidence.served and evidence.difference:
        found.append(_taps_finding(evidence, evidence.served, evidence.difference))
    if accuracy_met(evidence.claims.accuracy, evidence.best) is False:
        found.append(_quality_finding(evidence))
    if evidence.place == "above" and evidence.served_tied is False:
        found.append(
            Finding(
                id="E102",
                title="the server accepts more than the served taps allow",
                wire=None,
                severity=None,
                served=f"{evidence.claims.acceptance:.2f}",
                wanted=None,
                evidence=_off(evidence)
                + ": it feeds other taps, or drafts a tree, or the text is not comparable",
            )
        )
    if evidence.place == "below" and beats(evidence.over_guess):
        found.append(
            Finding(
                id="E101",
                title="the server accepts less than its own wiring allows",
                wire=None,
                severity=None,
                served=f"{evidence.claims.acceptance:.2f}",
                wanted=f"{(evidence.fed or evidence.best).acceptance.value:.2f}",
                evidence=_off(evidence)
                + ": another wire than the taps is cut, or the engine's state is wrong",
            )
        )
    return found


def _taps_finding(evidence: Evidence, served: tuple[Tap, ...], gain: Paired) -> Finding:
    identifier, title = taps_finding(served, evidence.wanted)
    accuracy, likelihood = gain.accuracy[0], gain.log_likelihood[0]
    return Finding(
        id=identifier,
        title=title,
        wire="taps",
        severity=gain.acceptance,
        served=taps_name(served),
        wanted=taps_name(evidence.wanted),
        evidence=(
            f"paired on the same {accuracy.n:,} tokens of {accuracy.clusters} sequences: "
            f"next token {_signed(accuracy, 3)}, log-likelihood {_signed(likelihood, 2)} nats"
        ),
    )


def _quality_finding(evidence: Evidence) -> Finding:
    top = evidence.best.steps[0].top1
    return Finding(
        id="Q101",
        title="training's accuracy is not reached under any wiring",
        wire=None,
        severity=None,
        served=None,
        wanted=f"{evidence.claims.accuracy:.3f}",
        evidence=(
            f"next token {top.value:.3f} (at most {top.high:.3f}) under the best wiring, claimed "
            f"{evidence.claims.accuracy:.3f}; the draft vocabulary holds "
            f"{evidence.best.coverage.value:.3f} of this text's tokens"
        ),
    )


def _signed(estimate: Estimate, digits: int) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "not measured"
    return (
        f"{estimate.value:+.{digits}f} ({estimate.low:+.{digits}f} to {estimate.high:+.{digits}f})"
    )


def _unjudged(evidence: Evidence) -> list[NotEvaluated]:
    out = []
    if evidence.served is None:
        out.append(NotEvaluated("served wiring", "give --served or --engine"))
    if evidence.claims.accuracy is None:
        out.append(NotEvaluated("quality", "no claim to hold it to (--claimed-accuracy)"))
    if evidence.claims.acceptance is None:
        out.append(NotEvaluated("served acceptance", "not given (--served-acceptance)"))
    elif not (evidence.fed or evidence.best).exact:
        why = "the text is not the target's own greedy text, so the walk is an estimate"
        out.append(NotEvaluated("served acceptance", why))
    return out
