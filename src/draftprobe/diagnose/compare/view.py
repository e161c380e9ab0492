"""One slot against every boundary of the reference: the errors that the tests of ``explain`` weigh.

A candidate is a boundary, or the branch that leads to it from the one before. Errors are medians
over tokens, the first of each sequence left out: its state is often hundreds of times larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from draftprobe.diagnose.compare.floor import Floors
from draftprobe.diagnose.compare.products import SHIFTS, Part, Products, boundary_rows
from draftprobe.drafter.wiring import Tap
from draftprobe.states.record import States


@dataclass(frozen=True, slots=True)
class Candidate:
    """Boundary h[tap], or with ``branch`` what its layer added: h[tap] - h[tap - 1]."""

    tap: Tap
    branch: bool = False


@dataclass(frozen=True)
class Ranked:
    """Candidates at shifts, by rising error; the best one and the next."""

    places: tuple[tuple[Candidate, int], ...]
    errors: tuple[float, ...]

    def __getitem__(self, index: int) -> tuple[Candidate, int, float]:
        return (*self.places[index], self.errors[index])

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class View:
    """What is known of one slot.

    Attributes:
        slot: its number.
        products: of all slots; floors: of the noise; parts: the rows themselves.
        reference: where the boundaries are read.
    """

    slot: int
    products: Products
    floors: Floors
    parts: tuple[Part, ...]
    reference: States

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Boundaries, then the branches between recorded neighbours."""
        taps = self.products.taps
        return (*map(Candidate, taps), *(Candidate(taps[k], True) for k in self._ends))

    @cached_property
    def _along(self) -> torch.Tensor:
        """<x, c> by shift and candidate, [D, C, T]."""
        dots = self.products.dots[self.slot]
        return torch.cat([dots, dots[:, self._ends] - dots[:, self._starts]], dim=1)

    @cached_property
    def _sizes(self) -> torch.Tensor:
        """|c|^2 by shift and candidate, [D, C, T]; NaN in rows that do not count."""
        sizes, steps = self.products.sizes, self.products.steps
        ends, starts = self._ends, self._starts
        branches = sizes[:, ends] - 2 * steps[:, starts] + sizes[:, starts]
        joined = torch.cat([sizes, branches.clamp(min=0)], dim=1)
        shifts = torch.tensor(SHIFTS)[:, None]
        first = (self.products.row < 1) | (self.products.row - shifts < 1)  # [D, T]
        return joined.masked_fill(first[:, None], torch.nan)

    @cached_property
    def _ends(self) -> list[int]:
        taps = self.products.taps
        return [k for k in range(1, len(taps)) if _neighbours(taps[k - 1], taps[k])]

    @property
    def _starts(self) -> list[int]:
        return [k - 1 for k in self._ends]

    @property
    def served(self) -> torch.Tensor:
        """|x_t|^2, [T]."""
        return self.products.served[self.slot]

    @property
    def count(self) -> int:
        """Rows that count: finite, and not the first of a sequence."""
        return int((torch.isfinite(self.served) & (self.products.row > 0)).sum())

    @cached_property
    def exact(self) -> torch.Tensor:
        """Median of |x - c| / |c|, [D, C]; infinite where no row is left."""
        squared = self.served - 2 * self._along + self._sizes
        return _median((squared.clamp(min=0) / self._sizes).sqrt())

    @cached_property
    def scale(self) -> torch.Tensor:
        """Median of <x, c> / |c|^2: the factor that fits best, [D, C]."""
        return (self._along / self._sizes).nanmedian(dim=-1).values

    @cached_property
    def scaled(self) -> torch.Tensor:
        """Median of |x - s c| / |s c| with that factor, [D, C]."""
        s = self.scale[..., None]
        squared = self.served - 2 * s * self._along + s.square() * self._sizes
        return _median((squared.clamp(min=0) / (s.square() * self._sizes)).sqrt())

    @cached_property
    def cosine(self) -> torch.Tensor:
        """Median cosine of x and c, [D, C]."""
        return (self._along / (self.served * self._sizes).sqrt()).nanmedian(dim=-1).values

    @cached_property
    def turned(self) -> torch.Tensor:
        """Median sine of the angle between x and c, [D, C]; 1 from 90 degrees on."""
        cosine = self._along / (self.served * self._sizes).sqrt()
        return _median((1 - cosine.clamp(0, 1).square()).sqrt())

    def ranked(self, errors: torch.Tensor, branch: bool, still: bool) -> Ranked:
        """Boundaries or branches by rising error, unmoved ones or moved ones alone."""
        places = [
            (float(errors[d, c]), c, d)
            for c, one in enumerate(self.candidates)
            for d in ([0] if still else range(1, len(SHIFTS)))
            if one.branch == branch
        ]
        places.sort()
        return Ranked(
            tuple((self.candidates[c], SHIFTS[d]) for _, c, d in places),
            tuple(error for error, _, _ in places),
        )

    def at(self, table: torch.Tensor, candidate: Candidate, shift: int) -> float:
        """The entry of a table [D, C]."""
        return float(table[SHIFTS.index(shift), self.candidates.index(candidate)])

    def layer(self, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of the k-th branch: |x - h|^2, |h' - x|^2 and |h' - h|^2 per token, [T]."""
        start, end = self._starts[k], self._ends[k]
        dots, sizes = self.products.dots[self.slot, 0], self._sizes[0]
        before = self.served - 2 * dots[start] + sizes[start]
        after = self.served - 2 * dots[end] + sizes[end]
        return before, after, sizes[len(self.products.taps) + k]

    def ends(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the k-th branch: |x - h|^2 / |h|^2 where it starts and where it ends, [T]."""
        before, after, _ = self.layer(k)
        return before / self._sizes[0, self._starts[k]], after / self._sizes[0, self._ends[k]]

    def branches(self) -> tuple[Tap, ...]:
        """The boundary that each branch leads to."""
        return tuple(self.products.taps[k] for k in self._ends)

    def surrounded(self, tap: Tap) -> bool:
        """The boundaries before and after it are recorded, so that they can be excluded."""
        last = self.reference.provenance.layers
        around = (last,) if tap == "N" else (tap - 1, tap + 1)
        return all(k in self.products.taps for k in around if 0 <= k <= last)

    def rows(
        self, most: int, shift: int = 0
    ) -> tuple[torch.Tensor, list[tuple[int, torch.Tensor]]]:
        """Up to ``most`` rows that are not the first of a sequence, float32 [R, H], spread over
        the parts; and which they are: the part's number and its rows. Rows t - ``shift`` are
        there and no first ones either.
        """
        each = -(-most // len(self.parts))
        chosen: list[tuple[int, torch.Tensor]] = []
        for number, part in enumerate(self.parts):
            first, last = 1 + max(shift, 0), part.rows - 1 + min(shift, 0)
            count = min(each, last - first + 1)
            if count > 0:
                chosen.append((number, torch.linspace(first, last, count).long()))
        chosen = [(number, rows[self._finite(number, rows)]) for number, rows in chosen]
        none = self.parts[0].slots[self.slot, :0].float()
        x = [self.parts[number].slots[self.slot, rows].float() for number, rows in chosen]
        return torch.cat([none, *x]), chosen

    def _finite(self, number: int, rows: torch.Tensor) -> torch.Tensor:
        return torch.isfinite(self.parts[number].slots[self.slot, rows]).all(dim=-1)

    def boundary(self, tap: Tap, chosen: list[tuple[int, torch.Tensor]]) -> torch.Tensor:
        """The same rows of a boundary, float32 [R, H]."""
        parts = [(self.parts[number], rows) for number, rows in chosen]
        return torch.cat(
            [boundary_rows(self.reference, p.reference, tap, p.rows)[rows] for p, rows in parts]
        )


def _neighbours(a: Tap, b: Tap) -> bool:
    return isinstance(a, int) and isinstance(b, int) and b == a + 1


def _median(errors: torch.Tensor) -> torch.Tensor:
    median = errors.nanmedian(dim=-1).values
    return torch.where(median.isnan(), torch.inf, median)
