"""A checkpoint folder as config, tensor headers and tensors read on demand.

Never runs code from a folder; an index names files inside it only. Does not know what the tensors
mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
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
_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: ``start`` and ``size`` are bytes in ``file``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder's ``config.json`` and the headers of its safetensors files."""

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
            "it may be truncated or of another format (a pickle is never loaded)"
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
        if dtype not in _SIZES or stop - start != prod(shape) * _SIZES[dtype] or start != end:
            raise ValueError(f"tensor {name!r}: {dtype} {shape} does not fit its offsets")
        tensors[name] = TensorInfo(name, dtype, shape, path, base + start, stop - start)
        end = stop
    if base + end != total:
        raise ValueError(f"the header describes {base + end} bytes, the file has {total}")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata that is not text")
    return tensors, metadata


def read_tensor(info: TensorInfo, rows: tuple[int, int] | None = None) -> torch.Tensor:
    """A tensor, mapped from its file, or a copy of its rows ``[first, last)``."""
    from safetensors import safe_open

    with safe_open(str(info.file), framework="pt") as file:
        if rows is None:
            return file.get_tensor(info.name)
        return file.get_slice(info.name)[rows[0] : rows[1]].clone()


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
    """Open a folder that holds ``config.json`` and safetensors weights, whole or sharded.

    Raises:
        InputError: no folder, no config, no safetensors weights, a damaged file, or an index that
            points outside the folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a checkpoint folder, found none; check the path")
    config = read_json(folder / "config.json")
    return Checkpoint(folder, config, _weights(folder))


def _weights(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor; where there is an index, each from the file that it names."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if (
            not isinstance(weight_map, dict)
            or not weight_map
            or not all(_plain(name) for name in weight_map.values())
        ):
            raise InputError(f"{index}: weight_map must name files inside {folder} only")
        headers = {name: read_header(folder / name)[0] for name in set(weight_map.values())}
        missing = [tensor for tensor, name in weight_map.items() if tensor not in headers[name]]
        if missing:
            raise InputError(f"{index}: names {missing[0]!r}, which its file does not hold")
        return {tensor: headers[name][tensor] for tensor, name in weight_map.items()}
    single = folder / "model.safetensors"
    if single.exists():
        return read_header(single)[0]
    found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
    raise InputError(
        f"{folder}: expected model.safetensors or model.safetensors.index.json, found {found}"
    )


def _plain(name: Any) -> bool:
    return isinstance(name, str) and name == os.path.basename(name) and name not in ("", ".", "..")
