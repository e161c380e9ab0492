"""Readers of other people's hidden-state dumps, one module per format, into one record.

:func:`open_dump` recognises a file or folder by its content. ``identify`` finds out which boundary
an unnamed slot is; ``write`` turns a dump into a States file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from draftprobe.drafter.checkpoint import read_header
from draftprobe.errors import InputError
from draftprobe.states.dumps import own, record
from draftprobe.states.dumps.container import Entries, entries
from draftprobe.states.dumps.folder import families
from draftprobe.states.dumps.format import Format, Options, Place
from draftprobe.states.dumps.modelopt import MODELOPT
from draftprobe.states.dumps.plain import PLAIN
from draftprobe.states.dumps.record import Dump
from draftprobe.states.dumps.sglang import SGLANG
from draftprobe.states.dumps.specforge import SPECFORGE
from draftprobe.states.dumps.speculators import SPECULATORS, SPECULATORS_LIST
from draftprobe.states.dumps.vllm import VLLM

__all__ = ["FORMATS", "Dump", "Options", "open_dump"]

_READERS = (SPECFORGE, MODELOPT, SPECULATORS, SPECULATORS_LIST, VLLM, SGLANG, PLAIN)
"""From the most telling content to the least."""
FORMATS = (own.NAME, *(reader.name for reader in _READERS))


def open_dump(
    path: str | Path,
    options: Options | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Dump:
    """Open a dump and read its shapes; ``progress(files done, of)`` is called on the way.

    Raises:
        InputError: nothing there, of no known format, malformed, or files that do not fit together.
    """
    path, options = Path(path), options or Options()
    if options.format is not None and options.format not in FORMATS:
        raise InputError(
            f"--format: expected one of {', '.join(FORMATS)}, found {options.format!r}"
        )
    for files in families(path):
        if path.is_file() and (options.format == own.NAME or _is_own(path)):
            return own.own_dump(path)
        reader = _recognised(files, options)
        if reader is not None:
            return _described(path, files, reader, options, progress)
    wanted = f"a dump of format {options.format}" if options.format else "states with token ids"
    raise InputError(
        f"{path}: expected {wanted}, found none in its files; known are {', '.join(FORMATS)}"
    )


def _is_own(path: Path) -> bool:
    """Whatever the file is called: its header says so."""
    try:
        return own.HEADER in read_header(path)[1]
    except InputError:
        return False


def _recognised(files: Sequence[Path], options: Options) -> Format | None:
    """The reader of the first file that is of any format."""
    if options.format == PLAIN.name:
        return PLAIN
    readers = [r for r in _READERS if r is not PLAIN and options.format in (None, r.name)]
    for some in (readers, [PLAIN] if options.format is None else []):
        for file in files:
            one = next(entries(file), {})
            for reader in some:
                if reader.matches(one, file):
                    return reader
    return None


def _described(
    path: Path,
    files: Sequence[Path],
    reader: Format,
    options: Options,
    progress: Callable[[int, int], None],
) -> Dump:
    """One pass over all files: what they hold, and that they fit together."""
    kept: list[Path] = []
    lengths: list[int] = []
    masked = 0
    first: tuple[record.Layout, record.Sequence] | None = None
    for number, file in enumerate(files, 1):
        for one, place in _records(file, reader, len(lengths)):
            read = _checked(reader.read(one, place, options), place, options.ragged)
            if first is None:
                first = reader.layout(one, place, options), read
            _same(first[1], read, place)
            lengths.append(len(read.tokens))
            masked += read.mask is not None
            if file not in kept[-1:]:
                kept.append(file)
        progress(number, len(files))
    if first is None:
        raise InputError(f"{path}: expected at least one sequence, found none")
    layout, read = first
    if len(kept) < len(files):
        held = set(kept)
        left = next(file.name for file in files if file not in held)
        told = f"{len(files) - len(kept)} files are of another format and left out, such as {left}"
        layout = replace(layout, notes=(*layout.notes, told))

    def stream() -> Iterator[record.Sequence]:
        index = 0
        for file in kept:
            for one, place in _records(file, reader, index):
                yield _checked(reader.read(one, place, options), place, options.ragged)
                index += 1

    return Dump(
        path, reader.name, reader.producer, layout, read.slots[0].shape[-1], read.dtype,
        tuple(lengths), masked, stream,
    )  # fmt: skip


def _records(file: Path, reader: Format, index: int) -> Iterator[tuple[Entries, Place]]:
    """The records of this format in a file; ``index`` is the first one's in the dump."""
    for one in entries(file):
        if reader.matches(one, file):
            yield one, Place(file, index)
            index += 1


def _checked(read: record.Sequence, place: Place, ragged: bool) -> record.Sequence:
    n = len(read.tokens)
    shapes = {tuple(slot.shape) for slot in read.slots}
    (shape, *others) = shapes or {()}
    fits = len(shape) == 2 and (shape[0] in (n, n - 1) or (ragged and 0 < shape[0] < n))
    if others or not fits:
        found = ", ".join(map(str, sorted(shapes))) or "none"
        raise InputError(
            f"{place}: expected states of one size, [{n}, H] or [{n - 1}, H] for {n} tokens, "
            f"found {found}"
        )
    if len({slot.dtype for slot in read.slots}) > 1:  # float32 holds the others exactly
        read = replace(read, slots=tuple(slot.float() for slot in read.slots), dtype="float32")
    if read.mask is not None and len(read.mask) != n:
        raise InputError(f"{place}: expected a mask of {n} tokens, found {len(read.mask)}")
    return read


def _same(first: record.Sequence, read: record.Sequence, place: Place) -> None:
    def shape(one: record.Sequence) -> tuple[int, int, str]:
        return len(one.slots), one.slots[0].shape[-1], one.dtype

    if shape(first) != shape(read):
        raise InputError(
            f"{place}: expected {shape(first)} (slots, hidden size, dtype) as in the first file, "
            f"found {shape(read)}; these are several dumps in one folder"
        )
