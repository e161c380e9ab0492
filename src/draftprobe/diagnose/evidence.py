"""All that a verdict is judged on, and the judgement in one word.

Knows numbers that others measured. Thin evidence gives 'undecided', never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from draftprobe.diagnose.claims import Claims, acceptance_place, accuracy_met, beats
from draftprobe.diagnose.joint import HARM
from draftprobe.diagnose.slots import SlotEvidence
from draftprobe.diagnose.verdict import Kind
from draftprobe.diagnose.wire_evidence import Joint, WireEvidence
from draftprobe.drafter.wiring import Tap
from draftprobe.measure.interval import Estimate
from draftprobe.measure.summary import Paired, Summary

HARMLESS = HARM
"""Expected acceptance length that members of a tie set may differ by and still be called one."""
FEW = 3
"""Members of a tie set in one slot that still name a wiring."""


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
        joint: what the joint search says of the other wires; None where it was not run.
        losses: acceptance length lost by each wire that is cut, by name, on all tokens.
        missing: boundaries of h[0]..h[L] that were not recorded, any of which could be wanted.
        recorded: boundaries that were.
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
    joint: Joint | None = None
    losses: Mapping[str, Estimate] = field(default_factory=dict)
    missing: int = 0
    recorded: int = 0

    @property
    def cut(self) -> tuple[WireEvidence, ...]:
        """Wires whose served value is beaten; none where the drafter merely guesses."""
        return self.joint.of("cut") if self.joint and beats(self.over_guess) else ()

    @property
    def unclear(self) -> tuple[WireEvidence, ...]:
        """Wires of which it is not decided whether they are cut."""
        return self.joint.of("open", "ambiguous") if self.joint else ()

    @property
    def miswired(self) -> bool:
        """The taps or another wire are cut, and the server accepts no more than that allows."""
        taps = self.served_tied is False and self.worse
        return (taps or bool(self.cut)) and self.place != "above"

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
        return few(self.slots) or (self.spread is not None and _within(self.spread, HARMLESS))

    @property
    def worse(self) -> bool:
        """The served wiring is worse by both paired intervals."""
        gain = self.difference
        return gain is not None and beats(gain.log_likelihood[0]) and beats(gain.acceptance)

    @property
    def place(self) -> str | None:
        """Where the served acceptance stands to the walk under the served wiring."""
        return acceptance_place(self.claims.acceptance, self.fed or self.best)


def few(slots: Sequence[SlotEvidence]) -> bool:
    """Every slot's tie set is small enough to name a wiring."""
    return all(len(slot.tied) <= FEW for slot in slots)


def _within(estimate: Estimate, bound: float) -> bool:
    low, high = estimate.low, estimate.high
    return low is not None and high is not None and -bound < low and high < bound


def judge(evidence: Evidence) -> Kind:
    """The verdict, in one word; the order of the questions is the order of trust."""
    missed = not evidence.missing and accuracy_met(evidence.claims.accuracy, evidence.best) is False
    if evidence.over_guess.low is None:
        return "undecided"
    if not beats(evidence.over_guess):  # weights that say nothing accuse no wire
        return "quality" if missed else "undecided"
    if evidence.miswired:
        return "several" if missed else "wiring"
    if missed:
        return "quality"
    if evidence.place == "below":
        return "wiring"
    if evidence.missing:
        return "undecided"
    if evidence.served_tied and evidence.named and not evidence.cut and not evidence.unclear:
        return "healthy"
    return "undecided"
