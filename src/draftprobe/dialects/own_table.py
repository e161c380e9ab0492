"""Whether a drafter's embedding table is the target's own, so that it may be left out.

Compared row by row in the drafter's dtype, in pieces of a few MB. Knows no stack.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftprobe.drafter.checkpoint import Checkpoint, TensorInfo, open_checkpoint, read_tensor
from draftprobe.drafter.layout import Layout
from draftprobe.errors import InputError

EMBEDDING = "embed_tokens.weight"
_NAMES = (".embed_tokens.weight", ".wte.weight", ".word_embeddings.weight")
_OTHER_TOWERS = ("vision", "visual", "audio", "projector")
_PIECE = 2**24


@dataclass(frozen=True, slots=True)
class Compared:
    """Two tables: rows, how many differ (None: not compared), and what is to be said of it."""

    rows: int
    differ: int | None
    told: str

    @property
    def same(self) -> bool:
        """Every row is equal."""
        return self.differ == 0


def compare_embedding(checkpoint: Checkpoint, layout: Layout, target: Path | None) -> Compared:
    """The drafter's own table against the target's.

    Args:
        checkpoint: a folder that has a table.
        layout: where.
        target: the target's folder with weights; a config or None leaves it uncompared.

    Raises:
        InputError: the target's weights are damaged.
    """
    own = checkpoint.info(layout.sources[EMBEDDING].name)
    rows = own.shape[0] if own.shape else 0
    if target is None or not target.is_dir() or not _has_weights(target):
        hint = "give --target with the target's folder and weights: an equal table is left out"
        return Compared(rows, None, hint)
    other = _table(target)
    if other is None:
        return Compared(rows, None, f"{target} holds no single embedding table to compare with")
    if own.shape != other.shape:
        told = f"its table is {list(own.shape)}, the target's {list(other.shape)}"
        return Compared(rows, None, told)
    differ = _differing(own, other)
    told = (
        f"{differ:,} of {rows:,} rows differ from the target's, so that it cannot be left out; "
        "speculators, eagle and torchspec keep it"
    )
    return Compared(rows, differ, told)


def _has_weights(folder: Path) -> bool:
    names = ("model.safetensors", "pytorch_model.bin")
    return any((folder / f"{name}{end}").exists() for name in names for end in ("", ".index.json"))


def _table(target: Path) -> TensorInfo | None:
    """The language model's input embedding; None unless there is one such tensor."""
    found = [
        info
        for name, info in open_checkpoint(target).tensors.items()
        if f".{name}".endswith(_NAMES) and not any(tower in name for tower in _OTHER_TOWERS)
    ]
    return found[0] if len(found) == 1 else None


def _differing(own: TensorInfo, other: TensorInfo) -> int:
    """Rows that differ once the target's are cast as the drafter's are; NaN equals nothing."""
    step = max(1, _PIECE * own.shape[0] // max(own.size, other.size, 1))
    differ = 0
    for first in range(0, own.shape[0], step):
        rows = first, min(first + step, own.shape[0])
        ours, theirs = read_tensor(own, rows), read_tensor(other, rows)
        if not (ours.dtype.is_floating_point and theirs.dtype.is_floating_point):
            raise InputError(
                f"{other.file}: expected embedding tables of floats, found {other.dtype} against "
                f"{own.dtype}"
            )
        differ += int((ours != theirs.to(ours.dtype)).any(dim=1).sum())
    return differ
