"""Which boundaries, in which slots, do these weights want? Asked of recorded text by replay.

Tuples of boundaries are compared token by token on the log-likelihood of the next-next token, with
sequences as clusters; what cannot be told apart is a tie, never a guess. Knows a pool of scored
tokens, not the drafter, and nobody's opinion of the wiring.

    D = log p(x | best) - log p(x | rival)     token by token; its mean varies between sequences
    The rival is beaten where mean D > T se(D). T is Student's t for an error of 5 % over all that
    is compared: shared out to the looks (at doubling numbers of tokens) in proportion to their
    tokens, and in a look to its rivals, the clearest loser first (Holm, Scand. J. Statist. 6 (1979)
    65-70).

Coordinate ascent finds the best: slot by slot boundaries race, and hopeless ones drop out after few
tokens; first among a few evenly spaced ones from several starts, then among all from the best of
these. The ties are what the best does not beat on all tokens, among its neighbours: each slot
swapped, and pairs of slots swapped for their nearest alternatives.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, product
from math import ceil
from typing import Any

import numpy as np
import torch

from draftprobe.diagnose.pool import MIN_SEQUENCES, Filling, Limits, Pool, rewired
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

Taps = tuple[Tap, ...]

LEVEL = 0.05
_LAST = 3  # rivals that the deciding look still compares, as a rule
_FIRST = 64  # tokens of the first look
_DECIDES = 256  # tokens of the first decision, if there are as many
_STARTS = 2
_COARSE = 8  # boundaries per slot in an ascent's first, coarse part
_ALTERNATIVES = 2  # per slot, where pairs of slots are swapped together
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
    race = _Race(pool, tokens, tuple(pool.candidates if candidates is None else candidates))
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


@dataclass(frozen=True, slots=True)
class _Standing:
    """Tuples best first: those never beaten (the first ``standing`` ones), then by how long."""

    order: list[Taps]
    standing: int
    look: int

    @property
    def tied(self) -> list[Taps]:
        return self.order[: self.standing]


class _Race:
    """Comparisons on growing beginnings of one sample.

    ``choices`` are the boundaries that still race in each slot.
    """

    def __init__(self, pool: Pool, tokens: torch.Tensor, candidates: Taps) -> None:
        self.pool, self.tokens, self.candidates = pool, tokens, candidates
        self.choices = [candidates[:: max(1, len(candidates) // _COARSE)]] * pool.slots
        self.looks = _looks(len(tokens))
        self.seen: set[Taps] = set()
        if self.clusters(len(tokens)) < 2:
            self.looks = self.looks[-1:]

    def clusters(self, look: int) -> int:
        return len(self.pool.sequence[self.tokens[:look]].unique())

    def starts(self, count: int, seed: int) -> Iterator[Taps]:
        """Tuples to ascend from: evenly spaced boundaries, then random ones."""
        many, slots = len(self.candidates), self.pool.slots
        yield tuple(self.candidates[(2 * s + 1) * many // (2 * slots)] for s in range(slots))
        random = np.random.default_rng(seed)
        for _ in range(count - 1):
            yield tuple(self.candidates[place] for place in random.integers(many, size=slots))

    def run(self, tuples: Sequence[Taps], last: int) -> _Standing:
        """Race until look ``last``; the first tuple is never dropped."""
        alive = first = list(dict.fromkeys(tuples))
        out: list[Taps] = []
        self.seen.update(alive)
        for look in (look for look in self.looks if look <= last):
            cost, error = self.costs(alive, look)
            beaten = _beaten(cost, error, self.clusters(look), LEVEL * look / sum(self.looks))
            beaten[0] = False
            ranks = np.argsort(cost, kind="stable")
            out = [alive[i] for i in ranks if beaten[i]] + out
            first = [alive[i] for i in ranks if not beaten[i]]
            alive = [taps for taps, gone in zip(alive, beaten, strict=True) if not gone]
        return _Standing(first + out, len(first), last)

    def costs(self, tuples: Sequence[Taps], look: int) -> tuple[np.ndarray, np.ndarray]:
        """Nats per token behind the likeliest of the tuples, and the standard errors."""
        tokens = self.tokens[:look]
        _, line = self.pool.sequence[tokens].unique(return_inverse=True)
        likely = torch.stack([self.pool.log_likelihood(taps, tokens) for taps in tuples])
        behind = likely[likely.mean(-1).argmax()] - likely  # [K, look]
        cost = behind.mean(-1, keepdim=True)
        groups = torch.zeros(len(tuples), int(line.max()) + 1, dtype=torch.float64)
        groups.index_add_(1, line, (behind - cost) / look)
        count = groups.shape[1]
        variance = groups.square().sum(-1) * count / max(1, count - 1)
        return cost[:, 0].numpy(), variance.sqrt().numpy()

    def ascend(self, best: Taps, last: int) -> Taps:
        """Slot by slot, last slot first, the likeliest boundary, until none changes."""
        while True:
            before = best
            for slot in reversed(range(self.pool.slots)):
                best = self.run([best, *self.swaps(best, slot)], last).order[0]
            if best == before:
                return best

    def swaps(self, taps: Taps, slot: int) -> list[Taps]:
        return [(*taps[:slot], tap, *taps[slot + 1 :]) for tap in self.choices[slot]]

    def narrow(self, standing: _Standing) -> None:
        """Let only boundaries race on that no tuple lost with, and the next few."""
        for slot in range(self.pool.slots):
            tied = {taps[slot] for taps in standing.tied}
            ranked: dict[Tap, None] = dict.fromkeys(taps[slot] for taps in standing.order)
            self.choices[slot] = tuple(ranked)[: len(tied) + _ALTERNATIVES]

    def settle(self, bests: Sequence[Taps], last: int) -> _Standing:
        """The best with its neighbours, where no neighbour is better."""
        best = self.run(bests, last).order[0]
        while True:
            best = self.ascend(best, last)
            near = [self.run([best, *self.swaps(best, s)], last) for s in range(self.pool.slots)]
            swapped = [taps for standing in near for taps in standing.order]
            nearest = [[t for t in n.order if t != best][:_ALTERNATIVES] for n in near]
            both = [
                _both(best, pair, taps)
                for pair in combinations(range(self.pool.slots), 2)
                for taps in product(*(nearest[slot] for slot in pair))
            ]
            standing = self.run([best, *swapped, *both], last)
            if standing.order[0] == best:
                return standing
            best = standing.order[0]


def _both(best: Taps, pair: tuple[int, ...], taps: tuple[Taps, ...]) -> Taps:
    """``best`` with the boundary of each of ``taps`` in its slot of ``pair``."""
    out = list(best)
    for slot, other in zip(pair, taps, strict=True):
        out[slot] = other[slot]
    return tuple(out)


def _looks(tokens: int) -> list[int]:
    """64, 128, 256 and so on to ``tokens``, without a last step of less than a half."""
    looks = [tokens]
    size = _FIRST
    while 1.5 * size <= tokens:
        looks.append(size)
        size *= 2
    return sorted(looks)


def _beaten(cost: np.ndarray, error: np.ndarray, clusters: int, level: float) -> np.ndarray:
    """Which of the tuples the likeliest of them beats, bool; see the module's head."""
    out = np.zeros(len(cost), dtype=bool)
    if clusters < 2:
        return out
    t = np.divide(cost, error, out=np.where(cost > 0, np.inf, 0.0), where=error > 0)
    for place, left in zip(np.argsort(-t), range(len(t) - 1, 0, -1), strict=False):
        if t[place] <= _threshold(level / left, clusters):
            break
        out[place] = True
    return out


def _threshold(level: float, clusters: int) -> float:
    """The value that Student's t with clusters - 1 degrees of freedom exceeds with chance level."""
    from scipy.special import stdtrit

    return -float(stdtrit(clusters - 1, level))


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
    error = (cost.high - cost.value) / _threshold(0.025, clusters)
    prior = spread / 2
    weights = np.array([1 / max(error, 1e-12) ** 2, (2 / prior) ** 2])
    true = float(weights @ [cost.value, prior] / weights.sum())
    tokens = float(n)
    for _ in range(3):  # T depends on n, but little
        sequences = max(MIN_SEQUENCES, ceil(tokens * clusters / n))
        share = ceil(tokens) / sum(_looks(ceil(tokens)))
        tokens = n * (_threshold(LEVEL * share / _LAST, sequences) * error / true) ** 2
    return Needed(max(n + 1, ceil(tokens)), max(MIN_SEQUENCES, ceil(tokens * clusters / n)))


def _report(race: _Race, standing: _Standing, seconds: float) -> Search:
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
