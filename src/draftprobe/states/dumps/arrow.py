"""The arrow dataset beside a speculators dump: token ids and loss masks, row by row.

A folder of ``datasets.save_to_disk``: ``state.json`` names the files, each an Arrow stream. Needs
pyarrow, which whoever made the data has; nothing else of draftprobe does.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from draftprobe.drafter.checkpoint import read_json
from draftprobe.errors import InputError

_COLUMNS = ("input_ids", "loss_mask")


@dataclass(frozen=True)
class Dataset:
    """Record batches, mapped, and the row at which each begins."""

    folder: Path
    batches: tuple[Any, ...]
    starts: tuple[int, ...]

    def row(self, number: int) -> dict[str, list[int]]:
        """``input_ids`` and ``loss_mask`` of one row.

        Raises:
            InputError: there is no such row, or it holds something else than integers.
        """
        which = bisect.bisect_right(self.starts, number) - 1
        batch = self.batches[which] if self.batches else None
        place = number - self.starts[which] if self.batches else 0
        if batch is None or place >= batch.num_rows:
            rows = self.starts[-1] + self.batches[-1].num_rows if self.batches else 0
            raise InputError(
                f"{self.folder}: expected a row {number} for hs_{number}.safetensors, found "
                f"{rows} rows; is it another run's dataset?"
            )
        found = {name: batch.column(name)[place].as_py() for name in _COLUMNS}
        for name, values in found.items():
            if not isinstance(values, list) or not all(type(v) in (int, bool) for v in values):
                raise InputError(
                    f"{self.folder}: row {number}: {name} should be a list of integers"
                )
        return {name: [int(v) for v in values] for name, values in found.items()}


def dataset_beside(folder: Path) -> Path | None:
    """The dataset folder that holds ``folder``, or is it; None if neither does."""
    for candidate in (folder, folder.parent):
        if (candidate / "state.json").is_file() and (candidate / "dataset_info.json").is_file():
            return candidate
    return None


def open_dataset(folder: Path) -> Dataset:
    """Map every file of a dataset folder; the last few are kept open.

    Raises:
        InputError: pyarrow is missing, or this is no dataset folder with tokens and masks.
    """
    state = folder / "state.json"
    return _open(folder, state.stat().st_mtime_ns if state.is_file() else 0)


@lru_cache(maxsize=4)
def _open(folder: Path, _changed: int) -> Dataset:
    try:
        import pyarrow
    except ImportError:
        raise InputError(
            f"{folder}: reading the loss mask of an arrow dataset needs pyarrow; install it, or "
            "move the hs_*.safetensors files into a folder of their own and choose --mask all"
        ) from None
    batches: list[Any] = []
    starts: list[int] = []
    row = 0
    for name in _files(folder):
        try:
            with pyarrow.memory_map(str(folder / name)) as source:
                for batch in pyarrow.ipc.open_stream(source):
                    _check(batch, folder / name)
                    batches.append(batch)
                    starts.append(row)
                    row += batch.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{folder / name}: expected an Arrow stream: {error}") from None
    return Dataset(folder, tuple(batches), tuple(starts))


def _files(folder: Path) -> list[str]:
    state = read_json(folder / "state.json")
    entries = state.get("_data_files")
    names = [
        entry.get("filename") if isinstance(entry, dict) else None
        for entry in (entries if isinstance(entries, list) else [])
    ]
    plain = all(isinstance(name, str) and name == Path(name).name and name for name in names)
    if not names or not plain or state.get("_indices_data_files"):
        raise InputError(
            f"{folder}/state.json: expected _data_files that name files inside the folder, and no "
            "index over them; save the dataset again with save_to_disk"
        )
    return [str(name) for name in names]


def _check(batch: Any, path: Path) -> None:
    batch.validate(full=True)
    missing = [name for name in _COLUMNS if name not in batch.schema.names]
    if missing:
        raise InputError(f"{path}: expected columns {', '.join(_COLUMNS)}, found no {missing[0]}")
