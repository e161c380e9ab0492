"""The second witness: which boundary each slot was trained on, from fc's weights and states alone.

Uses no labels and runs no drafter; says 'undetermined' wherever a random block, or another half of
the sample, could have said the same. Knows no wiring and no other witness: what they make of each
other is for the diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from draftprobe.diagnose.imprint import STATISTICS, Block, block_of, draw_null, imprint, moment
from draftprobe.drafter.checkpoint import read_tensor
from draftprobe.drafter.wiring import Tap, tap_name, taps_name
from draftprobe.errors import InputError
from draftprobe.states.record import States

DECISIVE = ("diaglog", "aniso")
EXCEEDS = 6.0
"""Standard deviations of the null that a slot's best boundary must stand above the null."""
WIDEST = 4
"""A statistic that leaves more boundaries than this in a slot is silent there."""

_SKIPPED = 4  # first tokens of a sequence: attention sinks with massive activations
_GROUPS = 8  # of sequences; half of them make a resample
_SPLITS = 4  # each into two halves
_FINALISTS = 6  # boundaries per slot and statistic that the resamples compare


@dataclass(frozen=True, slots=True)
class Reading:
    """One statistic of one slot; tuples follow :attr:`Witness.boundaries`.

    Attributes:
        statistic: its name.
        values: None where the sample is too small for it.
        null_mean: of random blocks; null_sd: their spread.
        votes: resamples in which each boundary is the best.
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
    def excess(self) -> float:
        """The best boundary's distance from the null, in the null's standard deviations."""
        if self.values is None:
            return 0.0
        best = self.order[0]
        away = (self.values[best] - self.null_mean[best]) / self.null_sd[best]
        return away if self.statistic in DECISIVE else abs(away)

    @property
    def order(self) -> tuple[int, ...]:
        """Indices of the boundaries, best first: ``align`` and ``top16`` by distance either way."""
        if self.values is None:
            return tuple(range(len(self.votes)))
        ranked = _strength(self.statistic, torch.tensor(self.values), self.null_mean[0])
        return tuple(ranked.argsort(descending=True, stable=True).tolist())


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
        tokens: states sampled; sequences: texts they come from; resamples: halves compared.
        hidden: H.
    """

    boundaries: tuple[Tap, ...]
    slots: tuple[SlotWitness, ...]
    tokens: int
    sequences: int
    resamples: int
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


@dataclass(frozen=True)
class Sample:
    """Tokens to look at, their states read boundary by boundary.

    Attributes:
        boundaries: candidates.
        sequence: int64 [N], the text that each token belongs to.
        read: boundary -> states [N, H].
    """

    boundaries: tuple[Tap, ...]
    sequence: torch.Tensor
    read: Callable[[Tap], torch.Tensor]


