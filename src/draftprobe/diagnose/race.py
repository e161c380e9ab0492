"""Tuples of boundaries race on growing beginnings of one sample of tokens.

    D = log p(x | best) - log p(x | rival)     token by token; its mean varies between sequences
    The rival is beaten where mean D > T se(D). T is Student's t for an error of 5 % over all that
    is compared: shared out to the looks (at doubling numbers of tokens) in proportion to their
    tokens, and in a look to its rivals, the clearest loser first (Holm, Scand. J. Statist. 6 (1979)
    65-70).

Coordinate ascent finds the best: slot by slot boundaries race, and hopeless ones drop out after few
tokens. The ties are what the best does not beat on all tokens, among its neighbours: each slot
swapped, and pairs of slots swapped for their nearest alternatives. Knows a pool of scored tokens,
not what becomes of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import torch

from draftprobe.diagnose.pool import Pool
from draftprobe.drafter.wiring import Tap

Taps = tuple[Tap, ...]

LEVEL = 0.05
_FIRST = 64  # tokens of the first look; half as many of a drafter that is dear
_COARSE = 8  # boundaries per slot in an ascent's first, coarse part
_ALTERNATIVES = 2  # per slot, where pairs of slots are swapped together


@dataclass(frozen=True, slots=True)
class Standing:
    """Tuples best first: those never beaten (the first ``standing`` ones), then by how long."""

    order: list[Taps]
    standing: int
    look: int

    @property
    def tied(self) -> list[Taps]:
        """Those never beaten."""
        return self.order[: self.standing]


class Race:
    """Comparisons on growing beginnings of one sample.

    ``choices`` are the boundaries that still race in each slot.
    """

    def __init__(self, pool: Pool, tokens: torch.Tensor, candidates: Taps) -> None:
        self.pool, self.tokens, self.candidates = pool, tokens, candidates
        self.choices = [candidates[:: max(1, len(candidates) // _COARSE)]] * pool.slots
        self.looks = looks_of(len(tokens), _FIRST // 2 if pool.dear else _FIRST)
        self.seen: set[Taps] = set()
        if self.clusters(len(tokens)) < 2:
            self.looks = self.looks[-1:]

    def clusters(self, look: int) -> int:
        """Sequences among the first ``look`` tokens."""
        return len(self.pool.sequence[self.tokens[:look]].unique())

    def starts(self, count: int, seed: int) -> Iterator[Taps]:
        """Tuples to ascend from: evenly spaced boundaries, then random ones."""
        many, slots = len(self.candidates), self.pool.slots
        yield tuple(self.candidates[(2 * s + 1) * many // (2 * slots)] for s in range(slots))
        random = np.random.default_rng(seed)
        for _ in range(count - 1):
            yield tuple(self.candidates[place] for place in random.integers(many, size=slots))

    def run(self, tuples: Sequence[Taps], last: int) -> Standing:
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
        return Standing(first + out, len(first), last)

    def costs(self, tuples: Sequence[Taps], look: int) -> tuple[np.ndarray, np.ndarray]:
        """Nats per token behind the likeliest of the tuples, and the standard errors."""
        tokens = self.tokens[:look]
        _, line = self.pool.sequence[tokens].unique(return_inverse=True)
        likely = self.pool.log_likelihoods(tuples, tokens)
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
        """``taps`` with each boundary that still races in ``slot``."""
        return [(*taps[:slot], tap, *taps[slot + 1 :]) for tap in self.choices[slot]]

    def narrow(self, standing: Standing) -> None:
        """Let only boundaries race on that no tuple lost with, and the next few."""
        for slot in range(self.pool.slots):
            tied = {taps[slot] for taps in standing.tied}
            ranked: dict[Tap, None] = dict.fromkeys(taps[slot] for taps in standing.order)
            self.choices[slot] = tuple(ranked)[: len(tied) + _ALTERNATIVES]

    def settle(self, bests: Sequence[Taps], last: int) -> Standing:
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


def looks_of(tokens: int, first: int = _FIRST) -> list[int]:
    """``first``, twice that and so on to ``tokens``, without a last step of less than a half."""
    looks = [tokens]
    size = first
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
        if t[place] <= threshold(level / left, clusters):
            break
        out[place] = True
    return out


def threshold(level: float, clusters: int) -> float:
    """The value that Student's t with clusters - 1 degrees of freedom exceeds with chance level."""
    from scipy.special import stdtrit

    return -float(stdtrit(clusters - 1, level))
