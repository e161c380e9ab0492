"""Which text a pool takes: slots of sequences, scored tokens among them.

Knows masks, lengths and the draft vocabulary, no states and no weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from draftprobe.drafter.model import Drafter
from draftprobe.errors import InputError
from draftprobe.measure.replay import spread
from draftprobe.states.record import States

MIN_SEQUENCES = 16
"""Fewer independent sequences give intervals that depend on each sequence's luck."""


DEAR = 2**28
"""Multiply-adds of a scored token above which a first look takes fewer of them."""


def dear(drafter: Drafter) -> bool:
    """Whether a token costs this drafter over :data:`DEAR`; fc is not counted, it is projected."""
    matrices = [*drafter.decoder[0].parameters(), drafter.lm_head.weight]
    return sum(matrix.numel() for matrix in matrices) > DEAR


@dataclass(frozen=True, slots=True)
class Limits:
    """How much text a pool takes.

    Attributes:
        tokens: at most so many scored tokens, spread evenly over the sequences.
        sequences: at most so many sequences, scattered over the file.
        context: at most so many slots of a sequence. They are its first ones, so that a scored
            token sees all that a decoder's cache would hold, unless the counted text begins later
            than half-way through them: then the first slots of the sequence are not attended to.
        memory: bytes that projections may take; a larger pool is made of fewer sequences.
        vocabulary: at most so many rows of the head are scored; see :class:`~.pool.Pool`.
    """

    tokens: int = 2048
    sequences: int = 256
    context: int = 256
    memory: int = 2**31
    vocabulary: int = 2**15


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The part of a sequence that takes part: slots ``start``..., scored ones among them."""

    index: int
    start: int
    scored: torch.Tensor

    @property
    def rows(self) -> int:
        """How many slots take part."""
        return int(self.scored[-1]) + 1 - self.start


def windows_of(
    drafter: Drafter, states: States, labels: torch.Tensor, limits: Limits
) -> list[Window]:
    """Which slots of which sequences: counted tokens inside the draft vocabulary."""
    text, masks = (x.split(list(states.lengths)) for x in (states.tokens, states.mask))
    windows = []
    for index, (tokens, mask) in enumerate(zip(text, masks, strict=True)):
        scored = (mask[2:] & (labels[tokens[2:]] >= 0)).nonzero().flatten()
        read = scored + drafter.wiring.token_shift
        scored = scored[(read >= 0) & (read < len(tokens))]
        if len(scored):
            end = max(limits.context, int(scored[0]) + limits.context // 2)
            start = max(0, min(end, len(tokens)) - limits.context)
            windows.append(Window(index, start, scored[(scored >= start) & (scored < end)]))
    if not windows:
        raise InputError(
            f"{states.path}: no token can be scored: none of the counted ones from each third "
            "token on lies in the draft vocabulary"
        )
    windows = [windows[place] for place in scattered(len(windows), limits.sequences)]
    quotas = spread([len(window.scored) for window in windows], limits.tokens)
    return [
        replace(window, scored=_evenly(window.scored, quota))
        for window, quota in zip(windows, quotas, strict=True)
        if quota
    ]


def _evenly(values: torch.Tensor, count: int) -> torch.Tensor:
    return values[((torch.arange(count) + 0.5) * len(values) / count).long()]


def scattered(total: int, count: int) -> list[int]:
    """``count`` places of 0..total-1, ascending, neighbours in the file apart."""
    return sorted(sorted(range(total), key=lambda place: place * 0.6180339887 % 1)[:count])
