"""The draft vocabulary: which target token each draft id means (d2t, t2d): build, verify, apply.

EAGLE-3's convention: ``target id = i + d2t[i]`` (int64 [D]) and ``t2d`` bool [V]. Knows no model.
"""

from __future__ import annotations

import torch

from draftprobe.errors import InputError


def choose(counts: torch.Tensor, size: int) -> torch.Tensor:
    """Ascending target ids of the ``size`` most frequent tokens, filled up by lowest id.

    Args:
        counts: occurrences per target id, [V].
        size: draft vocabulary, 1..V.

    Raises:
        InputError: more draft tokens than the target has.
    """
    if not 0 < size <= counts.numel():
        raise InputError(f"draft vocabulary: expected 1..{counts.numel()} tokens, found {size}")
    order = torch.argsort(counts, descending=True, stable=True)  # ties: the lower id first
    return order[:size].sort().values


def tables(kept: torch.Tensor, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """d2t int64 [D] and t2d bool [V] of ascending target ids."""
    t2d = torch.zeros(vocabulary, dtype=torch.bool)
    t2d[kept] = True
    return kept - torch.arange(kept.numel()), t2d


def target_ids(d2t: torch.Tensor | None, reading: str, draft: int, vocabulary: int) -> torch.Tensor:
    """The target id of each draft id, int64 [D], under a reading of d2t.

    Raises:
        InputError: the reading needs a table that is not there, or an id falls outside 0..V-1.
    """
    index = torch.arange(draft)
    if reading == "identity":
        ids = index
    elif d2t is None:
        raise InputError(f"draft vocabulary: reading {reading!r} needs a d2t table, found none")
    elif d2t.shape != (draft,):
        raise InputError(f"d2t: expected shape ({draft},), found {tuple(d2t.shape)}")
    else:
        ids = d2t.long() + index if reading == "offset" else d2t.long()
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
        raise InputError(
            f"d2t read as {reading}: target ids should lie in 0..{vocabulary - 1}, found "
            f"{int(ids.min())}..{int(ids.max())}; the table may be of another target or absolute"
        )
    return ids


def draft_labels(ids: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Target id -> draft id, int64 [V]; -1 where the draft vocabulary lacks the token."""
    labels = torch.full((vocabulary,), -1, dtype=torch.long)
    labels[ids] = torch.arange(ids.numel())
    return labels
