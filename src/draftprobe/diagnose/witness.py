"""The second witness: which boundary each slot was trained on, from fc's weights and states alone.

Uses no labels and runs no drafter; says 'undetermined' wherever a random block, or another half of
the sample, could have said otherwise. Knows no wiring and no other witness, and cannot know that
the true boundary is not among its candidates: it then names the nearest ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Literal

import torch

from draftprobe.diagnose.imprint import (
    STATISTICS,
    block_of,
    directions_of,
    draw_null,
    draws,
    imprint,
)
from draftprobe.diagnose.sketch import sketch
from draftprobe.diagnose.tokens import SKIPPED, Sample, sample_states
from draftprobe.drafter.wiring import Tap, tap_name, taps_name
from draftprobe.errors import InputError

__all__ = [
    "CLOSE",
    "DECISIVE",
    "EXCEEDS",
    "STATISTICS",
    "WIDEST",
    "Reading",
    "Sample",
    "SlotWitness",
    "Witness",
    "sample_states",
    "testify",
]

DECISIVE = ("diaglog", "aniso")
"""The statistics that decide; ``align`` and ``top16`` turn round as training converges."""
EXCEEDS = 6.0
"""Standard deviations that a slot's best boundary must stand above random blocks.

The best of 32 boundaries in a random block stood at most 4.6 of them in 48 slots of H = 576, and
the best of 8 at most 4.8 in 1,200 slots of H = 32.
"""
WIDEST = 4
"""A statistic that leaves more boundaries than this in a slot is silent there."""

CLOSE = 0.9
"""A boundary that stands this share of the best one's distance above the null is not told apart."""

DEAR = 1.5e14
"""Operations of all eigenproblems that a CPU is asked at most: an hour or so."""

_FEWEST = 8  # sequences that may be split into halves
_SPLITS = 4  # each into two halves
_FINALISTS = 4  # boundaries that the halves compare, per slot and statistic


@dataclass(frozen=True, slots=True)
class Reading:
    """One statistic of one slot; tuples follow :attr:`Witness.boundaries`.

    Attributes:
        statistic: its name.
        values: None where the statistic needs principal directions, and tokens are fewer than H
            or H is so large that a CPU is not asked.
        null_mean: of random blocks; null_sd: their spread; both empty where there are no values.
        votes: halves of the sample on which each boundary is the best; all zero where no half was
            asked, as the statistic is silent anyway.
        named: boundaries it cannot tell apart, best first; empty where it is silent.
        silent: why it names none; None where it does.
    """

    statistic: str
    values: tuple[float, ...] | None
    null_mean: tuple[float, ...]
    null_sd: tuple[float, ...]
    votes: tuple[int, ...]
    named: tuple[Tap, ...]
    silent: str | None

    @property
    def order(self) -> tuple[int, ...]:
        """Indices of the boundaries, best first."""
        if self.values is None:
            return tuple(range(len(self.votes)))
        away = [self.away(i, value) for i, value in enumerate(self.values)]
        return tuple(sorted(range(len(away)), key=lambda i: -away[i]))

    @property
    def excess(self) -> float:
        """How far the best boundary stands from random blocks, in their standard deviations."""
        if self.values is None:
            return 0.0
        best = self.order[0]
        sd = max(self.null_sd[best], 1e-12)
        distance = (self.values[best] - self.null_mean[best]) / sd
        return distance if self.statistic in DECISIVE else abs(distance)

    def away(self, boundary: int, value: float) -> float:
        """What ranks a value: itself, or its distance from the null both ways in what supports."""
        if self.statistic in DECISIVE:
            return value
        return abs(log(max(value, 1e-300) / self.null_mean[boundary]))


@dataclass(frozen=True, slots=True)
class SlotWitness:
    """What the weights say about one slot.

    Attributes:
        slot: its place in the concatenation.
        decision: one boundary, several that cannot be told apart, or nothing.
        named: those boundaries, best first.
        reason: why nothing; None otherwise.
        readings: of all four statistics.
    """

    slot: int
    decision: Literal["decided", "set", "undetermined"]
    named: tuple[Tap, ...]
    reason: str | None
    readings: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Witness:
    """The whole table; ``dataclasses.asdict`` makes plain data of it.

    Attributes:
        boundaries: the candidates.
        slots: in slot order.
        tokens: states sampled; sequences: texts they come from; halves: resamples of them.
        hidden: H.
    """

    boundaries: tuple[Tap, ...]
    slots: tuple[SlotWitness, ...]
    tokens: int
    sequences: int
    halves: int
    hidden: int

    def shortlist(self, slot: int, k: int) -> tuple[Tap, ...]:
        """The k boundaries to try first in a replay search.

        What the slot names comes first, then boundaries by the best rank that any statistic gives
        them. A statistic counts where it exceeds its null; where none does, all count.
        """
        entry = self.slots[slot]
        known = [reading for reading in entry.readings if reading.values is not None]
        loud = [reading for reading in known if reading.excess >= EXCEEDS] or known
        orders = [reading.order for reading in loud]

        def key(index: int) -> tuple[int, int, int]:
            tap, places = self.boundaries[index], [order.index(index) for order in orders]
            named = entry.named.index(tap) if tap in entry.named else len(entry.named)
            return named, min(places), sum(places)

        best = sorted(range(len(self.boundaries)), key=key)[:k]
        return tuple(self.boundaries[index] for index in best)


