"""Tokens whose states the weights' witness looks at, spread over a file's sequences.

Knows a states file, no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from draftprobe.drafter.checkpoint import read_tensor
from draftprobe.drafter.wiring import Tap, tap_name
from draftprobe.errors import InputError
from draftprobe.states.record import States

SKIPPED = 4
"""First tokens of a sequence: attention sinks with massive activations."""


@dataclass(frozen=True)
class Sample:
    """Tokens to look at, their states read boundary by boundary.

    Attributes:
        boundaries: candidates.
        layers: L of the target.
        sequence: int64 [N], the text that each token belongs to.
        read: boundary -> states [N, H].
    """

    boundaries: tuple[Tap, ...]
    layers: int
    sequence: torch.Tensor
    read: Callable[[Tap], torch.Tensor]


def sample_states(
    states: States, tokens: int | None = None, boundaries: Iterable[Tap] | None = None
) -> Sample:
    """At most ``tokens`` tokens (8 H if None), spread evenly over sequences and within them.

    Raises:
        InputError: a boundary is not recorded; when read: a state is NaN or infinite.
    """
    chosen = states.boundaries if boundaries is None else tuple(boundaries)
    states.require(chosen)
    rows, sequence = _spread(states.lengths, tokens or 8 * states.provenance.hidden_size)

    def read(tap: Tap) -> torch.Tensor:
        h = read_tensor(states.tensors[tap_name(tap)])[rows]
        if not torch.isfinite(h).all():
            raise InputError(
                f"{states.path}: {tap_name(tap)} holds NaN or infinite values; capture again, in "
                "bfloat16 or float32 if the states overflowed"
            )
        return h

    return Sample(chosen, states.provenance.layers, sequence, read)


def _spread(lengths: Sequence[int], tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the file and the sequence of each: one quota for every sequence, or all it has."""
    sizes = [max(0, n - 1 - SKIPPED) for n in lengths]
    quota = max(sizes)
    while quota > 1 and sum(min(size, quota) for size in sizes) > tokens:
        quota -= 1
    rows: list[int] = []
    sequence: list[int] = []
    start = 0
    for index, size in enumerate(sizes):
        take = min(size, quota)
        rows += [start + SKIPPED + i * size // take for i in range(take)]
        sequence += [index] * take
        start += lengths[index] - 1
    return torch.tensor(rows, dtype=torch.long), torch.tensor(sequence, dtype=torch.long)
