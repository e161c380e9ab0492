"""Which boundaries, in which slots, do these weights want? Asked of recorded text by replay.

Tuples of boundaries are compared token by token on the log-likelihood of the next-next token, with
sequences as clusters; what cannot be told apart is a tie, never a guess. Knows a pool of scored
tokens, not the drafter, and nobody's opinion of the wiring.

The race itself is in :mod:`draftprobe.diagnose.race`: coarse ascents from several starts, then one
among all boundaries from the best of these.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import numpy as np
import torch

from draftprobe.diagnose.pool import MIN_SEQUENCES, Filling, Limits, Pool, rewired
from draftprobe.diagnose.race import LEVEL, Race, Standing, Taps, looks_of, threshold
from draftprobe.drafter.model import Drafter
from draftprobe.drafter.wiring import Tap, taps_name
from draftprobe.measure.interval import Estimate, ratio
from draftprobe.measure.replay import observe
from draftprobe.measure.summary import paired
from draftprobe.states.record import States

__all__ = [
    "Ablated",
    "Limits",
    "Needed",
    "Pool",
    "Rival",
    "Search",
    "Slot",
    "ablate",
    "acceptance_costs",
    "sample",
    "search",
]

_LAST = 3  # rivals that the deciding look still compares, as a rule
_DECIDES = 256  # tokens of the first decision, if there are as many
_STARTS = 2
_RANKED = 6


@dataclass(frozen=True, slots=True)
class Needed:
    """How much text would decide, at as many tokens per sequence as were scored."""

    tokens: int
    sequences: int


@dataclass(frozen=True, slots=True)
class Rival:
    """A tuple of boundaries beside the best one.

    Attributes:
        taps: in slot order.
        cost: nats per token that it is less likely than the best, paired, with interval.
        tied: the best does not beat it, all comparisons counted.
        needed: text that would let the best beat it; None where it is beaten, or where nothing
            would, the two being the same on every token.
    """

    taps: Taps
    cost: Estimate
    tied: bool
    needed: Needed | None


@dataclass(frozen=True, slots=True)
class Slot:
    """What one slot wants.

    Attributes:
        slot: its place, from 0.
        tied: boundaries that cannot be told from the best one's here, that one first; of each the
            likeliest tuple that has it here.
        runner_up: the likeliest tuple with another boundary here, tied or beaten; None where there
            is one candidate.
    """

    slot: int
    tied: tuple[Rival, ...]
    runner_up: Rival | None

    @property
    def decided(self) -> bool:
        """One boundary only."""
        return len(self.tied) == 1

    @property
    def taps(self) -> Taps:
        """The boundaries of :attr:`tied`."""
        return tuple(rival.taps[self.slot] for rival in self.tied)


@dataclass(frozen=True, slots=True)
class Search:
    """What replay says about the taps.

    Attributes:
        best: the likeliest tuple; a mere guess unless :attr:`decided`.
        ranking: the likeliest few, ``best`` first with cost 0.
        tied: tuples that the best does not beat, itself first; not every combination was scored.
        slots: the same slot by slot.
        log_likelihood: of the best, nats per token.
        tuples: distinct tuples scored, each counted once on however many tokens.
        candidates: boundaries tried in each slot.
        tokens, sequences: that the last comparison used.
        seconds: of the search, without the projections.
        undecided: why there is no decision and what would bring one; None where there is one.
    """

    best: Taps
    ranking: tuple[Rival, ...]
    tied: tuple[Rival, ...]
    slots: tuple[Slot, ...]
    log_likelihood: Estimate
    tuples: int
    candidates: int
    tokens: int
    sequences: int
    seconds: float
    undecided: str | None

    @property
    def decided(self) -> bool:
        """The best beats all rivals."""
        return self.undecided is None

    @property
    def needed(self) -> Needed | None:
        """Text that would decide every slot; None where it is decided or nothing would."""
        wants = [rival.needed for rival in self.tied[1:]]
        if not wants or None in wants:
            return None
        return max((want for want in wants if want), key=lambda want: want.tokens)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with what is derived."""
        needed = asdict(self.needed) if self.needed else None
        slots = [{**asdict(slot), "decided": slot.decided} for slot in self.slots]
        return asdict(self) | {"slots": slots, "decided": self.decided, "needed": needed}


