"""A Verdict as lines for a terminal: verdict first, then findings, figures and what was not run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from draftprobe.drafter.wiring import tap_name

if TYPE_CHECKING:
    from draftprobe.diagnose.quality import Quality
    from draftprobe.diagnose.slots import SlotEvidence
    from draftprobe.diagnose.suspects import Suspect
    from draftprobe.diagnose.verdict import Verdict
    from draftprobe.diagnose.wire_evidence import Joint, WireEvidence
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
    if verdict.wires is not None:
        yield from _wires(verdict.wires)
    for summary in verdict.replays:
        yield from _replay(summary)
    for suspect in verdict.suspects[:MOST]:
        yield _line("suspect", _suspect(suspect))
    if verdict.quality is not None:
        yield from _quality(verdict.quality)
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


def _wires(joint: Joint) -> Iterator[str]:
    right = [wire.wire for wire in joint.of("right")]
    yield _line(
        "wires",
        f"{len(right)} beat their other values, {joint.wirings} wirings on {joint.chains:,} chains "
        f"of {joint.sequences} sequences",
    )
    for wire in joint.of("open", "ambiguous", "harmless"):
        told = f"served {wire.served}, likelier {wire.wanted}"
        yield _line(wire.status, f"{wire.wire}: {told}; loss {_loss(wire)}")
    for wire in joint.of("not separable"):
        others = ", ".join(
            f"{tied.value} ({'the same' if tied.same else number(tied.acceptance)})"
            for tied in wire.tied
        )
        yield _line("tied", f"{wire.wire}: {wire.served} or {others}")


def _loss(wire: WireEvidence) -> str:
    text = "not measured" if wire.loss is None else number(wire.loss)
    if wire.rivals:
        text += f"; or {' or '.join(wire.rivals[:MOST])}"
    return text if wire.needed is None else f"{text}; about {wire.needed:,} tokens would decide"


def _suspect(suspect: Suspect) -> str:
    rates = " / ".join(f"{rate.value:.2f}" for rate in suspect.rates if rate.value is not None)
    name = suspect.wire if suspect.finding is None else f"{suspect.wire} {suspect.value}"
    return f"{name} predicts {rates}, {suspect.distance:.1f} standard errors from what was served"


def _quality(quality: Quality) -> Iterator[str]:
    kinds = ", ".join(f"{kind.kind} {kind.top1.value:.3f}" for kind in quality.kinds)
    if kinds:
        yield _line("text", f"step 1 by kind: {kinds}")
    told = [] if quality.agreement is None else [f"target's own choice {number(quality.agreement)}"]
    if quality.distinct_bigrams is not None:
        told.append(f"distinct bigrams {quality.distinct_bigrams:.2f}")
    if told:
        yield _line("", ", ".join(told))


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
