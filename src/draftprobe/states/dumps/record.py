"""The common record of a dump: sequences of tokens with the states that somebody's script kept.

Every format is read into it, one sequence at a time. Knows no file format; says of each slot which
boundary it is and how that is known, or that it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from draftprobe.drafter.wiring import Tap, tap_name
from draftprobe.errors import InputError

if TYPE_CHECKING:
    import torch

Boundary = Tap | Literal["L"]
"""A boundary of a dump: "L" means h[L] as long as the number of layers is not known."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One state per token.

    Attributes:
        role: ``aux`` feeds a drafter's fc; ``last`` is kept for the teacher's logits.
        boundary: which boundary it is, or None where nothing says so.
        how: how the boundary is known, or why it is not.
    """

    role: Literal["aux", "last"]
    boundary: Boundary | None
    how: str

    @property
    def name(self) -> str:
        """``h[3]``, ``h[N]``, ``h[L]`` or ``unknown``."""
        if self.boundary is None:
            return "unknown"
        return "h[L]" if self.boundary == "L" else tap_name(self.boundary)


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence of a dump.

    Attributes:
        tokens: int64 [n].
        mask: bool [n], True where the file marks token x_t itself; None where it has no mask.
        slots: one [n, H] or [n - 1, H] per slot, in the file's order; views of the mapped file.
        dtype: of the states in the file, as torch names it.
    """

    tokens: torch.Tensor
    mask: torch.Tensor | None
    slots: tuple[torch.Tensor, ...]
    dtype: str

    @property
    def rows(self) -> int:
        """States per slot."""
        return len(self.slots[0])


@dataclass(frozen=True, slots=True)
class Layout:
    """What a file's format says of all sequences in it.

    Attributes:
        slots: the slots in the file's order.
        lag: the producer's trainer counts the prediction of x_t where the mask marks x_{t - lag};
            None where no trainer is known.
        notes: what a reader of the dump must know; each with its source.
        source: where the text comes from, if the file says so: a word of ``states.record.SOURCES``.
    """

    slots: tuple[Slot, ...]
    lag: int | None
    notes: tuple[str, ...] = ()
    source: str | None = None


@dataclass(frozen=True)
class Dump:
    """An open dump; states are read sequence by sequence.

    Attributes:
        path: the file or folder that was given.
        format: one of ``states.dumps.FORMATS``.
        producer: who writes this format.
        layout: slots, mask and notes.
        hidden: H.
        dtype: of the stored states, as torch names it.
        lengths: tokens of each sequence.
        masked: sequences that have a mask.
        stream: starts a reading of all sequences in order, one in memory at a time.
    """

    path: Path
    format: str
    producer: str
    layout: Layout
    hidden: int
    dtype: str
    lengths: tuple[int, ...]
    masked: int
    stream: Callable[[], Iterator[Sequence]]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots in the file's order."""
        return self.layout.slots

    def named(self, slots: tuple[Slot, ...]) -> Dump:
        """The same dump with other names for its slots."""
        return replace(self, layout=replace(self.layout, slots=slots))


GIVEN, GIVEN_IDS = "--boundaries", "--output-ids"
"""How a boundary is known that a person gave."""


def name_slots(dump: Dump, boundaries: tuple[Tap, ...], how: str = GIVEN) -> Dump:
    """The dump with its boundaries given, of all slots or all but the last hidden.

    Raises:
        InputError: another number of boundaries than slots.
    """
    aux = [slot for slot in dump.slots if slot.role == "aux"]
    if len(boundaries) not in (len(aux), len(dump.slots)):
        raise InputError(
            f"{dump.path}: expected {len(dump.slots)} boundaries, one per slot"
            + (f", or {len(aux)} without the last hidden" if len(aux) != len(dump.slots) else "")
            + f", found {len(boundaries)}"
        )
    given = [Slot(slot.role, b, how) for slot, b in zip(dump.slots, boundaries, strict=False)]
    return dump.named((*given, *dump.slots[len(given) :]))


def settle(dump: Dump, layers: int) -> Dump:
    """The dump with h[L] as a number, and every boundary checked against L.

    Raises:
        InputError: a boundary that a target of so many layers does not have.
    """
    for slot in dump.slots:
        if isinstance(slot.boundary, int) and not 0 <= slot.boundary <= layers:
            raise InputError(
                f"{dump.path}: {slot.name} ({slot.how}) does not exist on a target of {layers} "
                f"layers; expected h[0]..h[{layers}] or h[N]"
            )
    return dump.named(
        tuple(
            replace(slot, boundary=layers) if slot.boundary == "L" else slot for slot in dump.slots
        )
    )


def in_words(dump: Dump, layers: int | None) -> str | None:
    """What a trainer makes of these slots: which feed fc, which is its teacher's; None if unknown.

    Of a dump whose final slot is h[L] or h[N], trainers take the others as fc's input: the code of
    speculators 0.9.0 (``train/data.py``: ``[:, :-1]`` and ``[:, -1]``) and of every dump that keeps
    the last hidden apart.
    """
    names = [slot.name for slot in dump.slots]
    if len(names) < 2 or "unknown" in names:
        return None
    final = dump.slots[-1].boundary
    if final not in ("N", "L", layers):
        return None
    state = "after" if final == "N" else "before"
    return (
        f"a trainer feeds fc with the first {len(names) - 1} of {len(names)} states, "
        f"{', '.join(names[:-1])}, and takes the last, {names[-1]}, the final state {state} the "
        "final norm, for its teacher's logits"
    )