def sample_states(
    states: States, tokens: int | None = None, boundaries: Iterable[Tap] | None = None
) -> Sample:
    """About ``tokens`` tokens (8 H if None), spread evenly over sequences and within them.

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

    return Sample(chosen, sequence, read)


def _spread(lengths: Sequence[int], tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the file and the sequence of each: all that fit, or one quota for every sequence."""
    sizes = [max(0, n - 1 - _SKIPPED) for n in lengths]
    quota = max(sizes)
    while quota > 1 and sum(min(size, quota) for size in sizes) > tokens:
        quota -= 1
    rows: list[int] = []
    sequence: list[int] = []
    start = 0
    for index, size in enumerate(sizes):
        take = min(size, quota)
        rows += [start + _SKIPPED + i * size // take for i in range(take)]
        sequence += [index] * take
        start += lengths[index] - 1
    return torch.tensor(rows, dtype=torch.long), torch.tensor(sequence, dtype=torch.long)


def testify(fc: torch.Tensor, sample: Sample, seed: int = 0) -> Witness:
    """Question fc's weights about every slot.

    Args:
        fc: [H of the drafter, slots * H of the target].
        sample: states of the target; see :func:`sample_states`. With fewer than 2 H tokens no slot
            is decided.
        seed: of resamples and random blocks.

    Raises:
        InputError: fc does not fit the states, or the sample is empty.
    """
    count, sequences = len(sample.sequence), len(sample.sequence.unique())
    if not count:
        raise InputError(
            f"states: expected sequences of more than {_SKIPPED + 1} tokens, found none"
        )
    hidden = sample.read(sample.boundaries[0]).shape[1]
    if fc.dim() != 2 or fc.shape[1] % hidden:
        raise InputError(
            f"fc: expected a matrix whose width is a multiple of the states' hidden size {hidden}, "
            f"found {tuple(fc.shape)}; are the states of another target?"
        )
    generator = torch.Generator().manual_seed(seed)
    blocks = [block_of(block) for block in fc.split(hidden, dim=1)]
    null = draw_null(fc.shape[0], hidden, generator)
    halves = _halves(sample.sequence, fc.shape[0], generator)
    few = _too_few(count, sequences, halves, hidden)
    values, nulls = [], []  # by boundary
    for tap in sample.boundaries:
        s = moment(sample.read(tap))
        values.append(imprint(blocks, s, with_basis=few is None))
        nulls.append(null.values(s))
    table, random = torch.stack(values, -1), torch.stack(nulls, -1)  # [slots, 4, C], [draws, 4, C]
    votes = _votes(sample, blocks, halves, table, with_basis=few is None)
    slots = tuple(
        _slot(slot, sample.boundaries, table[slot], random, votes[slot], few)
        for slot in range(len(blocks))
    )
    return Witness(sample.boundaries, slots, count, sequences, len(halves), hidden)


@dataclass(frozen=True, slots=True)
class _Half:
    """A resample: half of the sequences' tokens, and half of fc's rows."""

    tokens: torch.Tensor
    rows: torch.Tensor


def _halves(sequence: torch.Tensor, rows: int, generator: torch.Generator) -> list[_Half]:
    """Random halves and their complements; none where there are fewer sequences than groups."""
    _, index = sequence.unique(return_inverse=True)
    count = int(index.max()) + 1
    if count < _GROUPS:
        return []
    halves = []
    for _ in range(_SPLITS):
        side = torch.randperm(count, generator=generator) % 2 == 0
        order = torch.randperm(rows, generator=generator)
        halves.append(_Half(side[index], order[: rows // 2]))
        halves.append(_Half(~side[index], order[rows // 2 :]))
    return halves


def _too_few(count: int, sequences: int, halves: Sequence[_Half], hidden: int) -> str | None:
    """Why ``diaglog`` and ``aniso`` cannot be had, None where they can."""
    if not halves:
        return f"{sequences} sequences, fewer than the {_GROUPS} that resamples need"
    if count < hidden:
        return f"{count} tokens, fewer than the hidden size {hidden}"
    smallest = min(int(half.tokens.sum()) for half in halves)
    if smallest < hidden:
        return f"half of the sequences hold {smallest} tokens, fewer than the hidden size {hidden}"
    return None


def _strength(statistic: str, values: torch.Tensor, unrelated: float) -> torch.Tensor:
    """What boundaries are ranked by: the value, or its distance from the null in either direction."""
    if statistic in DECISIVE:
        return values
    return (values.clamp(min=1e-300) / unrelated).log().abs()


def _strengths(table: torch.Tensor, hidden: int) -> torch.Tensor:
    """:func:`_strength` of a table [slots, 4, C]; random blocks give align 1 and top16 16 / H."""
    unrelated = {"align": 1.0, "top16": min(16, hidden) / hidden}
    columns = [
        _strength(name, table[:, i], unrelated.get(name, 0.0)) for i, name in enumerate(STATISTICS)
    ]
    return torch.stack(columns, 1)


def _votes(
    sample: Sample,
    blocks: Sequence[Block],
    halves: Sequence[_Half],
    table: torch.Tensor,
    with_basis: bool,
) -> torch.Tensor:
    """Resamples won, int64 like ``table``; only boundaries near the top somewhere take part."""
    hidden = blocks[0].weight.shape[1]
    strengths = _strengths(table, hidden)
    top = strengths.nan_to_num(-1).topk(min(_FINALISTS, table.shape[-1]), -1).indices
    finalists = (top if with_basis else top[:, len(DECISIVE) :]).unique()
    votes = torch.zeros_like(table, dtype=torch.long)
    for half in halves:
        rows = [block_of(block.weight[half.rows]) for block in blocks]
        taps = [sample.boundaries[i] for i in finalists.tolist()]
        states = (sample.read(tap)[half.tokens] for tap in taps)
        values = torch.stack([imprint(rows, moment(h), with_basis) for h in states], -1)
        best = finalists[_strengths(values, hidden).argmax(-1, keepdim=True)]
        votes.scatter_add_(-1, best, torch.ones_like(best))
    return votes


def _slot(
    slot: int,
    boundaries: tuple[Tap, ...],
    values: torch.Tensor,
    null: torch.Tensor,
    votes: torch.Tensor,
    few: str | None,
) -> SlotWitness:
    mean, sd = null.mean(0), null.std(0)
    readings = tuple(
        _reading(name, boundaries, values[i], mean[i], sd[i], votes[i], few)
        for i, name in enumerate(STATISTICS)
    )
    return _decide(slot, readings)


def _reading(
    name: str,
    boundaries: tuple[Tap, ...],
    values: torch.Tensor,
    mean: torch.Tensor,
    sd: torch.Tensor,
    votes: torch.Tensor,
    few: str | None,
) -> Reading:
    """One statistic's testimony: names what wins a resample, where it stands out of the null."""
    seen = None if values.isnan().any() else tuple(values.tolist())
    bare = Reading(
        name, seen, tuple(mean.tolist()), tuple(sd.tolist()), tuple(votes.tolist()), (), None
    )
    if few is not None and (seen is None or not votes.any()):
        return replace(bare, silent=few)
    if bare.excess < EXCEEDS:
        best = tap_name(boundaries[bare.order[0]])
        why = f"{best} stands {bare.excess:.1f} sd from random blocks, less than {EXCEEDS:g}"
        return replace(bare, silent=why)
    won = [i for i in bare.order if votes[i] or i == bare.order[0]]
    named = tuple(boundaries[i] for i in sorted(won, key=lambda i: -int(votes[i])))
    if len(named) > WIDEST:
        return replace(bare, silent=f"resamples disagree: {taps_name(named)}")
    return replace(bare, named=named)


def _decide(slot: int, readings: tuple[Reading, ...]) -> SlotWitness:
    """What both decisive statistics allow, or what one says where the other is silent."""
    heard = [r for r in readings if r.statistic in DECISIVE and r.silent is None]
    if not heard:
        reasons = [f"{r.statistic}: {r.silent}" for r in readings if r.statistic in DECISIVE]
        return SlotWitness(slot, "undetermined", (), "; ".join(reasons), readings)
    named = tuple(tap for tap in heard[0].named if all(tap in r.named for r in heard))
    if not named:
        names = "; ".join(f"{r.statistic} names {taps_name(r.named)}" for r in heard)
        return SlotWitness(slot, "undetermined", (), f"they disagree: {names}", readings)
    return SlotWitness(slot, "decided" if len(named) == 1 else "set", named, None, readings)
