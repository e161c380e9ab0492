"""A checkpoint folder as config, tensor headers and tensors read on demand.

Never runs code from a folder. A file may be a link, as in a Hugging Face cache: links are made by
whoever laid the folder out and are followed. What stands inside a file never leads out of the
folder: an index names files beside it only. Does not know what the tensors mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from draftprobe.errors import InputError

if TYPE_CHECKING:
    import torch

_MAX_HEADER = 100_000_000
_MAX_JSON = 100_000_000
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits of one number: safetensors' own list (``Dtype`` of its 0.8.0)."""
_PACKED = {"F4", "F6_E2M3", "F6_E3M2"}  # no torch dtype of one number each
_PIECE = 2**24


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Header of one tensor, and where it lies.

    Attributes:
        name: in the file; dtype: as safetensors spells it (``BF16``, ``F32``, ``I64``), of a
            pickle's tensor too.
        shape: its sizes.
        file: which; start: byte of the data in it, -1 in a pickle; size: bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    size: int

    @property
    def pickled(self) -> bool:
        """Whether torch reads it out of a pickle's archive."""
        return self.start < 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder's ``config.json`` and the headers of its weight files."""

    folder: Path
    config: dict[str, Any]
    tensors: Mapping[str, TensorInfo]

    def info(self, name: str) -> TensorInfo:
        """Header of a tensor that must be there; InputError names what is there instead."""
        if name not in self.tensors:
            raise InputError(
                f"{self.folder}: expected a tensor {name!r}, found {len(self.tensors)} others "
                f"({', '.join(sorted(self.tensors)[:6])}, ...)"
            )
        return self.tensors[name]

    def read(self, name: str) -> torch.Tensor:
        """One tensor, mapped from its file; see :meth:`info` for errors."""
        return read_tensor(self.info(name))


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Tensor headers and metadata of a safetensors file, without reading a tensor.

    Format: 8 bytes little-endian header length, a JSON header, the data
    (huggingface.co/docs/safetensors). Offsets must tile the file exactly.

    Raises:
        InputError: no such file, truncated, or not safetensors.
    """
    try:
        total = _regular(path)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if total < 8 or not 2 <= length <= min(total - 8, _MAX_HEADER):
                raise ValueError("the header's length does not fit the file")
            header = json.loads(file.read(length))
        return _parse_header(path, header, 8 + length, total)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path}: expected a complete safetensors file: {error}; "
            "it may be truncated or of another format (a pickle is never loaded under this name)"
        ) from None


def _regular(path: Path) -> int:
    """The size of a regular file: a pipe or a device is never read."""
    status = path.stat()
    if not S_ISREG(status.st_mode):
        raise InputError(f"{path}: expected a regular file, found something else")
    return status.st_size


def _parse_header(
    path: Path, header: Any, base: int, total: int
) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    metadata = header.pop("__metadata__", {})
    tensors: dict[str, TensorInfo] = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        start, stop = entry["data_offsets"]
        if not all(isinstance(n, int) and n >= 0 for n in (*shape, start, stop)):
            raise ValueError(f"tensor {name!r} has no valid shape or offsets")
        if dtype not in _BITS or 8 * (stop - start) != prod(shape) * _BITS[dtype] or start != end:
            raise ValueError(f"tensor {name!r}: {dtype} {shape} does not fit its offsets")
        tensors[name] = TensorInfo(name, dtype, shape, path, base + start, stop - start)
        end = stop
    if base + end != total:
        raise ValueError(f"the header describes {base + end} bytes, the file has {total}")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata that is not text")
    return tensors, metadata


def read_tensor(info: TensorInfo, rows: tuple[int, int] | None = None) -> torch.Tensor:
    """A tensor, mapped from its file, or a copy of its rows ``[first, last)``.

    Raises:
        InputError: the file changed since its header was read, or holds numbers of 4 or 6 bits.
    """
    if info.dtype in _PACKED:
        raise InputError(
            f"{info.file}: {info.name} holds packed {info.dtype} numbers; quantised weights are "
            "not read: use the checkpoint before its quantisation"
        )
    if info.pickled:
        from draftprobe.drafter.pickles import load

        tensor = load(info.file)[info.name]
        return tensor if rows is None else tensor[rows[0] : rows[1]].clone()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(info.file), framework="pt") as file:
            if rows is None:
                return file.get_tensor(info.name)
            return file.get_slice(info.name)[rows[0] : rows[1]].clone()
    except (SafetensorError, OSError) as error:
        raise InputError(f"{info.file}: {info.name} cannot be read: {error}") from None


def pieces(info: TensorInfo, limit: int = _PIECE) -> Iterator[torch.Tensor]:
    """A tensor's rows from first to last, in pieces of about ``limit`` bytes; a scalar whole.

    So a checkpoint larger than memory can be looked through. A single row is never cut.
    """
    if not info.shape:
        yield read_tensor(info)
        return
    step = max(1, limit * info.shape[0] // max(info.size, 1))
    for first in range(0, info.shape[0], step):
        yield read_tensor(info, (first, min(first + step, info.shape[0])))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; InputError if it is missing or not an object."""
    try:
        if _regular(path) > _MAX_JSON:
            raise InputError(f"{path}: expected JSON of at most {_MAX_JSON} bytes, found more")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected JSON: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """Open a folder that holds ``config.json`` and weights, whole or sharded.

    Read is the first of these that is there: ``model.safetensors.index.json``,
    ``model.safetensors``, ``pytorch_model.bin.index.json``, ``pytorch_model.bin``. So safetensors
    are preferred to pickles of the same weights, and torch is imported for pickles only.

    Raises:
        InputError: no folder, no config, no weights, a damaged file, or an index that points
            outside the folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a checkpoint folder, found none; check the path")
    config = read_json(folder / "config.json")
    return Checkpoint(folder, config, _weights(folder))


def _weights(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor; where there is an index, each from the file that it names."""
    for name, header in (("model.safetensors", _safetensors), ("pytorch_model.bin", _pickled)):
        index, single = folder / f"{name}.index.json", folder / name
        if index.exists():
            return _indexed(index, header)
        if single.exists():
            return header(single)
    found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
    raise InputError(
        f"{folder}: expected model.safetensors, pytorch_model.bin or an index of either, "
        f"found {found}"
    )


def _indexed(
    index: Path, header: Callable[[Path], Mapping[str, TensorInfo]]
) -> dict[str, TensorInfo]:
    folder, weight_map = index.parent, read_json(index).get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(_plain(name) for name in weight_map.values())
    ):
        raise InputError(f"{index}: weight_map must name files inside {folder} only")
    headers = {name: header(folder / name) for name in sorted(set(weight_map.values()))}
    missing = [tensor for tensor, name in weight_map.items() if tensor not in headers[name]]
    if missing:
        raise InputError(f"{index}: names {missing[0]!r}, which its file does not hold")
    return {tensor: headers[name][tensor] for tensor, name in weight_map.items()}


def _safetensors(path: Path) -> dict[str, TensorInfo]:
    return read_header(path)[0]


def _pickled(path: Path) -> dict[str, TensorInfo]:
    from draftprobe.drafter.pickles import headers

    _regular(path)
    return headers(path)


def _plain(name: Any) -> bool:
    return isinstance(name, str) and name == os.path.basename(name) and name not in ("", ".", "..")