def testify(fc: torch.Tensor, sample: Sample, seed: int) -> Witness:
    """Question fc's weights about every slot.

    Args:
        fc: [H of the drafter, slots * H of the target].
        sample: states of the target; see :func:`sample_states`. A slot is decided only where each
            half of the sequences holds H tokens or more.
        seed: of the halves and the random blocks.

    Raises:
        InputError: fc does not fit the states, or the sample is empty.
    """
    if not len(sample.sequence):
        raise InputError(f"states: expected sequences of over {SKIPPED + 1} tokens, found none")
    hidden = sample.read(sample.boundaries[0]).shape[1]
    if fc.dim() != 2 or fc.shape[1] % hidden:
        raise InputError(
            f"fc: expected a matrix whose width is a multiple of the states' hidden size {hidden}, "
            f"found {tuple(fc.shape)}; are the states of another target?"
        )
    generator = torch.Generator().manual_seed(seed)
    weights = fc.split(hidden, dim=1)
    halves = _halves(sample.sequence, fc.shape[0], generator)
    dear = _too_dear(weights, sample, halves)
    few = dear or _too_few(sample.sequence, halves, hidden)
    if dear or len(sample.sequence) < hidden:
        table = _readings(sample, *sketch(weights, sample, generator))
        halves = []
    else:
        table = _readings(sample, *_measure(weights, sample, generator))
    votes = _votes(weights, sample, halves, table, with_basis=few is None)
    slots = tuple(
        _decide(slot, tuple(_conclude(r, v, sample, few) for r, v in zip(*rows, strict=True)))
        for slot, rows in enumerate(zip(table, votes, strict=True))
    )
    sequences = len(sample.sequence.unique())
    return Witness(sample.boundaries, slots, len(sample.sequence), sequences, len(halves), hidden)


@dataclass(frozen=True, slots=True)
class _Half:
    """A resample: the tokens of half of the sequences, and half of fc's rows.

    The rows learn side by side from starts of their own, so halves of them show the weights' noise
    as halves of the sequences show the states'.
    """

    tokens: torch.Tensor
    rows: torch.Tensor