@dataclass(frozen=True, slots=True)
class Ablated:
    """A slot fed zeros, less the drafter as wired, paired.

    Attributes:
        slot: its place, from 0.
        accuracy: change of step-1 accuracy on the scored tokens.
        log_likelihood: change in nats per token. A slot that costs nothing when it is zeroed
            cannot be located by replay.
    """

    slot: int
    accuracy: Estimate
    log_likelihood: Estimate


def sample(
    pool: Pool, seed: int, tokens: int | None = None, sequences: int | None = None
) -> torch.Tensor:
    """Places of ``tokens`` tokens of ``sequences`` random sequences, in an order to double along.

    Every sequence gives its first random token, then each its second, and so on: any beginning of
    the order is spread over the sequences as evenly as it can be.
    """
    random = torch.Generator().manual_seed(seed)
    kinds, line, counts = pool.sequence.unique_consecutive(return_inverse=True, return_counts=True)
    turn = torch.randperm(len(kinds), generator=random)  # of each sequence
    shuffled = torch.randperm(len(pool), generator=random)
    shuffled = shuffled[line[shuffled].argsort(stable=True)]  # grouped by sequence again
    rank = torch.arange(len(pool)) - (counts.cumsum(0) - counts)[line]
    order = (rank * len(kinds) + turn[line]).argsort()
    if sequences is not None:
        order = order[turn[line[order]] < sequences]
    return shuffled[order[:tokens]]


def search(
    pool: Pool,
    tokens: torch.Tensor | None = None,
    candidates: Sequence[Tap] | None = None,
    seed: int = 0,
    starts: int = _STARTS,
) -> Search:
    """The boundaries that the pool's drafter wants, on a sample of the pool.

    Args:
        pool: projected once, for any number of searches; what they score is kept there.
        tokens: places in the pool in the order to double along, as :func:`sample` gives them
            (which is what is taken by default, all tokens of it).
        candidates: boundaries to try, of the pool's; all by default.
        seed: of the default sample and of the starts.
        starts: how many coarse ascents; the first from evenly spaced boundaries, others from
            random ones.
    """
    began = time.perf_counter()
    tokens = sample(pool, seed) if tokens is None else tokens
    race = Race(pool, tokens, tuple(pool.candidates if candidates is None else candidates))
    rounds = [look for look in race.looks if look >= _DECIDES] or race.looks[-1:]
    coarse = [race.ascend(start, race.looks[0]) for start in race.starts(starts, seed)]
    race.choices = [race.candidates] * pool.slots
    standing = race.settle(coarse, rounds[0])
    for look in rounds[1:]:
        if len(standing.tied) == 1:
            break
        race.narrow(standing)
        standing = race.settle(standing.order[:1], look)
    return _report(race, standing, time.perf_counter() - began)


def ablate(pool: Pool, taps: Taps, tokens: torch.Tensor) -> tuple[Ablated, ...]:
    """What each slot is worth to the drafter fed with ``taps``."""
    whole = pool.log_likelihood(taps, tokens), pool.correct(taps, tokens)
    out = []
    for slot in range(len(taps)):
        zeroed: Filling = (*taps[:slot], None, *taps[slot + 1 :])
        likely = pool.log_likelihood(zeroed, tokens) - whole[0]
        right = pool.correct(zeroed, tokens).double() - whole[1].double()
        out.append(Ablated(slot, *(_mean(pool.sequence[tokens], x) for x in (right, likely))))
    return tuple(out)


def acceptance_costs(
    drafter: Drafter,
    states: States,
    best: Taps,
    others: Sequence[Taps],
    steps: int = 5,
    limit: int | None = None,
) -> tuple[Estimate, ...]:
    """Expected acceptance length of each of ``others`` less that of ``best``, replayed, paired."""
    first = observe(rewired(drafter, best), states, steps, limit)
    replays = (observe(rewired(drafter, taps), states, steps, limit) for taps in others)
    return tuple(paired(first, replay).acceptance for replay in replays)


def _mean(sequence: torch.Tensor, values: torch.Tensor) -> Estimate:
    """Mean per token with sequences as clusters."""
    _, line, counts = sequence.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, line, values)
    return ratio(sums.numpy(), counts.numpy())


