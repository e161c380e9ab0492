"""What the user was told and what the server shows: claims, and whether a replay bears them out.

Knows numbers and replays, not wirings. A claim is met, missed, or cannot be judged; never rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from draftprobe.diagnose.verdict import ClaimCheck
from draftprobe.errors import InputError
from draftprobe.measure.interval import Estimate
from draftprobe.measure.summary import Summary


@dataclass(frozen=True, slots=True)
class Claims:
    """All optional.

    Attributes:
        accuracy: next-token accuracy that training claims, 0..1.
        acceptance: served acceptance length, the bonus token counted.
        rates: served joint acceptance rate per draft position, from which the length follows.
    """

    accuracy: float | None = None
    acceptance: float | None = None
    rates: tuple[float, ...] = ()


def parse_claims(accuracy: float | None, acceptance: str | None, steps: int) -> Claims:
    """Claims as given on a command line.

    ``acceptance`` is a length such as 1.8 (1 to steps + 1), or joint rates such as .36,.02,.01:
    the length is then 1 plus their sum.

    Raises:
        InputError: numbers out of range.
    """
    if accuracy is not None and not 0 < accuracy <= 1:
        raise InputError(f"claimed accuracy: expected a share in 0..1, found {accuracy}")
    if acceptance is None:
        return Claims(accuracy)
    try:
        numbers = [float(part) for part in acceptance.split(",")]
    except ValueError:
        raise InputError(
            f"served acceptance: expected a length such as 1.8 or rates such as .36,.02,.01, "
            f"found {acceptance!r}"
        ) from None
    if len(numbers) == 1 and numbers[0] >= 1:
        if numbers[0] > steps + 1:
            raise InputError(
                f"served acceptance: {numbers[0]:g} tokens per pass are more than {steps} drafts "
                "and the bonus token allow; give the server's --steps"
            )
        return Claims(accuracy, numbers[0])
    falling = all(a >= b for a, b in pairwise(numbers))
    if not all(0 <= rate <= 1 for rate in numbers) or not falling or len(numbers) > steps:
        raise InputError(
            f"served acceptance: expected at most {steps} joint rates in 0..1, none above the "
            f"one before it, found {acceptance!r}"
        )
    return Claims(accuracy, 1 + sum(numbers), tuple(numbers))


def accuracy_met(claim: float | None, summary: Summary) -> bool | None:
    """Does step 1, its interval's upper end counted, reach the claim? None: it can't be said."""
    high = summary.steps[0].top1.high
    return None if claim is None or high is None else high >= claim


Place = Literal["below", "within", "above"]


def acceptance_place(claim: float | None, summary: Summary) -> Place | None:
    """Where the served length stands to the walk's interval; None without a claim or a walk.

    Only the walk along the target's own greedy text may accuse a server: on other text the
    expected length is an estimate.
    """
    low, high = summary.acceptance.low, summary.acceptance.high
    if claim is None or low is None or high is None or not summary.exact:
        return None
    return "below" if claim < low else "above" if claim > high else "within"


def checked(claims: Claims, best: Summary, fed: Summary) -> tuple[ClaimCheck, ...]:
    """Every claim given, held against the best wiring (accuracy) and the served one."""
    out = []
    met, top = accuracy_met(claims.accuracy, best), best.steps[0].top1
    if claims.accuracy is not None:
        status = "not judged" if met is None else "met" if met else "missed"
        told = f"next token {top.value:.3f}, at most {top.high or top.value or 0:.3f}, best wiring"
        out.append(ClaimCheck("accuracy", claims.accuracy, status, told))
    if claims.acceptance is not None:
        place, walk = acceptance_place(claims.acceptance, fed), fed.acceptance
        told = f"{len(fed.steps)} drafts per pass allow {walk.value:.2f}"
        if walk.low is not None:
            told += f" ({walk.low:.2f} to {walk.high:.2f})"
        out.append(ClaimCheck("acceptance", claims.acceptance, place or "not judged", told))
    return tuple(out)


def beats(difference: Estimate) -> bool:
    """Better than nothing by the whole interval."""
    return difference.low is not None and difference.low > 0
