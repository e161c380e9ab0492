"""A Verdict as lines for a terminal: verdict first, then findings, figures and what was not run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from draftprobe.drafter.wiring import tap_name

if TYPE_CHECKING:
    from draftprobe.diagnose.slots import SlotEvidence
    from draftprobe.diagnose.verdict import Verdict
    from draftprobe.measure.interval import Estimate
    from draftprobe.measure.summary import Summary

LABEL = 9
MOST = 4


def number(estimate: Estimate, digits: int = 3) -> str:
    """``0.417 (0.400-0.434)``; without an interval where there is none."""
    if estimate.value is None:
        return "none"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.{digits}f} (one sequence: no interval)"
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f} to {estimate.high:.{digits}f})"


def render(verdict: Verdict) -> Iterator[str]:
    """Lines without markup; the first one says it all."""
    yield _line(verdict.verdict.upper(), verdict.headline)
    yield _line("", f"confidence {verdict.confidence}")
    for finding in verdict.findings:
        yield _line(finding.id, finding.title)
        yield _line("", finding.evidence)
        if finding.severity is not None:
            yield _line("", f"acceptance length lost: {number(finding.severity)}")
    for slot in verdict.slots:
        yield _line(f"slot {slot.slot}", _slot(slot))
    for summary in verdict.replays:
        yield from _replay(summary)
    for mend in verdict.mend:
        yield _line("mend", f"{mend.engine} {mend.version}: {mend.note}")
        yield from (" " * LABEL + line for line in mend.diff.splitlines())
    for claim in verdict.claims:
        yield _line("claim", f"{claim.what} {claim.claimed:.3f}: {claim.status}; {claim.evidence}")
    for entry in verdict.not_evaluated:
        yield _line("not run", f"{entry.what}: {entry.why}")
    command = verdict.provenance.get("command")
    if command:
        yield shlex.join(command)


def _slot(slot: SlotEvidence) -> str:
    if len(slot.replay) > MOST:
        replayed = f"cannot tell {len(slot.replay)} boundaries apart"
    else:
        replayed = " or ".join(map(tap_name, slot.replay))
    weights = " or ".join(map(tap_name, slot.weights)) or f"silent ({slot.silent})"
    told = " or ".join(map(tap_name, slot.tied[:MOST])) + (" ..." if slot.tied[MOST:] else "")
    disagree = "; THEY DISAGREE" if slot.disagree else ""
    return f"{told}: replay {replayed}; weights {weights}{disagree}"


def _replay(summary: Summary) -> Iterator[str]:
    tops = " / ".join(
        f"{step.top1.value:.3f}" for step in summary.steps if step.top1.value is not None
    )
    yield _line("replay", f"{summary.label}: accuracy of steps 1..{len(summary.steps)} {tops}")
    first = summary.steps[0].top1
    yield _line(
        "",
        f"step 1 {number(first)} of {number(summary.coverage)} that the draft vocabulary holds, "
        f"{summary.tokens:,} tokens of {summary.sequences} sequences",
    )
    how = "walk along the target's own text" if summary.exact else "estimate"
    yield _line("", f"expected acceptance length {number(summary.acceptance)}, {how}")


def _line(label: str, text: str) -> str:
    return f"{label:{LABEL - 1}} {text}"
