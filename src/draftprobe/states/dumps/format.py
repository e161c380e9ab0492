"""What a reader of one dump format has to offer, and what a person may tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from draftprobe.errors import InputError
from draftprobe.states.dumps.container import Entries
from draftprobe.states.dumps.record import Layout, Sequence


class LeftOut(InputError):
    """Why a sequence is left out, as its producer's own trainer does; the others are read."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the files do not say.

    Attributes:
        format: the format's name, where its content does not decide.
        states_key: the entry or entries that hold the states (plain tensors).
        tokens_key: the entry with the token ids (plain tensors).
        mask_key: the entry with the loss mask (plain tensors).
        tokens: a file of token ids, one line or entry per sequence, where the dump has none.
        dataset: the folder of the arrow dataset that lies beside a speculators dump.
        hidden: the target's hidden size, which splits a concatenation.
        ragged: fewer rows than tokens are what is looked for, and no error.
    """

    format: str | None = None
    states_key: tuple[str, ...] = ()
    tokens_key: str | None = None
    mask_key: str | None = None
    tokens: Path | None = None
    dataset: Path | None = None
    hidden: int | None = None
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record was found: its file, and which sequence of the whole dump it is."""

    path: Path
    index: int

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        name: as ``--format`` takes it.
        producer: who writes it.
        matches: whether a record's entries are of this format.
        layout: what the format says of its slots, from one record.
        read: one record as a sequence; raises InputError where it is malformed, LeftOut where its
            trainer would skip it.
    """

    name: str
    producer: str
    matches: Callable[[Entries, Path], bool]
    layout: Callable[[Entries, Place, Options], Layout]
    read: Callable[[Entries, Place, Options], Sequence]
