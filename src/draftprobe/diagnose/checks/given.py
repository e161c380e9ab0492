"""What a user gives beside the drafter: the target's config, and counts of tokens.

Reads and validates; knows no check.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftprobe.dialects.families import family_of, text_part
from draftprobe.dialects.reading import Target
from draftprobe.drafter.checkpoint import read_json
from draftprobe.errors import InputError

_MAX_COUNTS = 10_000_000


def open_target(path: Path) -> Target:
    """A target from its ``config.json``, or the folder that holds it.

    Raises:
        InputError: no such file, or no sizes in it.
    """
    where = path / "config.json" if path.is_dir() else path
    config = read_json(where)
    text = text_part(config)
    layers, hidden, vocabulary = (
        _size(text.get(key, config.get(key)), key, where)
        for key in ("num_hidden_layers", "hidden_size", "vocab_size")
    )
    return Target(family_of(config, where), layers, hidden, vocabulary, text, str(where))


def _size(value: Any, key: str, where: Path) -> int:
    if type(value) is not int or not 0 < value < 2**31:
        raise InputError(
            f"{where}: expected a positive number under {key!r}, found {value!r}; is it the "
            "target's config and not another file's?"
        )
    return value


def read_histogram(path: Path) -> Any:
    """Counts by target id, int64 [n]: a JSON object {id: count} or list, or a .npy vector.

    Raises:
        InputError: another form, or negative counts.
    """
    import numpy as np

    try:
        if path.suffix == ".npy":
            counts = np.load(path, allow_pickle=False)
        else:
            data = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(data, dict):
                pairs = {int(key): int(value) for key, value in data.items()}
                if pairs and not 0 <= min(pairs) <= max(pairs) < _MAX_COUNTS:
                    raise ValueError("token ids out of range")
                counts = np.zeros(max(pairs, default=0) + 1, dtype=np.int64)
                counts[list(pairs)] = list(pairs.values())
            else:
                counts = np.array(data)
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any():
            raise ValueError(f"found {counts.dtype} {list(counts.shape)}")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, OverflowError, RecursionError, EOFError) as error:
        raise InputError(
            f"{path}: expected counts of tokens, as JSON {{id: count}} or a list, or as a .npy "
            f"vector of integers: {error}"
        ) from None
    return counts.astype(np.int64)
