"""What each slot of one dump holds: matched by tokens, identified on a sample, checked on all rows.

Two passes over the dump; in memory are the sample, one sequence, and two boundaries of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

from draftprobe.diagnose.compare.explain import find
from draftprobe.diagnose.compare.floor import Floors, by_dtype, stored
from draftprobe.diagnose.compare.found import LONGEST, Found
from draftprobe.diagnose.compare.products import Part, products, shifted
from draftprobe.diagnose.compare.rows import FOLLOWED, RowCheck, check_rows, expected, seek
from draftprobe.diagnose.compare.view import View
from draftprobe.errors import InputError
from draftprobe.states.dumps.identify import Index
from draftprobe.states.dumps.record import Dump, Sequence
from draftprobe.states.record import States

LIMIT = 1024
"""Rows of the sample."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Slotted:
    """What is known of one slot.

    Attributes:
        found: what it is, on the sample; check: all of its rows.
        stored: the coarsest dtype that holds its values; declared: the file's.
        floors: of the noise.
    """

    found: Found
    check: RowCheck
    stored: str
    declared: str
    floors: Floors


@dataclass
class Matched:
    """Sequences that dump and reference share.

    Attributes:
        sequences: of the dump that the reference holds; rows: that both have.
        cut: of them, sequences that go on after the common beginning.
        unmatched: numbers of the sequences that the reference lacks.
    """

    sequences: int = 0
    rows: int = 0
    cut: int = 0
    unmatched: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Account:
    """What a dump holds, by slot."""

    dump: Dump
    slots: tuple[Slotted, ...]
    matched: Matched


def account(
    dump: Dump, reference: States, floors: Floors, limit: int = LIMIT, strict: bool = False,
    progress: Progress = lambda done, total: None,
) -> Account:  # fmt: skip
    """Identify every slot of a dump.

    Args:
        dump: of the reference's hidden size.
        reference: states of the same tokens.
        floors: the least that noise explains; a dump stored coarser raises it.
        limit: rows of the sample on which slots are identified.
        strict: the floors stand, however the dump is stored.
        progress: called with sequences done and all.

    Raises:
        InputError: no sequence in common.
    """
    index = Index(reference)
    parts, dtypes = _sample(dump, index, limit)
    if not parts:
        raise InputError(
            f"{reference.path}: expected states of the same tokens as {dump.path}, found none that "
            "begin alike; capture them with --tokens from the dump's own ids"
        )
    table = products(parts, reference)
    slots: list[Slotted] = []
    for slot, dtype in enumerate(dtypes):
        floor = floors if strict else _coarser(floors, dtype)
        found = find(View(slot, table, floor, parts, reference))
        slots.append(Slotted(found, RowCheck(), dtype, dump.dtype, floor))
    matched = _check_all(dump, reference, index, slots, progress)
    return Account(dump, tuple(slots), matched)


def _coarser(floors: Floors, dtype: str) -> Floors:
    """The floors, or what the slot's storage alone explains if that is more."""
    own = by_dtype([dtype])
    if own.general <= floors.general:
        return floors
    measured = {tap: max(floor, own.general) for tap, floor in floors.measured.items()}
    return replace(own, measured=measured if dtype.startswith("float8") else floors.measured)


def _sample(dump: Dump, index: Index, limit: int) -> tuple[tuple[Part, ...], list[str]]:
    """Rows of the first sequences that the reference holds, and each slot's storage."""
    parts: list[Part] = []
    dtypes: list[str] = []
    rows = 0
    for number, one in enumerate(dump.stream()):
        found = index.find(one)
        if found is None or found[1] < 1:
            continue
        count = min(found[1], LONGEST, limit - rows)
        held = [slot[:count] for slot in one.slots]
        dtypes = dtypes or [stored(slot, one.dtype) for slot in held]
        x = torch.stack([slot.float() for slot in held])
        x[~torch.isfinite(x).all(dim=-1)] = torch.nan  # such a row says nothing of its boundary
        parts.append(Part(number, found[0], x))
        rows += count
        if rows >= limit:
            break
    return tuple(parts), dtypes


def _check_all(
    dump: Dump, reference: States, index: Index, slots: list[Slotted], progress: Progress
) -> Matched:
    matched = Matched()
    for number, one in enumerate(dump.stream()):
        found = index.find(one)
        if found is None or found[1] < 1:
            matched.unmatched.append(number)
            continue
        matched.sequences += 1
        matched.rows += found[1]
        matched.cut += found[1] < one.rows
        for slot, x in _followed(slots, one, found[1], reference):
            c = expected(reference, found[0], slot.found)
            floor = slot.floors.of(slot.found.boundary)
            check_rows(slot.check, number, x, c, slot.found, floor)
        short = len(one.tokens) - 1 - one.rows
        for slot in slots:
            slot.check.note("missing", max(0, short), number, one.rows)
        progress(number + 1, len(dump))
    for slot in slots:
        seek(slot.check, reference, slot.found, range(len(reference)))
    return matched


def _followed(
    slots: list[Slotted], one: Sequence, rows: int, reference: States
) -> Iterator[tuple[Slotted, torch.Tensor]]:
    """Slots whose rows can be followed; of the others the rows that are empty are counted."""
    for slot, held in zip(slots, one.slots, strict=True):
        x = held[:rows].float()
        if slot.found.boundary in reference.boundaries and slot.found.treatment in FOLLOWED:
            yield slot, x
        else:
            here, _ = shifted(rows, slot.found.shift)
            slot.check.rows += rows
            slot.check.zero += int((x[here] == 0).all(dim=-1).sum())
            slot.check.not_finite += int((~torch.isfinite(x).all(dim=-1)).sum())
