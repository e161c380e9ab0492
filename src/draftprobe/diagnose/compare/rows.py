"""Every row of a slot against the row where it should lie: rows moved, dropped, repeated or zero.

A slot is identified on a sample; this looks at all of it, one sequence and two boundaries at a
time. A row is called moved only where another row of the sequence fits it; a row that nothing
fits is counted and accused of nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from draftprobe.diagnose.compare.found import ACCEPT, Found, unit
from draftprobe.diagnose.compare.products import boundary_rows, shifted
from draftprobe.states.record import States

LOOK = 2 * ACCEPT
"""A row that errs more is looked for elsewhere."""
MOST_LOST, MOST_STRAYS = 1024, 64
"""Rows of one sequence that are looked for in it, and rows of a slot looked for in all others."""
FOLLOWED = ("identity", "scaled", "normalised", "branch", "rows", "imprecise")
"""Treatments that can be undone row by row."""


@dataclass(frozen=True)
class Stray:
    """A row [H] that nothing in its sequence fits, and the error below which another one does."""

    sequence: int
    place: int
    row: torch.Tensor
    limit: float


@dataclass
class RowCheck:
    """All rows of one slot.

    Attributes:
        errors: per row that is not the first of its sequence; first: of the first rows.
        moved: rows that are another token's, or not there, by kind: "shifted", "dropped",
            "repeated", "permuted", "of other sequences", "missing".
        shifts: sequences by the number of rows that all of theirs come late.
        stayed: rows of a shifted slot that lie in their own place.
        zero, not_finite, odd: rows of zeros, rows with NaN or infinity, rows that nothing fits.
        where: first place of each kind of fault, (sequence, row).
        strays: some of the odd rows, until they are looked for in other sequences.
    """

    errors: list[torch.Tensor] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)
    shifts: dict[int, int] = field(default_factory=dict)
    zero: int = 0
    not_finite: int = 0
    odd: int = 0
    rows: int = 0
    stayed: int = 0
    where: dict[str, tuple[int, int]] = field(default_factory=dict)
    strays: list[Stray] = field(default_factory=list)

    def spread(self) -> tuple[float | None, float | None, float | None]:
        """Median and largest error of all but first rows, and the median of first rows."""
        joined = torch.cat(self.errors) if self.errors else torch.empty(0)
        joined = joined[torch.isfinite(joined)]
        first = torch.tensor([e for e in self.first if e == e])
        return (
            float(joined.median()) if len(joined) else None,
            float(joined.max()) if len(joined) else None,
            float(first.median()) if len(first) else None,
        )

    def note(self, kind: str, count: int, sequence: int, row: int) -> None:
        """Count rows of a kind of fault, and keep where it began."""
        if count:
            self.moved[kind] = self.moved.get(kind, 0) + count
            self.where.setdefault(kind, (sequence, row))


def expected(reference: States, number: int, found: Found) -> torch.Tensor:
    """The states that a slot holds if ``found`` is right, unmoved: float32 [rows, H]."""
    assert found.boundary is not None
    count = reference.lengths[number] - 1
    h = boundary_rows(reference, number, found.boundary, count)
    if found.treatment == "branch":
        assert isinstance(found.boundary, int)
        h = h - boundary_rows(reference, number, found.boundary - 1, count)
    if found.treatment == "normalised":
        h = unit(h)
    return h * (1.0 if found.scale is None else found.scale)


def check_rows(
    check: RowCheck, sequence: int, x: torch.Tensor, c: torch.Tensor, found: Found, floor: float
) -> None:
    """Add one sequence: served rows x [T, H] against what they should be, c [T or more, H]."""
    here, there = shifted(len(x), found.shift)
    finite = torch.isfinite(x).all(dim=-1)
    size = c.norm(dim=-1).clamp(min=1e-30)
    error = torch.full((len(x),), torch.nan)
    error[here] = (x[here] - c[there]).norm(dim=-1) / size[there]
    zero = (x == 0).all(dim=-1) & ~torch.isnan(error)
    check.rows += len(x)
    _count(check, "not_finite", ~finite, sequence)
    _count(check, "zero", zero, sequence)
    first = here.start - there.start  # where the first token's state lies, if the slot has it
    if 0 <= first < len(x):
        check.first.append(float(error[first]))
    check.errors.append(error[max(0, first + 1) :])
    limit = max(LOOK, 4 * floor)
    lost = ((error > limit) & finite & ~zero).nonzero().flatten().tolist()
    if lost:
        _follow(check, sequence, x, c, error, lost[:MOST_LOST], found.shift, limit)
        check.odd += max(0, len(lost) - MOST_LOST)


def seek(check: RowCheck, reference: States, found: Found, numbers: Iterable[int]) -> None:
    """Rows that nothing in their sequence fits, looked for in the reference's other sequences."""
    if not check.strays:
        return
    x = torch.stack([stray.row for stray in check.strays]).double()
    least = torch.full((len(x),), torch.inf, dtype=torch.float64)
    for number in numbers:
        c = expected(reference, number, found).double()
        apart = torch.cdist(x, c) / c.norm(dim=-1).clamp(min=1e-30)
        least = torch.minimum(least, apart.min(dim=-1).values)
    pairs = zip(check.strays, least.tolist(), strict=True)
    strange = [stray for stray, error in pairs if error < stray.limit]
    for stray in strange:
        check.note("of other sequences", 1, stray.sequence, stray.place)
    check.odd -= len(strange)
    check.strays.clear()


