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
from draftprobe.states.dumps.container import Entries, contents, entries
from draftprobe.states.dumps.folder import families
from draftprobe.states.dumps.format import Format, LeftOut, Options, Place
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
RECIPE = (
    "Any script can write one: torch.save({'input_ids': ids, 'hidden_states': states}, "
    "'dump/0.pt') for each sequence, ids [T], states [T, n * H] in the order of the slots"
)


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
        f"{path}: expected {wanted}, found {_held(path)}; known are {', '.join(FORMATS)}. {RECIPE}"
    )


def _held(path: Path) -> str:
    """What the first file holds, for messages."""
    file = next(families(path))[0]
    return f"{contents(next(entries(file), {}))} in {file.name}"


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
    left: list[str] = []
    masked = 0
    first: tuple[record.Layout, record.Sequence] | None = None
    for number, file in enumerate(files, 1):
        before = len(lengths) + len(left)
        for one, place, read in _read(file, reader, len(lengths) + len(left), options, left):
            if first is None:
                first = reader.layout(one, place, options), read
            _same(first[1], read, place)
            lengths.append(len(read.tokens))
            masked += read.mask is not None
        if len(lengths) + len(left) > before:
            kept.append(file)
        progress(number, len(files))
    if first is None or len(left) > len(lengths):
        told = f"; {len(left)} are left out. {left[0]}; name the right --dataset" if left else ""
        raise InputError(
            f"{path}: expected sequences that can be read, found {len(lengths) or 'none'}{told}"
        )
    layout, read = first
    if left:
        told = f"{len(left)} of {len(left) + len(lengths)} sequences are left out: {left[0]}"
        layout = replace(layout, notes=(*layout.notes, told))
    if len(kept) < len(files):
        held = set(kept)
        other = next(file.name for file in files if file not in held)
        told = f"{len(files) - len(kept)} files are left out, such as {other}: no states in them"
        layout = replace(layout, notes=(*layout.notes, told))

    def stream() -> Iterator[record.Sequence]:
        index, out = 0, []
        for file in kept:
            for _, _, one in _read(file, reader, index + len(out), options, out):
                yield one
                index += 1

    return Dump(
        path, reader.name, reader.producer, layout, read.slots[0].shape[-1], read.dtype,
        tuple(lengths), masked, stream,
    )  # fmt: skip


def _read(
    file: Path, reader: Format, index: int, options: Options, left: list[str]
) -> Iterator[tuple[Entries, Place, record.Sequence]]:
    """The sequences of a file with their records; ``left`` gets why one is left out."""
    for one, place in _records(file, reader, index):
        try:
            read = reader.read(one, place, options)
        except LeftOut as why:
            left.append(str(why))
            continue
        yield one, place, _checked(read, place, options.ragged)


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
