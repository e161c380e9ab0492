"""Inner products of served states with reference boundaries, per token: what identification reads.

From three numbers per token follow the errors of a boundary as it is, of the branch between two
boundaries, of either one moved by a token, scaled, or of another length at every token:

    |x - s c|^2 = |x|^2 - 2 s <x, c> + s^2 |c|^2

One sequence and two boundaries are in memory at a time. Knows no treatment and no finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from draftprobe.drafter.wiring import Tap
from draftprobe.states.record import States

SHIFTS = (0, 1, -1, 2, -2)
"""Rows by which served states may come late: x_t is h_{t - shift}."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one sequence that served states and reference share.

    Attributes:
        sequence: number in the dump; reference: number in the reference.
        slots: [S, T, H], of any float dtype.
    """

    sequence: int
    reference: int
    slots: torch.Tensor

    @property
    def rows(self) -> int:
        """T."""
        return self.slots.shape[1]


@dataclass(frozen=True, slots=True)
class Products:
    """Inner products of S slots with K boundaries over T tokens, float64; NaN where there is none.

    Attributes:
        taps: the boundaries.
        served: |x_t|^2, [S, T].
        dots: <x_t, h_{t - d}> by shift d, [S, D, K, T].
        sizes: |h_{t - d}|^2, [D, K, T].
        steps: <h_{t - d}, h'_{t - d}> with the next boundary h' in ``taps``, [D, K - 1, T].
        row: t within its sequence, [T].
    """

    taps: tuple[Tap, ...]
    served: torch.Tensor
    dots: torch.Tensor
    sizes: torch.Tensor
    steps: torch.Tensor
    row: torch.Tensor


def products(parts: Iterable[Part], reference: States) -> Products:
    """The products of all parts, joined along tokens."""
    made = [_of_part(part, reference) for part in parts]
    served, dots, sizes, steps, row = (
        torch.cat(tensors, dim=-1) for tensors in zip(*made, strict=True)
    )
    return Products(reference.boundaries, served, dots, sizes, steps, row)


def _of_part(part: Part, reference: States) -> Sequence[torch.Tensor]:
    x, rows = part.slots.double(), part.rows
    counts = (len(SHIFTS), len(reference.boundaries))
    dots = x.new_full((len(x), *counts, rows), torch.nan)
    sizes = x.new_full((*counts, rows), torch.nan)
    steps = x.new_full((counts[0], max(counts[1] - 1, 0), rows), torch.nan)
    before: torch.Tensor | None = None
    for k, tap in enumerate(reference.boundaries):
        h = boundary_rows(reference, part.reference, tap, rows).double()
        size = torch.linalg.vecdot(h, h)
        step = None if before is None else torch.linalg.vecdot(before, h)
        for d, shift in enumerate(SHIFTS):
            here, there = shifted(rows, shift)
            sizes[d, k, here] = size[there]
            dots[:, d, k, here] = torch.linalg.vecdot(x[:, here], h[there].expand_as(x[:, here]))
            if step is not None:
                steps[d, k - 1, here] = step[there]
        before = h
    return torch.linalg.vecdot(x, x), dots, sizes, steps, torch.arange(rows)


def boundary_rows(reference: States, number: int, tap: Tap, rows: int) -> torch.Tensor:
    """The first rows of one boundary in one sequence of the reference, float32 [rows, H]."""
    return reference.sequence(number, [tap]).h[tap][:rows].float()


def shifted(rows: int, shift: int) -> tuple[slice, slice]:
    """Rows t, and the rows t - shift that go with them."""
    return slice(max(shift, 0), rows + min(shift, 0)), slice(max(-shift, 0), rows - max(shift, 0))
