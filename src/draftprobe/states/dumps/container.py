"""Opens one file of a dump as named entries: safetensors, torch.save, gzip of it, npy, JSON.

Nothing from a file is run, and no tensor may claim more than its file holds. Knows no format.
"""

from __future__ import annotations

import gzip
import json
import pickle
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import IO, TYPE_CHECKING, Any

from draftprobe.drafter.checkpoint import read_header, read_tensor
from draftprobe.errors import InputError

if TYPE_CHECKING:
    import torch

SUFFIXES = (".safetensors", ".ckpt", ".ckpt.gz", ".pt", ".pth", ".npy", ".json", ".jsonl")
MOST_JSON, MOST_PICKLE = 512 << 20, 16 << 20
"""Of a pickle: what is read number by number, some seconds for so much; tensors are mapped."""
MOST_UNPACKED, MOST_RATIO = 8 << 30, 100
METADATA = "__metadata__"
ARRAY = "array"
"""The name of an entry that has none: the array of an .npy file, a bare tensor or list."""

Entries = Mapping[str, Any]


def entries(path: Path) -> Iterator[Entries]:
    """The records of a file: one, one per line of a .jsonl file, or one per entry of a list of
    dictionaries; tensors stay mapped.

    Raises:
        InputError: no regular file, another format, truncated, or larger than it may be.
    """
    size = _regular(path)
    if path.name.endswith(".safetensors"):
        yield _safetensors(path)
    elif path.name.endswith(".npy"):
        yield _npy(path)
    elif path.name.endswith(".json"):
        yield from _json(path, size)
    elif path.name.endswith(".jsonl"):
        yield from _json_lines(path)
    elif path.name.endswith(".gz"):
        with _unpacked(path, size) as file:
            yield from _pickle(Path(file.name), path)
    else:
        yield from _pickle(path, path)


def _regular(path: Path) -> int:
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not S_ISREG(status.st_mode):
        raise InputError(f"{path}: expected a regular file, found something else")
    if not path.name.endswith(SUFFIXES):
        raise InputError(f"{path}: expected a file named *{', *'.join(SUFFIXES)}")
    return status.st_size


def _safetensors(path: Path) -> Entries:
    """Every tensor, mapped; the header's metadata under :data:`METADATA`."""
    tensors, metadata = read_header(path)
    return {name: read_tensor(info) for name, info in tensors.items()} | {METADATA: metadata}


def _pickle(path: Path, named: Path) -> Iterator[Entries]:
    """A torch.save file through ``weights_only=True``: tensors and plain containers, no code."""
    import torch

    size = path.stat().st_size
    _stored(path, named, size)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd pickle protocols: what is read is checked
            data = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:  # torch's own text says how to run the code all the same
        raise InputError(
            f"{named}: expected tensors in plain containers, found something that only code could "
            "build; it was not run: save it again as a dictionary of tensors"
        ) from None
    except Exception as error:  # a malformed pickle raises nearly any kind; each is bad input
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise InputError(
            f"{named}: expected a complete file of torch.save with tensors in plain containers: "
            f"{first}"
        ) from None
    listed = isinstance(data, list | tuple) and data and all(type(one) is dict for one in data)
    for record in data if listed else [data if isinstance(data, dict) else {ARRAY: data}]:
        for name, value in record.items():
            _check_value(value, name, named, size)
        yield {str(name): value for name, value in record.items()}