def _halves(sequence: torch.Tensor, rows: int, generator: torch.Generator) -> list[_Half]:
    """Random halves with their complements; none where there are too few sequences to split."""
    _, index = sequence.unique(return_inverse=True)
    count = int(index.max()) + 1
    if count < _FEWEST:
        return []
    halves = []
    for _ in range(_SPLITS):
        left = (torch.randperm(count, generator=generator) % 2 == 0)[index]
        order = torch.randperm(rows, generator=generator)
        halves.append(_Half(left, order[: rows // 2]))
        halves.append(_Half(~left, order[rows // 2 :]))
    return halves


def _too_few(sequence: torch.Tensor, halves: Sequence[_Half], hidden: int) -> str | None:
    """Why no half has principal directions; None where all have."""
    if not halves:
        found = len(sequence.unique())
        return f"{found} sequences, fewer than the {_FEWEST} that can be split into halves"
    smallest = min(int(half.tokens.sum()) for half in halves)
    if smallest < hidden:
        return (
            f"{len(sequence)} tokens, of which half of the sequences hold as few as {smallest}, "
            f"fewer than the hidden size {hidden}"
        )
    return None


def eigenproblems(boundaries: int, slots: int, hidden: int, halves: int) -> int:
    """How many a decision takes; each costs about 10 H^3 operations."""
    return boundaries + slots + draws(hidden) + halves * slots * (1 + _FINALISTS)


def _too_dear(
    weights: Sequence[torch.Tensor], sample: Sample, halves: Sequence[_Half]
) -> str | None:
    """Why principal directions are not asked for; None if they are. A GPU is always asked."""
    hidden = weights[0].shape[1]
    problems = eigenproblems(len(sample.boundaries), len(weights), hidden, len(halves))
    cost = 10 * hidden**3
    if problems * cost <= DEAR or weights[0].device.type != "cpu":
        return None
    return (
        f"{problems} eigenproblems of hidden size {hidden}, {cost / 1e12:.1f} TFLOP each, are "
        "not asked of a CPU; use --device cuda"
    )


Table = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Values [slots, 4, C], and of the null mean and spread [4, C]; NaN where not measured."""


def _measure(weights: Sequence[torch.Tensor], sample: Sample, generator: torch.Generator) -> Table:
    """All four statistics of every slot on the whole sample."""
    blocks, device = [block_of(weight) for weight in weights], weights[0].device
    rows, hidden = weights[0].shape
    null = draw_null(rows, hidden, generator, device)
    columns, random = [], []
    for tap in sample.boundaries:
        state = directions_of(sample.read(tap).to(device), with_basis=True)
        columns.append(torch.stack([imprint(block, state) for block in blocks]))
        random.append(null.values(state))
    sd, mean = torch.std_mean(torch.stack(random, -1), dim=0)  # [4, C]
    return torch.stack(columns, -1), mean, sd


def _readings(
    sample: Sample, values: torch.Tensor, mean: torch.Tensor, sd: torch.Tensor
) -> list[list[Reading]]:
    """Readings of every slot that name nothing yet."""
    votes = (0,) * len(sample.boundaries)

    def reading(i: int, values: torch.Tensor) -> Reading:
        name = STATISTICS[i]
        if values.isnan().any():
            return Reading(name, None, (), (), votes, (), None)
        row, middle, spread = (tuple(x.tolist()) for x in (values, mean[i], sd[i]))
        return Reading(name, row, middle, spread, votes, (), None)

    return [[reading(i, row) for i, row in enumerate(slot)] for slot in values]


def _votes(
    weights: Sequence[torch.Tensor],
    sample: Sample,
    halves: Sequence[_Half],
    table: Sequence[Sequence[Reading]],
    with_basis: bool,
) -> list[list[list[int]]]:
    """Which boundary is the best on each half, among the best few on the whole sample.

    Asked only of statistics that exceed their null; counts by slot, statistic and boundary.
    """
    votes = [[[0] * len(sample.boundaries) for _ in STATISTICS] for _ in weights]
    asked = {
        (slot, i): reading.order[:_FINALISTS]
        for slot, readings in enumerate(table)
        for i, reading in enumerate(readings)
        if reading.excess >= EXCEEDS and (with_basis or reading.statistic not in DECISIVE)
    }
    finalists = sorted({index for some in asked.values() for index in some})
    for half in halves if asked else ():
        blocks = [block_of(weight[half.rows]) for weight in weights]
        values = {}
        for index in finalists:
            h = sample.read(sample.boundaries[index])[half.tokens].to(weights[0].device)
            state = directions_of(h, with_basis)
            values[index] = [imprint(block, state).tolist() for block in blocks]
        for (slot, i), some in asked.items():
            strength = {k: table[slot][i].away(k, values[k][slot][i]) for k in some}
            votes[slot][i][max(some, key=lambda k: strength[k])] += 1
    return votes


def _conclude(reading: Reading, votes: Sequence[int], sample: Sample, few: str | None) -> Reading:
    """One statistic's testimony."""
    reading = replace(reading, votes=tuple(votes))
    if reading.values is None:
        return replace(reading, silent=few)
    if reading.excess < EXCEEDS:
        best = tap_name(sample.boundaries[reading.order[0]])
        why = f"{best} stands {reading.excess:.1f} sd from random blocks, less than {EXCEEDS:g}"
        return replace(reading, silent=why)
    if not any(votes):
        return replace(reading, silent=few)
    named: tuple[Tap, ...] = _both_ends(
        tuple(sample.boundaries[i] for i in _rivals(reading, votes)), sample
    )
    if len(named) > WIDEST:
        return replace(reading, silent=f"halves of the sample disagree: {taps_name(named)}")
    return replace(reading, named=named)


def _rivals(reading: Reading, votes: Sequence[int]) -> list[int]:
    """The best boundary, whatever wins a half, and whatever is close to the best; best first."""
    if reading.values is None:
        return []
    above = [reading.away(i, v) for i, v in enumerate(reading.values)]
    if reading.statistic in DECISIVE:
        above = [v - mean for v, mean in zip(above, reading.null_mean, strict=True)]
    best = reading.order[0]
    rivals = [i for i in reading.order if votes[i] or above[i] >= CLOSE * above[best]]
    return sorted(rivals, key=lambda i: -votes[i])


def _both_ends(named: tuple[Tap, ...], sample: Sample) -> tuple[Tap, ...]:
    """h[L] and h[N] are one layer before and after its norm, which weights do not tell apart."""
    ends: tuple[Tap, Tap] = (sample.layers, "N")
    if not any(end in named for end in ends):
        return named
    added: list[Tap] = [end for end in ends if end in sample.boundaries and end not in named]
    return (*named, *added)


def _decide(slot: int, readings: tuple[Reading, ...]) -> SlotWitness:
    """What both decisive statistics allow, or what one says where the other is silent."""
    decisive = [reading for reading in readings if reading.statistic in DECISIVE]
    heard = [reading for reading in decisive if reading.silent is None]
    if not heard:
        why = "; ".join(f"{reading.statistic}: {reading.silent}" for reading in decisive)
        return SlotWitness(slot, "undetermined", (), why, readings)
    named: tuple[Tap, ...] = heard[0].named
    for other in heard[1:]:
        named = tuple(tap for tap in named if tap in other.named)
    if not named:
        why = "; ".join(f"{r.statistic} names {taps_name(r.named)}" for r in heard)
        return SlotWitness(slot, "undetermined", (), why, readings)
    return SlotWitness(slot, "decided" if len(named) == 1 else "set", named, None, readings)
