"""Checks that read every weight: NaN and infinity, half precision, own table against the target's.

Streams in pieces of a few MiB, so that a checkpoint larger than memory passes. No torch, except for
a pickle folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftprobe.diagnose.checks.catalogue import finding
from draftprobe.diagnose.checks.subject import Subject
from draftprobe.diagnose.verdict import Finding, NotEvaluated
from draftprobe.drafter.checkpoint import Checkpoint, TensorInfo

if TYPE_CHECKING:
    import numpy as np

_PIECE = 8 * 2**20
_LARGEST_HALF = 65519.99
"""What still rounds to 65504, the largest half-precision number."""
_STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}

UNRELATED = 0.1
"""Mean cosine of rows below which an embedding has nothing of the target's."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Alike:
    """An own table against the target's: rows compared, how many are equal, mean cosine.

    The target's numbers are rounded to the drafter's dtype first: a bfloat16 copy of a float32
    table is a copy.
    """

    name: str
    rows: int
    equal: int
    cosine: float


def check(subject: Subject, progress: Progress) -> tuple[list[Finding], list[NotEvaluated]]:
    """W501 and W502 over every float tensor, W506; ``progress(done, total)`` counts MiB."""
    infos = list(subject.checkpoint.tensors.values())
    readable = [info for info in infos if info.dtype in _STORED]
    total, done = sum(info.size for info in readable), 0
    bad: dict[str, int] = {}
    large: dict[str, float] = {}
    for info in readable:
        for values in pieces(info):
            broken, most = _extremes(values)
            if broken:
                bad[info.name] = bad.get(info.name, 0) + broken
            if most > _LARGEST_HALF:
                large[info.name] = max(most, large.get(info.name, 0.0))
            done += len(values) * int(_STORED[info.dtype][-1])
            progress(done // 2**20, total // 2**20)
    found = []
    if bad:
        told = ", ".join(f"{name} ({count} numbers)" for name, count in sorted(bad.items()))
        found.append(finding("W501", told))
    if large:
        told = ", ".join(f"{name} (up to {most:.4g})" for name, most in sorted(large.items()))
        found.append(finding("W502", f"{told}: infinite once cast to float16, whose end is 65504"))
    found += _dead_slots(subject)
    left = sorted({i.dtype for i in infos if i.dtype.startswith("F")} - set(_STORED))
    out = [NotEvaluated("numbers", f"weights of {', '.join(left)} are not read")] if left else []
    return found, out


def _dead_slots(subject: Subject) -> Iterator[Finding]:
    """W506: fc, or the columns of one slot, all zero."""
    import numpy as np

    from draftprobe.diagnose.checks.taps import slots

    count = slots(subject)
    info = subject.checkpoint.info(subject.file_name("fc.weight")) if count else None
    if not count or info is None or info.dtype not in _STORED or not info.size:
        return
    width, most = info.shape[1], np.zeros(count)
    step = max(1, _PIECE // (4 * width))
    for first in range(0, info.shape[0], step):
        rows = np.abs(_rows(info, first, min(first + step, info.shape[0]), width))
        most = np.maximum(most, rows.reshape(len(rows), count, -1).max(axis=(0, 2)))
    dead = [slot for slot, largest in enumerate(most) if largest == 0]
    if dead:
        which = "all of it is" if len(dead) == count else f"the columns of slots {dead} are"
        yield finding("W506", f"{info.name} {list(info.shape)}: {which} zero, of {count} slots")


def pieces(info: TensorInfo, first: int = 0, last: int | None = None) -> Iterator[np.ndarray]:
    """A tensor's numbers ``first`` to ``last`` as float32 (float64 as such), flat, in pieces."""
    import numpy as np

    if info.pickled:
        yield from _pickled(info, first, last)
        return
    kind = _STORED[info.dtype]
    width = int(kind[-1])
    left = ((info.size // width) if last is None else last) - first
    with info.file.open("rb") as file:
        file.seek(info.start + first * width)
        while left > 0:
            raw = np.frombuffer(file.read(min(left * width, _PIECE)), dtype=kind)
            if not len(raw):
                return
            left -= len(raw)
            if info.dtype == "BF16":
                yield (raw.astype("<u4") << 16).view("<f4")
            else:
                yield raw if info.dtype == "F64" else raw.astype("<f4")


def _pickled(info: TensorInfo, first: int, last: int | None) -> Iterator[np.ndarray]:
    """:func:`pieces` of a pickle's tensor; ``first`` and ``last`` are rows' ends."""
    import torch

    from draftprobe.drafter.checkpoint import pieces as of_torch
    from draftprobe.drafter.checkpoint import read_tensor

    if last is None:
        parts: Iterator[torch.Tensor] = of_torch(info, _PIECE)
    else:
        width = info.shape[1]
        parts = iter([read_tensor(info, (first // width, last // width))])
    for part in parts:
        flat = part.reshape(-1)
        yield (flat if flat.dtype == torch.float64 else flat.float()).numpy()


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Float32 or float64 numbers as they are once stored in ``dtype``, to nearest, ties to even."""
    import numpy as np

    if dtype == "F64":
        return values
    single = values.astype("<f4")
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return single.astype("<f2").astype("<f4")
    if dtype != "BF16":
        return single
    bits = single.view("<u4").astype(np.uint64)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return np.where(np.isfinite(single), upper.astype("<u4").view("<f4"), single)


def _extremes(values: np.ndarray) -> tuple[int, float]:
    """How many are NaN or infinite, and the largest magnitude of the others."""
    import numpy as np

    most = float(np.abs(values).max(initial=0))  # NaN or inf if there is one
    if most == most and most != float("inf"):
        return 0, most
    finite = np.isfinite(values)
    return int((~finite).sum()), float(np.abs(values[finite]).max(initial=0))


def compare(subject: Subject, target: Checkpoint, progress: Progress) -> dict[str, Alike | str]:
    """The drafter's embedding and head against the target's, row by row; or why it cannot be.

    A head's row i is compared with the target's row of the token that draft id i means.
    """
    from draftprobe.diagnose.checks.vocabulary import target_ids

    out: dict[str, Alike | str] = {}
    for name in ("embed_tokens.weight", "lm_head.weight"):
        if name not in subject.layout.sources:
            continue
        own = subject.checkpoint.info(subject.file_name(name))
        other = _theirs(target, name)
        if other is None:
            out[name] = "the target's folder holds no such tensor"
        elif not {own.dtype, other.dtype} <= set(_STORED):
            out[name] = f"{own.dtype} against {other.dtype} is not compared"
        elif own.shape[1:] != other.shape[1:]:
            out[name] = f"{list(own.shape)} against {list(other.shape)}"
        elif name.startswith("embed"):
            out[name] = (
                _alike(own, other, None, progress)
                if own.shape == other.shape
                else f"{list(own.shape)} against {list(other.shape)}"
            )
        else:
            ids = target_ids(subject)
            fits = (
                ids is not None
                and len(ids) == own.shape[0]
                and (ids.min() >= 0 and ids.max() < other.shape[0])
            )
            out[name] = _alike(own, other, ids, progress) if fits else "d2t does not say the rows"
    return out


def _theirs(target: Checkpoint, name: str) -> TensorInfo | None:
    """The target's table; its embedding for a tied head."""
    for wanted in (name, "embed_tokens.weight"):
        for found, info in target.tensors.items():
            if (found == wanted or found.endswith("." + wanted)) and "visual" not in found:
                return info
    return None


def _alike(own: TensorInfo, other: TensorInfo, ids: Any, progress: Progress) -> Alike:
    import numpy as np

    width = own.shape[1]
    step = max(1, _PIECE // (4 * width))
    equal, total = 0, 0.0
    for first in range(0, own.shape[0], step):
        last = min(first + step, own.shape[0])
        a = _rows(own, first, last, width)
        if ids is None:
            b = _rows(other, first, last, width)
        else:
            b = _gathered(other, ids[first:last], width)
        b = _rounded(b, own.dtype)
        equal += int((a == b).all(axis=1).sum())
        size = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        total += float(((a * b).sum(axis=1) / np.where(size > 0, size, 1)).sum())
        progress(last, own.shape[0])
    return Alike(own.name, own.shape[0], equal, total / max(own.shape[0], 1))


def _rows(info: TensorInfo, first: int, last: int, width: int) -> np.ndarray:
    import numpy as np

    return np.concatenate(list(pieces(info, first * width, last * width))).reshape(-1, width)


def _gathered(info: TensorInfo, ids: np.ndarray, width: int) -> np.ndarray:
    """Rows by id; neighbours are read together."""
    import numpy as np

    cuts = np.flatnonzero(np.diff(ids) != 1) + 1
    runs = np.split(ids, cuts)
    return np.concatenate([_rows(info, int(run[0]), int(run[-1]) + 1, width) for run in runs])


def check_embedding(alike: dict[str, Alike | str]) -> Iterator[Finding]:
    """W310."""
    found = alike.get("embed_tokens.weight")
    if isinstance(found, Alike) and found.cosine < UNRELATED:
        yield finding(
            "W310",
            f"{found.name}: mean cosine {found.cosine:.3f} with the target's rows over "
            f"{found.rows} rows, {found.equal} equal: never filled, or of another model; vLLM "
            "serves it, SGLang replaces it",
        )