def _stored(path: Path, named: Path, size: int) -> None:
    """torch.save stores without compression; anything else could unpack to any size."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise InputError(
            f"{named}: expected a file of torch.save (1.6 or newer), found another format or half "
            f"a file: {error}"
        ) from None
    for info in infos:
        if info.filename.endswith(".pkl") and info.file_size > MOST_PICKLE:
            raise InputError(
                f"{named}: expected names and token ids of at most {MOST_PICKLE >> 20} MiB beside "
                f"the tensors, found {info.file_size >> 20}; save ids as tensors, not as lists"
            )
    packed = any(info.compress_type != zipfile.ZIP_STORED for info in infos)
    if packed or sum(info.file_size for info in infos) > size:
        raise InputError(
            f"{named}: expected uncompressed entries, as torch.save writes them, found others"
        )


def _check_value(value: Any, name: Any, path: Path, size: int) -> None:
    import torch

    values = value if isinstance(value, list | tuple) else [value]
    for one in values:
        if not isinstance(one, torch.Tensor):
            continue
        plain = type(one) is torch.Tensor and one.layout is torch.strided and not one.is_quantized
        if not plain or one.device.type != "cpu" or one.numel() * one.element_size() > size:
            raise InputError(
                f"{path}: {name!r} should be a plain tensor that lies in the file, found "
                f"{type(one).__name__} {tuple(one.shape)} on {one.device.type} in a file of "
                f"{size} bytes"
            )


def _unpacked(path: Path, size: int) -> IO[bytes]:
    """A gzip file, unpacked beside memory, up to a bound."""
    most = min(MOST_UNPACKED, MOST_RATIO * size + (1 << 20))
    file = tempfile.NamedTemporaryFile(prefix="draftprobe-", suffix=".ckpt")  # noqa: SIM115
    try:
        with gzip.open(path, "rb") as packed:
            while block := packed.read(1 << 20):
                if file.tell() + len(block) > most:
                    raise InputError(
                        f"{path}: unpacks to more than {most} bytes ({MOST_RATIO} times its size), "
                        "which no dump of states does; unpack it by hand if you trust it"
                    )
                file.write(block)
    except (OSError, EOFError, ValueError, zlib.error) as error:  # BadGzipFile is an OSError
        file.close()
        raise InputError(f"{path}: expected a complete gzip file: {error}") from None
    except BaseException:
        file.close()
        raise
    file.flush()
    return file


def _npy(path: Path) -> Entries:
    import numpy
    import torch

    try:
        array = numpy.load(path, mmap_mode="c", allow_pickle=False)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if array.dtype.kind not in "fiub":
            raise ValueError(f"entries of type {array.dtype}")
        return {ARRAY: torch.from_numpy(array.view(numpy.ndarray)[...])}
    except Exception as error:  # a malformed header raises SyntaxError, TokenError and more
        raise InputError(f"{path}: expected an .npy file of numbers: {error}") from None


def _json(path: Path, size: int) -> Iterator[Entries]:
    if size > MOST_JSON:
        raise InputError(
            f"{path}: expected JSON of at most {MOST_JSON >> 20} MiB, found {size >> 20}; write "
            "one response a line into a .jsonl file"
        )
    data = _parse(path.read_bytes(), path)
    for number, record in enumerate(data if isinstance(data, list) else [data]):
        yield _object(record, f"{path}[{number}]")


def _json_lines(path: Path) -> Iterator[Entries]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MOST_JSON + 1):
            number += 1
            if len(line) > MOST_JSON:
                raise InputError(f"{path}:{number}: expected at most {MOST_JSON >> 20} MiB a line")
            if line.strip():
                yield _object(_parse(line, f"{path}:{number}"), f"{path}:{number}")


def _parse(text: bytes, where: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: expected JSON: {error}") from None


def _object(record: Any, where: str) -> Entries:
    if not isinstance(record, dict):
        raise InputError(f"{where}: expected a JSON object, found {type(record).__name__}")
    return record


def tokens_of(value: Any, where: Any) -> torch.Tensor:
    """Token ids as int64 [n]: a tensor [n] or [1, n] of integers, or a list of them.

    Raises:
        InputError: anything else, or a negative id.
    """
    import torch

    if isinstance(value, list) and all(type(token) is int and token < 2**31 for token in value):
        value = torch.tensor(value, dtype=torch.long)
    integers = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
    if not isinstance(value, torch.Tensor) or value.dtype not in integers:
        raise InputError(f"{where}: expected token ids as integers, found {_kind(value)}")
    flat = value.reshape(-1) if value.dim() == 2 and len(value) == 1 else value
    if flat.dim() != 1 or (len(flat) and int(flat.min()) < 0):
        raise InputError(f"{where}: expected token ids [n] from 0 on, found {_kind(value)}")
    return flat.long()


def mask_of(value: Any, where: Any) -> torch.Tensor:
    """A loss mask as bool [n]: zeros and ones of any type, [n] or [1, n].

    Raises:
        InputError: anything else.
    """
    import torch

    if isinstance(value, list) and all(isinstance(v, int | float) for v in value):
        value = torch.tensor(value)
    if not isinstance(value, torch.Tensor):
        raise InputError(f"{where}: expected a mask of 0 and 1, found {_kind(value)}")
    flat = value.reshape(-1) if value.dim() == 2 and len(value) == 1 else value
    if flat.dim() != 1 or not bool(((flat == 0) | (flat == 1)).all()):
        raise InputError(f"{where}: expected a mask [n] of 0 and 1, found {_kind(value)}")
    return flat.bool()


def states_of(value: Any, where: Any, batched: bool = False) -> torch.Tensor:
    """A tensor of states as it lies in the file: [T, W] or [T, n, H].

    Args:
        value: what the file holds.
        where: for messages.
        batched: the format puts an axis of one before it.

    Raises:
        InputError: no floating-point tensor of such a shape.
    """
    import torch

    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        raise InputError(f"{where}: expected a tensor of floats, found {_kind(value)}")
    state = value[0] if value.dim() > 2 and len(value) == 1 and batched else value
    if state.dim() not in (2, 3) or 0 in state.shape:
        raise InputError(f"{where}: expected states [T, W] or [T, n, H], found {_kind(value)}")
    return state


def split(states: torch.Tensor, hidden: int, where: Any) -> tuple[torch.Tensor, ...]:
    """[T, n * H] or [T, n, H] as n views [T, H].

    Raises:
        InputError: the width is no multiple of ``hidden``.
    """
    width = states.shape[-1]
    if states.dim() == 3 and width == hidden:
        return states.unbind(1)
    if states.dim() == 3 or hidden < 1 or width % hidden:
        raise InputError(
            f"{where}: expected states of n times the hidden size {hidden}, found "
            f"{tuple(states.shape)}; is it another target's dump?"
        )
    return states.unflatten(-1, (width // hidden, hidden)).unbind(1)


def dtype_name(states: torch.Tensor) -> str:
    """The dtype without torch's prefix: ``bfloat16``."""
    return str(states.dtype).removeprefix("torch.")


def contents(record: Entries) -> str:
    """What is in a record, for messages: names with dtypes and shapes."""
    held = [(name, value) for name, value in record.items() if name != METADATA]
    told = [f"{name!r} ({_kind(value)})" for name, value in held[:8]]
    return ", ".join(told + ["..."] * (len(held) > 8)) or "nothing"


def _kind(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, list | tuple) and value:
        first = value[0]  # which may be the list itself
        kind = type(first).__name__ if isinstance(first, list | tuple) else _kind(first)
        return f"{type(value).__name__} of {len(value)}, the first {kind}"
    return type(value).__name__
