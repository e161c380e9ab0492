"""From replays to a Verdict: is it the wiring?

Computes no replay itself and writes no file. Thin evidence gives 'undecided', never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftprobe.diagnose.taps import taps_finding
from draftprobe.diagnose.verdict import Confidence, Finding, Kind, NotEvaluated, Verdict
from draftprobe.drafter.wiring import Wiring, taps_name
from draftprobe.measure.interval import Estimate
from draftprobe.measure.replay import Observations
from draftprobe.measure.summary import Paired, paired, summarise


@dataclass(frozen=True, slots=True)
class Replayed:
    """A wiring and what it did on the states."""

    wiring: Wiring
    observations: Observations


def judge_known(
    wanted: Replayed,
    served: Replayed,
    not_evaluated: tuple[NotEvaluated, ...],
    provenance: dict[str, Any],
) -> Verdict:
    """The verdict where the wanted wiring is given ('as trained'), not searched for.

    Both replays are of the same tokens. WIRING where the served wiring is worse than the wanted
    one by the paired interval of the log-likelihood and of the expected acceptance length;
    HEALTHY where the two are the same wiring, or neither is worse; else undecided.
    """
    difference = paired(served.observations, wanted.observations)
    kind = _kind(wanted, served, difference)
    findings = (_finding(wanted, served, difference),) if kind == "wiring" else ()
    confidence: Confidence = "low" if kind == "undecided" else "medium"
    right = summarise(wanted.observations, "as trained: " + taps_name(wanted.wiring.taps))
    wrong = summarise(served.observations, "as served: " + taps_name(served.wiring.taps))
    return Verdict(
        verdict=kind,
        confidence=confidence,
        headline=(
            f"the weights want {taps_name(wanted.wiring.taps)} (as trained): next token "
            f"{right.steps[0].top1.value:.3f}; served {taps_name(served.wiring.taps)}: "
            f"{wrong.steps[0].top1.value:.3f}"
        ),
        wanted=wanted.wiring.taps,
        served=served.wiring.taps,
        tied=(),
        findings=findings,
        replays=(right, wrong),
        not_evaluated=not_evaluated,
        provenance=provenance,
    )


def _kind(wanted: Replayed, served: Replayed, difference: Paired) -> Kind:
    if wanted.wiring == served.wiring:
        return "healthy"
    likelihood, acceptance = difference.log_likelihood[0], difference.acceptance
    if likelihood.low is None or acceptance.low is None:
        return "undecided"
    if likelihood.low > 0 and acceptance.low > 0:
        return "wiring"
    return "healthy" if _covers(likelihood, 0.0) and _covers(acceptance, 0.0) else "undecided"


def _covers(estimate: Estimate, value: float) -> bool:
    return (
        estimate.low is not None
        and estimate.high is not None
        and estimate.low <= value <= estimate.high
    )


def _finding(wanted: Replayed, served: Replayed, difference: Paired) -> Finding:
    identifier, title = taps_finding(served.wiring.taps, wanted.wiring.taps)
    accuracy, likelihood = difference.accuracy[0], difference.log_likelihood[0]
    return Finding(
        id=identifier,
        title=title,
        wire="taps",
        severity=difference.acceptance,
        served=taps_name(served.wiring.taps),
        wanted=taps_name(wanted.wiring.taps),
        evidence=(
            f"paired on the same {accuracy.n:,} tokens of {accuracy.clusters} sequences: "
            f"next-token accuracy +{accuracy.value:.3f} ({accuracy.low:.3f} to {accuracy.high:.3f}), "
            f"log-likelihood +{likelihood.value:.2f} nats ({likelihood.low:.2f} to "
            f"{likelihood.high:.2f})"
        ),
    )
