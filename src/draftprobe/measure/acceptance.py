"""Acceptance length: tokens per target pass, the bonus token counted. The one definition.

The first token, which the prefill's own pass says, counts neither as a token nor as a pass. Knows
what a drafter got right token by token, not how it was run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from draftprobe.measure.interval import Estimate, ratio, ratio_difference, sum_of_ratios
from draftprobe.measure.replay import Observations


@dataclass(frozen=True, slots=True)
class Walk:
    """Rounds of a decode that would write the recorded text, per sequence.

    Attributes:
        steps: drafts per round.
        sequences: which ones; the other tuples follow this order.
        rounds: target passes after the prefill.
        emitted: tokens that came out of them.
        accepted: drafts among these tokens. A round that reaches the text's end by drafts alone
            has its bonus token cut: emitted = accepted + rounds, less at most one per run.
    """

    steps: int
    sequences: tuple[int, ...]
    rounds: tuple[int, ...]
    emitted: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def drafted(self) -> tuple[int, ...]:
        """Drafts made, those behind the text's end included."""
        return tuple(self.steps * rounds for rounds in self.rounds)

    @property
    def length(self) -> Estimate:
        """Acceptance length: emitted over rounds; ``n`` counts rounds."""
        return ratio(self.emitted, self.rounds)


def walk(observations: Observations) -> Walk:
    """Jump from t to t + r(t) + 1 along each text, r(t) drafts being right in a row from slot t.

    A text's counted tokens x_P..x_E are one run (in a chat, one run per answer). The decode stands
    at slot P - 1 first, x_P being the prefill's, and its last round is cut at x_E. On the target's
    own greedy text, replayed with the decode's chain length, these are the decode's own rounds.

    Raises:
        ValueError: only a sample of the tokens was observed.
    """
    if not observations.whole:
        raise ValueError("a walk needs every counted token; this replay observed a sample")
    totals: dict[int, list[int]] = {}
    for sequence, lengths in _runs(observations):
        sums = totals.setdefault(sequence, [0, 0, 0])
        for index, count in enumerate(walk_run(lengths)):
            sums[index] += count
    columns = zip(*totals.values(), strict=True) if totals else ((), (), ())
    rounds, emitted, accepted = (tuple(column) for column in columns)
    return Walk(observations.steps, tuple(totals), rounds, emitted, accepted)


def walk_run(lengths: Sequence[int]) -> tuple[int, int, int]:
    """Rounds, emitted and accepted tokens over one run's slots; ``lengths`` are r(t) at each."""
    t = rounds = accepted = 0
    while t < len(lengths):
        kept = min(lengths[t], len(lengths) - t)
        rounds, accepted, t = rounds + 1, accepted + kept, t + kept + 1
    return rounds, len(lengths), accepted


def _runs(observations: Observations) -> Iterator[tuple[int, list[int]]]:
    """Sequence and run lengths of each stretch of neighbouring slots where a decode can stand."""
    stand = observations.started
    rows = zip(
        observations.sequence[stand].tolist(),
        observations.slot[stand].tolist(),
        observations.run_lengths[stand].tolist(),
        strict=True,
    )
    stretches = groupby(enumerate(rows), key=lambda row: (row[1][0], row[1][1] - row[0]))
    for (sequence, _), stretch in stretches:
        yield sequence, [length for _, (_, _, length) in stretch]


def expected(observations: Observations) -> Estimate:
    """Acceptance length of a decode that would write this text.

    The walk where every counted token was observed. From a sample of tokens: 1 + the mean number
    of drafts right in a row, which is a few percent high, since rounds start more often right
    after a token that was hard to draft.
    """
    if observations.whole:
        return walk(observations).length
    length = sum_of_ratios(_joint(observations))
    return _plus_one(length)


def expected_difference(a: Observations, b: Observations) -> Estimate:
    """expected(b) - expected(a), paired by sequence; both must be of the same tokens."""
    if a.whole and b.whole:
        first, second = walk(a), walk(b)
        return ratio_difference(first.emitted, first.rounds, second.emitted, second.rounds)
    pairs = zip(_joint(a), _joint(b), strict=True)
    return sum_of_ratios([(hits_b - hits_a, valid) for (hits_a, valid), (hits_b, _) in pairs])


def _joint(observations: Observations) -> list[tuple]:
    """Per step, by sequence: chains right so far, and chains that reach so far."""
    right = observations.correct.long().cumprod(0)
    return list(zip(observations.sums(right), observations.sums(observations.valid), strict=True))


def _plus_one(x: Estimate) -> Estimate:
    shifted = (None if v is None else v + 1 for v in (x.value, x.low, x.high))
    return Estimate(*shifted, n=x.n, clusters=x.clusters)
