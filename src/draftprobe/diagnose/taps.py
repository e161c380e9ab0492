"""How two lists of boundaries differ, as a finding's id and title. Knows lists, no numbers."""

from __future__ import annotations

from collections.abc import Sequence

from draftprobe.drafter.wiring import Tap


def taps_finding(served: Sequence[Tap], wanted: Sequence[Tap]) -> tuple[str, str]:
    """Id and title of the difference between served and wanted boundaries.

    The most specific pattern wins: another order, shifted by a slot, off by a layer, others.
    """
    if sorted(map(str, served)) == sorted(map(str, wanted)):
        return "W102", "aux taps in another slot order"
    if len(served) == len(wanted) > 1:
        if list(served[:-1]) == list(wanted[1:]):
            return "W103", "aux taps shifted by one slot: the first wanted one is not fed"
        if list(served[1:]) == list(wanted[:-1]):
            return "W103", "aux taps shifted by one slot: the last wanted one is not fed"
    offsets = {
        a - b if isinstance(a, int) and isinstance(b, int) else None
        for a, b in zip(served, wanted, strict=False)
    }
    if offsets in ({1}, {-1}) and len(served) == len(wanted):
        return "W104", f"aux taps one layer {'late' if offsets == {1} else 'early'}"
    return "W101", "aux taps of other layers"