def _needed(behind: torch.Tensor, cost: Estimate) -> Needed | None:
    """Tokens at which the best would beat a rival that it does not beat yet.

    n = (T sd / D)^2, where sd^2 is the variance per token with clusters counted. D itself is mostly
    noise as long as the two are tied, so it is drawn towards what its spread says: were the text
    drawn from the best's own distribution, D would be a Kullback-Leibler divergence, and small ones
    are half the variance of the log ratio. The two are weighted by their precision, the latter
    being taken as good to within a half of itself.
    """
    n, clusters = cost.n, cost.clusters
    spread = float(behind.var())
    if cost.value is None or cost.high is None or not spread:
        return None
    error = (cost.high - cost.value) / threshold(0.025, clusters)
    prior = spread / 2
    weights = np.array([1 / max(error, 1e-12) ** 2, (2 / prior) ** 2])
    true = float(weights @ [cost.value, prior] / weights.sum())
    tokens = float(n)
    for _ in range(3):  # T depends on n, but little
        sequences = max(MIN_SEQUENCES, ceil(tokens * clusters / n))
        share = ceil(tokens) / sum(looks_of(ceil(tokens)))
        tokens = n * (threshold(LEVEL * share / _LAST, sequences) * error / true) ** 2
    return Needed(max(n + 1, ceil(tokens)), max(MIN_SEQUENCES, ceil(tokens * clusters / n)))


def _report(race: Race, standing: Standing, seconds: float) -> Search:
    pool, tokens, best = race.pool, race.tokens[: standing.look], standing.order[0]
    tied = set(standing.tied)

    def rival(taps: Taps) -> Rival:
        behind = pool.log_likelihood(best, tokens) - pool.log_likelihood(taps, tokens)
        cost = _mean(pool.sequence[tokens], behind)
        open_ = taps in tied and taps != best
        needed = _needed(behind, cost) if open_ else None
        return Rival(taps, cost, taps in tied, needed)

    def slot(place: int) -> Slot:
        firsts: dict[Tap, Taps] = {}
        for taps in standing.order:
            firsts.setdefault(taps[place], taps)
        others = list(firsts.values())[1:]
        return Slot(
            place,
            (rival(best), *(rival(taps) for taps in others if taps in tied)),
            rival(others[0]) if others else None,
        )

    ranking = sorted(
        map(rival, standing.order[1 : 2 * _RANKED]), key=lambda one: one.cost.value or 0.0
    )
    rivals = tuple(rival(taps) for taps in standing.tied)
    slots = tuple(slot(place) for place in range(pool.slots))
    clusters = race.clusters(len(tokens))
    return Search(
        best=best,
        ranking=(rival(best), *ranking[: _RANKED - 1]),
        tied=rivals,
        slots=slots,
        log_likelihood=_mean(pool.sequence[tokens], pool.log_likelihood(best, tokens)),
        tuples=len(race.seen),
        candidates=len(race.candidates),
        tokens=len(tokens),
        sequences=clusters,
        seconds=seconds,
        undecided=_undecided(rivals, slots, len(tokens), clusters),
    )


def _undecided(
    rivals: Sequence[Rival], slots: Sequence[Slot], tokens: int, clusters: int
) -> str | None:
    """Why there is no decision, for a person; None where there is one."""
    if clusters < 2:
        return (
            f"{tokens} tokens of one sequence have no interval: record at least {MIN_SEQUENCES} "
            "sequences"
        )
    if len(rivals) == 1:
        return None
    open_ = "; ".join(
        f"slot {slot.slot}: {taps_name(slot.taps[:4])}"
        + (f" and {len(slot.taps) - 4} more" if len(slot.taps) > 4 else "")
        for slot in slots
        if not slot.decided
    )
    text = f"{tokens} tokens of {clusters} sequences do not tell apart {open_}"
    wants = [rival.needed for rival in rivals[1:]]
    same = [taps_name(rival.taps) for rival in rivals[1:] if rival.needed is None]
    if same:
        return f"{text}; no number of tokens would: {same[0]} gives the same on every one"
    most = max((want for want in wants if want), key=lambda want: want.tokens)
    return f"{text}; about {most.tokens} tokens of {most.sequences} sequences would decide"
