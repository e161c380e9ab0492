"""Which single cut would have produced the rates that a server shows? A ranking, never a verdict.

From numbers that everybody has: joint acceptance rates per draft position. Every single cut of the
wanted wiring is replayed; a cut is the nearer, the fewer standard errors its rates lie from those
given. Only `compare` or a proof confirms one: an engine's own state can look like any of them.

    distance^2 = mean over positions of (r - r^)^2 / (se^2 + ROUNDING^2)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from draftprobe.diagnose.bench import Bench
from draftprobe.diagnose.taps import taps_finding
from draftprobe.diagnose.wires import Facts, neighbours, told
from draftprobe.drafter.wiring import Tap, Wiring, taps_name
from draftprobe.measure.interval import Estimate

ROUNDING = 0.01
"""How far rates in a log are taken to be off: rounded, and of other text."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A single cut, or none.

    Attributes:
        wire: its name; ``none`` for the wanted wiring itself.
        value: in words.
        finding: id of the finding that it would be; None for none.
        rates: joint acceptance rate per draft position that it would give, with intervals.
        distance: from the rates given, in standard errors.
    """

    wire: str
    value: str
    finding: str | None
    rates: tuple[Estimate, ...]
    distance: float


def suspects(
    bench: Bench,
    facts: Facts,
    wanted: Wiring,
    served: Sequence[Tap] | None,
    rates: Sequence[float],
) -> tuple[Suspect, ...]:
    """Every single cut of ``wanted``, the nearest to the joint ``rates`` first.

    Positions beyond the bench's steps are not compared.
    """
    found = []
    for wire, value, finding, wiring in _cuts(bench, facts, wanted, served):
        steps = bench.summary(wiring, value).steps
        predicted = tuple(step.joint for step in steps)
        far = _distance(predicted, rates)
        if far is not None:
            found.append(Suspect(wire, value, finding, predicted, far))
    return tuple(sorted(found, key=lambda suspect: suspect.distance))


def _cuts(
    bench: Bench, facts: Facts, wanted: Wiring, served: Sequence[Tap] | None
) -> Iterator[tuple[str, str, str | None, Wiring]]:
    yield "none", "as wanted", None, wanted
    for taps in _other_taps(bench, facts, wanted.taps, served):
        identifier, _ = taps_finding(taps, wanted.taps)
        yield "taps", taps_name(taps), identifier, replace(wanted, taps=taps)
    for other, wire in neighbours(wanted, facts, faults=True).items():
        if bench.allows(other):
            yield wire.name, told(wire, other), wire.finding, other


def _other_taps(
    bench: Bench, facts: Facts, taps: tuple[Tap, ...], served: Sequence[Tap] | None
) -> list[tuple[Tap, ...]]:
    """One late, one early, reversed, rotated, and what is said to be served."""
    found: list[tuple[Tap, ...]] = [taps[::-1], (*taps[1:], taps[0]), (taps[-1], *taps[:-1])]
    for step in (1, -1):
        found.append(tuple(tap if tap == "N" else tap + step for tap in taps))
    if served is not None:
        found.append(tuple(served))
    there = bench.states.boundaries
    return [
        other
        for other in dict.fromkeys(found)
        if other != taps and all(tap in there for tap in other)
    ]


def _distance(predicted: Sequence[Estimate], rates: Sequence[float]) -> float | None:
    squares = []
    for estimate, rate in zip(predicted, rates, strict=False):
        if estimate.value is None or estimate.low is None or estimate.high is None:
            return None
        error = (estimate.high - estimate.low) / 4  # half of a 95 % interval is two of them
        squares.append((estimate.value - rate) ** 2 / (error**2 + ROUNDING**2))
    return sqrt(sum(squares) / len(squares)) if squares else None
