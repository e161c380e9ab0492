"""Tokens and masks of a dump beside its states: a mask from reference states, and ids to capture.

Knows no format.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from draftprobe.errors import InputError
from draftprobe.states.dumps.identify import Index
from draftprobe.states.dumps.record import Dump, Sequence
from draftprobe.states.record import States

if TYPE_CHECKING:
    import torch


def masked_by(dump: Dump, reference: States) -> Dump:
    """The dump with the reference's mask on each sequence that has none, and whose tokens it holds.

    A States mask marks the tokens whose prediction counts; so does a dump's under ``marked``.
    """
    index = Index(reference)

    def stream() -> Iterator[Sequence]:
        for one in dump.stream():
            yield one if one.mask is not None else replace(one, mask=_mask(one, index, reference))

    masked = sum(one.mask is not None for one in stream())
    return replace(dump, stream=stream, masked=masked)


def _mask(one: Sequence, index: Index, reference: States) -> torch.Tensor | None:
    """The reference's mask, bool [n], of all tokens; None where it does not hold them all."""
    found = index.find(one)
    if found is None:
        return None
    n, start = len(one.tokens), sum(reference.lengths[: found[0]])
    held = slice(start, start + min(n, reference.lengths[found[0]]))
    same = reference.tokens[held].tolist() == one.tokens.tolist()
    return reference.mask[held] if same else None


def write_tokens(dump: Dump, out: Path) -> int:
    """Write the ids, and the masks that there are, as ``draftprobe capture --tokens`` reads them.

    Returns:
        sequences written, one JSON line each.

    Raises:
        InputError: ``out`` exists, or cannot be written.
    """
    if out.exists() or out.is_symlink():
        raise InputError(f"{out}: exists already and is not overwritten; choose another name")
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror or error}") from None
    try:
        with (folder / "tokens").open("x", encoding="utf-8") as file:
            for one in dump.stream():
                line = {"input_ids": one.tokens.tolist()}
                if one.mask is not None:
                    line["loss_mask"] = one.mask.int().tolist()
                file.write(json.dumps(line) + "\n")
        os.replace(folder / "tokens", out)
    finally:
        shutil.rmtree(folder)
    return len(dump)
