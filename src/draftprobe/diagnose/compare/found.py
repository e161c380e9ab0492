"""What a slot was found to be, and when an explanation counts: the rules that all tests share.

A small error counts only where the next best boundary errs clearly more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from draftprobe.diagnose.compare.view import Candidate, Ranked, View
from draftprobe.drafter.wiring import Tap, tap_name

Treatment = Literal[
    "identity", "scaled", "normalised", "token_scale", "final_norm", "other_norm", "branch",
    "part_of_branch", "part_of_layer", "rotated", "rows", "imprecise", "zero", "constant",
    "not_finite", "tied", "few_rows", "unknown",
]  # fmt: skip
"""What was done to a boundary, or why none is named."""

ACCEPT = 2.0**-4
"""A median error up to here is rounding, somewhere: bfloat16 at 30 layers errs by 0.02, and two
neighbour layers of a trained model lie 0.2 and more apart (both measured)."""
MARGIN = 2.0
"""The next best must err this many times more: it is the other one's noise plus a layer's step."""
FAR, BESIDE = 4.0, 0.02
"""Another explanation must leave FAR times less to be preferred; a factor counts from there on."""
SMALL = 1e-7
NOISY = 0.5
"""Above this error nothing is called a boundary with noise, and vectors are others."""
STRUCTURE = (0.2, 0.3)
"""Noise points no further along a layer's branch than the first median cosine (a target in 4 bits:
0.19 at most, measured), a branch of the layer further than the second."""
ROWS = 8
"""Fewer rows, first ones not counted, decide nothing."""
LONGEST = 512
"""Rows that one sequence gives to the sample."""
MANY_ROWS, MOST_ROWS = 24, 256
"""What a fit of weights or a comparison of Gram matrices needs, and takes."""


@dataclass(frozen=True, slots=True)
class Rival:
    """The explanation that came second among those of the same kind."""

    boundary: Tap
    branch: bool
    shift: int
    median: float


@dataclass(frozen=True, slots=True)
class Found:
    """What a slot holds.

    Attributes:
        boundary: which one, or None.
        treatment: what was done to it.
        shift: rows by which the states come late; early where negative.
        scale: the constant factor, where there is one.
        median: error of this explanation per token.
        rival: the next best.
        tied: boundaries that cannot be told apart.
        cosine: of an unknown slot, the largest median cosine with any boundary, its sign left out;
            None where the rows are too few to say.
        told: the evidence, in words.
    """

    boundary: Tap | None
    treatment: Treatment
    median: float | None = None
    told: str = ""
    shift: int = 0
    scale: float | None = None
    rival: Rival | None = None
    tied: tuple[Tap, ...] = ()
    cosine: float | None = None


def accept(view: View, candidate: Candidate) -> float:
    """Up to where an error is noise; the floor alone where a neighbour is not there to exclude."""
    floor = view.floors.of(candidate.tap)
    return max(ACCEPT, floor) if view.surrounded(candidate.tap) else floor


def clear(view: View, ranked: Ranked) -> bool:
    """Within the noise, and nothing else near."""
    return ranked.errors[0] <= accept(view, ranked[0][0]) and len(near(ranked)) == 1


def gains(view: View, candidate: Candidate, shift: int, error: float) -> bool:
    """It leaves far less than the candidate with nothing done to it."""
    return view.at(view.exact, candidate, shift) > FAR * error


def near(ranked: Ranked) -> tuple[Tap, ...]:
    """The best one's boundary and all that err less than MARGIN times as much."""
    limit = MARGIN * max(ranked.errors[0], SMALL)
    pairs = zip(ranked.places, ranked.errors, strict=True)
    return tuple(place[0].tap for n, (place, error) in enumerate(pairs) if n == 0 or error < limit)


def found_in(
    view: View, ranked: Ranked, treatment: Treatment, told: str, scale: float | None = None
) -> Found:
    """The best candidate as what a slot is, the next one as its rival."""
    candidate, shift, error = ranked[0]
    rival = None
    if len(ranked) > 1:
        other, moved, errs = ranked[1]
        rival = Rival(other.tap, other.branch, moved, errs)
    return Found(candidate.tap, treatment, error, told, shift, scale, rival)


def unit(h: torch.Tensor) -> torch.Tensor:
    """A row divided by its root mean square."""
    return h / h.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-30)


def name_of(candidate: Candidate) -> str:
    """``h[3]``, or ``h[3] - h[2]`` for a branch."""
    if candidate.branch and isinstance(candidate.tap, int):
        return f"{tap_name(candidate.tap)} - {tap_name(candidate.tap - 1)}"
    return tap_name(candidate.tap)


def when(shift: int) -> str:
    """``, 1 row late``; nothing where rows lie in their place."""
    if not shift:
        return ""
    rows = "row" if abs(shift) == 1 else "rows"
    return f", {abs(shift)} {rows} {'late' if shift > 0 else 'early'}"


def errs(error: float) -> str:
    """``errs by 1.4e-03``."""
    return f"errs by {error:.1e}"
