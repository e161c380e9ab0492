"""draftprobe's own states file, read as a dump: every boundary is known from its header."""

from __future__ import annotations

from pathlib import Path

from draftprobe.errors import InputError
from draftprobe.states.dumps.record import Dump, Layout, Sequence, Slot
from draftprobe.states.record import open_states

NAME = "draftprobe"
HEADER = "draftprobe"
"""The entry in a states file's header."""


def own_dump(path: Path) -> Dump:
    """A states file; sequences of n tokens have n - 1 rows."""
    states = open_states(path)
    if not states.boundaries:
        raise InputError(f"{path}: expected states of some boundary, found none; capture again")
    slots = tuple(Slot("aux", tap, "the states file's header") for tap in states.boundaries)
    layout = Layout(slots, 0, ("loss_mask marks the tokens whose prediction counts",),
                    states.provenance.source)  # fmt: skip

    def stream():
        for one in states.sequences(states.boundaries):
            held = tuple(one.h[tap] for tap in states.boundaries)
            yield Sequence(one.tokens, one.mask, held, states.provenance.dtype)

    return Dump(
        path, NAME, "draftprobe capture", layout, states.provenance.hidden_size,
        states.provenance.dtype, states.lengths, len(states), stream,
    )  # fmt: skip