def _fitting(limit: float, error: float) -> float:
    """Up to where another row fits: within the noise, and far better than the one in its place."""
    return min(limit / 2, error / 4)


def _count(check: RowCheck, kind: str, rows: torch.Tensor, sequence: int) -> None:
    count = int(rows.sum())
    if count:
        setattr(check, kind, getattr(check, kind) + count)
        check.where.setdefault(kind, (sequence, int(rows.nonzero()[0])))


def _follow(
    check: RowCheck, sequence: int, x: torch.Tensor, c: torch.Tensor, error: torch.Tensor,
    lost: Sequence[int], shift: int, limit: float,
) -> None:  # fmt: skip
    """Where does each lost row come from? A row that another one fits far better has moved."""
    size = c.norm(dim=-1).clamp(min=1e-30)
    apart = torch.cdist(x[lost].double(), c.double()).float() / size  # [lost, rows]
    source: dict[int, int] = {}
    late = shift
    for index, t in enumerate(lost):
        least = float(apart[index].min())
        if least > _fitting(limit, float(error[t])):
            continue
        fits = (apart[index] <= 2 * least + 1e-6).nonzero().flatten().tolist()
        source[t] = min(fits, key=lambda row: abs(row - (t - late)))  # equal tokens, equal rows
        late = t - source[t]
    left = [t for t in lost if t not in source]
    check.odd += len(left)
    for t in left[: MOST_STRAYS - len(check.strays)]:
        check.strays.append(Stray(sequence, t, x[t].clone(), _fitting(limit, float(error[t]))))
    check.stayed += sum(t == row for t, row in source.items())
    if source:
        good = _along(x, c, error, source, shift, limit)
        _sort(check, sequence, source, good)


def _along(
    x: torch.Tensor,
    c: torch.Tensor,
    error: torch.Tensor,
    source: dict[int, int],
    shift: int,
    limit: float,
) -> dict[int, int]:
    """Rows that fit in their place; one that fits as well where its neighbours moved, goes there.

    Equal tokens have equal embeddings: among moved rows such a row seems to have stayed.
    """
    good: dict[int, int] = {}
    late = shift
    for t in range(len(x)):
        if t in source:
            late = t - source[t]
        elif float(error[t]) <= limit:
            row = t - late
            fits = 0 <= row < len(c) and bool(
                (x[t] - c[row]).norm() <= 2 * (x[t] - c[t - shift]).norm() + 1e-6 * c[row].norm()
            )
            good[t] = row if fits else t - shift
    return good


def _sort(check: RowCheck, sequence: int, source: dict[int, int], good: dict[int, int]) -> None:
    """Shifted as a whole, in order with gaps or doubles, or out of order?"""
    start = min(source)
    ((by, count),) = Counter(t - row for t, row in source.items()).most_common(1)
    if count > 0.9 * len(source) and len(source) > 3 * len(good):
        check.shifts[by] = check.shifts.get(by, 0) + 1
        check.note("shifted", len(source), sequence, start)
        return
    path = sorted((source | good).items())
    steps = [(t, b - a) for (s, a), (t, b) in pairwise(path) if t == s + 1]
    backward = [t for t, step in steps if step < 0]
    if backward:
        check.note("permuted", len(source), sequence, start)
        return
    dropped = [(t, step - 1) for t, step in steps if step > 1]
    repeated = [t for t, step in steps if step == 0]
    if dropped:
        check.note("dropped", sum(count for _, count in dropped), sequence, dropped[0][0])
    if repeated:
        check.note("repeated", len(repeated), sequence, repeated[0])
    if not dropped and not repeated:
        check.note("permuted", len(source), sequence, start)
