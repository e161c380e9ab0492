"""A checkpoint folder written tensor by tensor: bytes are copied, nothing is cast or held whole.

Written beside and moved into place whole; what exists is never overwritten. Knows no stack.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from draftprobe.drafter.checkpoint import Checkpoint, pieces
from draftprobe.drafter.layout import Layout
from draftprobe.errors import InputError

_CHUNK = 2**22
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor to be written: an inside name of the source, or bytes that were made.

    Attributes:
        name: in the new file; dtype: as safetensors spells it; shape; size: in bytes.
        inside: the source's inside name; empty where ``made`` holds the bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    inside: str = ""
    made: bytes = b""


def part_of(checkpoint: Checkpoint, layout: Layout, inside: str, name: str) -> Part:
    """The source's tensor under a new name."""
    info, shape = checkpoint.info(layout.sources[inside].name), layout.shape(checkpoint, inside)
    size = info.size if shape == info.shape else info.size // info.shape[0] * shape[0]
    return Part(name, info.dtype, shape, size, inside)


def tensor_bytes(checkpoint: Checkpoint, layout: Layout, inside: str) -> Iterator[bytes]:
    """The bytes of a source's tensor as safetensors lays them out, in pieces of a few MB.

    Raises:
        InputError: the file ends early, or a pickle cannot be read.
    """
    source = layout.sources[inside]
    info, rows = checkpoint.info(source.name), source.rows
    if info.pickled:
        yield from _pickled_bytes(checkpoint, layout, inside)
        return
    row = info.size // info.shape[0] if rows else 0
    start, left = info.start, info.size
    if rows:
        start, left = start + rows[0] * row, (rows[1] - rows[0]) * row
    with info.file.open("rb") as file:
        file.seek(start)
        while left:
            data = file.read(min(left, _CHUNK))
            if not data:
                raise InputError(f"{info.file}: ends before {info.name!r} does")
            yield data
            left -= len(data)


def _pickled_bytes(checkpoint: Checkpoint, layout: Layout, inside: str) -> Iterator[bytes]:
    import torch

    source = layout.sources[inside]
    parts = (
        [layout.read(checkpoint, inside)]
        if source.rows
        else pieces(checkpoint.info(source.name), _CHUNK)
    )
    for tensor in parts:
        yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@contextmanager
def write_folder(
    out: Path,
    config: dict[str, Any],
    parts: Sequence[Part],
    source: tuple[Checkpoint, Layout],
    copied: Sequence[Path] = (),
) -> Iterator[Path]:
    """Write ``config.json`` and ``model.safetensors`` beside ``out``; at the end, move into place.

    The block gets the folder as it lies beside, for a last look: if it raises, nothing is left.

    Args:
        out: the new folder.
        config: its config.
        parts: its tensors.
        source: where their bytes lie.
        copied: files that are taken along as they are. With them an index is written, since some
            readers take every safetensors file of a folder without an index for weights.

    Raises:
        InputError: ``out`` exists, or the place cannot be written to.
    """
    if os.path.lexists(out):
        raise InputError(f"{out}: exists already and is not overwritten; give another --out")
    beside = None
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        _write_weights(beside / WEIGHTS, parts, source)
        (beside / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for path in copied:
            shutil.copyfile(path, beside / path.name)
        if copied:
            _write_index(beside, parts)
        yield beside
        mask = os.umask(0)
        os.umask(mask)
        beside.chmod(0o777 & ~mask)
        out.mkdir()  # claims the name, or fails; the rename below replaces an empty folder only
        os.replace(beside, out)
    except FileExistsError:
        raise InputError(f"{out}: exists already and is not overwritten") from None
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)


def _write_weights(path: Path, parts: Sequence[Part], source: tuple[Checkpoint, Layout]) -> None:
    """Wide dtypes first, as safetensors' own writer does, so that every tensor is aligned."""
    order = sorted(parts, key=lambda part: (-_width(part), part.name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for part in order:
        header[part.name] = {
            "dtype": part.dtype,
            "shape": list(part.shape),
            "data_offsets": [end, end + part.size],
        }
        end += part.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in order:
            for data in tensor_bytes(*source, part.inside) if part.inside else (part.made,):
                file.write(data)


def _width(part: Part) -> int:
    return part.size // max(1, prod(part.shape))


def _write_index(folder: Path, parts: Sequence[Part]) -> None:
    index = {
        "metadata": {"total_size": sum(part.size for part in parts)},
        "weight_map": dict.fromkeys(sorted(part.name for part in parts), WEIGHTS),
    }
    text = json.dumps(index, indent=2) + "\n"
    (folder / f"{WEIGHTS}.index.json").write_text(text, encoding="utf-8")
