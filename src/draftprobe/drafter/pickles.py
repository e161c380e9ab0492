"""Tensors of a torch pickle (``pytorch_model.bin``), mapped from its archive; never runs its code.

``torch.load`` with ``weights_only`` knows tensors and plain containers alone. What it would read
into memory is bounded by the file: its archive is looked through first. Imports torch, and is
imported only where there is a pickle.
"""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from draftprobe.drafter.checkpoint import TensorInfo
from draftprobe.errors import InputError

_MAX_PICKLE = 16_000_000
"""Bytes of names and sizes; some hundred thousand tensors."""

_DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16",
    torch.int32: "I32", torch.int64: "I64", torch.uint16: "U16", torch.uint32: "U32",
    torch.uint64: "U64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32",
    torch.float64: "F64", torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip

# What torch.load and zipfile raise on damaged or foreign files.
_DAMAGE = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError,
    NotImplementedError, OSError, RecursionError, RuntimeError, TypeError, ValueError,
    ImportError, pickle.PickleError, zipfile.BadZipFile,
)  # fmt: skip


def headers(path: Path) -> dict[str, TensorInfo]:
    """Name, dtype and shape of each tensor; the data stays in the file.

    Raises:
        InputError: see :func:`load`.
    """
    found = {}
    for name, tensor in load(path).items():
        size = tensor.numel() * tensor.element_size()
        found[name] = TensorInfo(name, _DTYPES[tensor.dtype], tuple(tensor.shape), path, -1, size)
    return found


def load(path: Path) -> dict[str, torch.Tensor]:
    """The file's dictionary of tensors, mapped: no data is read before it is used.

    Raises:
        InputError: not an archive as torch has written it since 1.6, damaged, or anything else
            than a dictionary of plain tensors.
    """
    try:
        _check_archive(path)
        data = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError:  # torch's own text says how to run the code all the same
        raise InputError(
            f"{path}: expected tensors in plain containers, found something that only code could "
            "build; it was not run, and the file is not read: ask for safetensors"
        ) from None
    except _DAMAGE as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: expected a complete torch archive of tensors: {first}") from None
    if not isinstance(data, dict) or not data:
        raise InputError(f"{path}: expected a dictionary of tensors, found {type(data).__name__}")
    for name, tensor in data.items():
        _check_tensor(path, name, tensor)
    return dict(data)


def _check_archive(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        raise InputError(
            f"{path}: not a torch archive: truncated, or a pickle as torch wrote before 1.6. It "
            "is not read; an old one can be loaded with torch.load(..., weights_only=True) and "
            "written as model.safetensors with safetensors.torch.save_file"
        )
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"{entry.filename!r} is compressed, which torch never does")
        if entry.filename.endswith(".pkl") and entry.file_size > _MAX_PICKLE:
            raise ValueError(f"{entry.filename!r} has {entry.file_size} bytes of names alone")
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ValueError("its parts are larger than the whole")


def _check_tensor(path: Path, name: Any, tensor: Any) -> None:
    """A plain tensor that is not larger than the data behind it."""
    plain = isinstance(name, str) and isinstance(tensor, torch.Tensor)
    if not plain or tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in _DTYPES:
        kind = getattr(tensor, "dtype", type(tensor).__name__)
        raise InputError(
            f"{path}: expected plain tensors under their names, found {kind} under {name!r}; "
            "a training state is no checkpoint: export the model's own weights"
        )
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise InputError(f"{path}: {name!r} is larger than the data behind it")
