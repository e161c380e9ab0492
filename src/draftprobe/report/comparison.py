"""A Comparison as lines for a terminal: what differs first, then each slot with its errors.

At most 100 columns. Knows the record, no number behind it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from draftprobe.drafter.wiring import tap_name
from draftprobe.report.lines import LABEL, labelled

if TYPE_CHECKING:
    from draftprobe.diagnose.compare.record import Comparison, RunnerUp, SlotReport


def render(found: Comparison) -> Iterator[str]:
    """Lines without markup; the first one says it all."""
    yield from labelled(*_headline(found))
    for finding in found.findings:
        yield from labelled(finding.id, finding.title)
        yield from labelled("", f"served {finding.served}" if finding.served else "")
        yield from labelled("", f"wanted {finding.wanted}" if finding.wanted else "")
        yield from labelled("", finding.evidence)
    for slot in found.slots:
        yield from _slot("slot", slot)
    for slot in found.trained:
        yield from _slot("trained", slot)
    yield from _counts(found)
    for entry in found.not_evaluated:
        yield from labelled("not run", f"{entry.what}: {entry.why}")
    if found.findings:
        yield f"draftprobe explain {found.findings[0].id}"
    if "command" in found.provenance:
        yield shlex.join(found.provenance["command"])


def _headline(found: Comparison) -> tuple[str, str]:
    if found.outcome == "findings":
        first, more = found.findings[0], [finding.id for finding in found.findings[1:]]
        told = (
            f"first differing wire: {first.wire or 'the dump itself'} ({first.id}): {first.title}"
        )
        return "DIFFERS", told + (f"; also {', '.join(more)}" if more else "")
    if found.outcome == "undecided":
        return "UNDECIDED", f"slots {', '.join(map(str, found.undecided))} cannot be told"
    names = ", ".join(_name(slot) for slot in found.slots)
    if any(slot.wanted is not None for slot in found.slots):
        return "SAME", f"{names}, as wanted"
    return "NAMED", f"{names}; nothing says which are wanted"


def _name(slot: SlotReport) -> str:
    if slot.boundary is None:
        return " or ".join(map(tap_name, slot.tied)) or "unknown"
    return tap_name(slot.boundary)


def _slot(label: str, slot: SlotReport) -> Iterator[str]:
    """One slot: what it is, and its errors."""
    last = " (last hidden)" if slot.role == "last" else ""
    yield from labelled(f"{label} {slot.slot}"[:LABEL], f"{_name(slot)}{last}: {slot.told}")
    if slot.median is None:
        return
    told = f"error per token {slot.median:.1e} (median)"
    told += "" if slot.largest is None else f", {slot.largest:.1e} (largest)"
    told += "" if slot.first is None else f", {slot.first:.1e} (first tokens)"
    told += f"; floor {slot.floor:.1e} ({slot.floor_source})"
    if slot.runner_up is not None:
        told += f"; next {_rival(slot.runner_up)}"
    yield from labelled("", told)


def _rival(rival: RunnerUp) -> str:
    name = f"the branch to {tap_name(rival.boundary)}" if rival.branch else tap_name(rival.boundary)
    late = f" {abs(rival.shift)} rows {'late' if rival.shift > 0 else 'early'}"
    return f"{name}{late * bool(rival.shift)} {rival.median:.1e}"


def _counts(found: Comparison) -> Iterator[str]:
    served = found.provenance.get("served")
    if served:
        reference = found.provenance["reference"]
        yield from labelled(
            "compared",
            f"{served['compared_rows']:,} rows of {served['matched_sequences']} of "
            f"{served['sequences']} sequences ({served['format']}, {served['dtype']}) with "
            f"{reference['path']} ({reference['dtype']}, computed in {reference['compute']})",
        )
