"""A bench on which any wiring is replayed on one sample of chains, and what was replayed is kept.

Sequences stand in blocks: few are replayed for a wiring that is soon out of the race. Knows
replays, and how two of them compare; draws no conclusion.

    s = log((1 - E) p + E / V)   of the text's token, p = 0 where the draft vocabulary lacks it

What the text's token is worth is bounded so on both sides: wirings with different vocabularies
compare on all tokens, and no single token decides.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np
import torch

from draftprobe.drafter.model import Drafter
from draftprobe.drafter.parts import Parts, rewire
from draftprobe.drafter.wiring import Wiring
from draftprobe.errors import InputError
from draftprobe.measure.acceptance import expected_difference
from draftprobe.measure.interval import Estimate, ratio
from draftprobe.measure.replay import (
    Observations,
    Part,
    Scorer,
    batch_of,
    check_fit,
    replay_batch,
)
from draftprobe.measure.summary import Summary, summarise
from draftprobe.states.record import States

EPSILON = 0.01
BLOCK = 16
"""Sequences per block; the first look at any wiring."""
_FEW = 2.0  # standard errors by which a likelier wiring may accept less and still count as likelier
_SAME = 1e-3  # nats on every token: two wirings that differ by rounding


@dataclass(frozen=True, slots=True)
class Sample:
    """How much text a bench takes: ``chains`` of each of at most ``sequences``, by ``seed``."""

    sequences: int = 64
    chains: int = 12
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Duel:
    """The second wiring less the first, per chain, on the same tokens of all steps.

    Attributes:
        gain: nats per chain with interval; t: its value in standard errors.
        accepted: drafts accepted per chain with interval; u: its value in standard errors.
        same: they differ by no more than rounding on any token.
    """

    gain: Estimate
    t: float
    accepted: Estimate
    u: float
    same: bool

    @property
    def better(self) -> float:
        """By how many standard errors the second is better, on whichever witness is clearer."""
        return max(self.t, self.u)

    @property
    def worse(self) -> float:
        """By how many it is worse, unless more of its drafts are accepted."""
        return max(-self.t, -self.u) if self.u < _FEW else -self.u


class Bench:
    """Wirings replayed on one sample; see the module's head.

    Attributes:
        steps: draft steps per chain; looks: numbers of blocks at which wirings are compared.
        replays: blocks replayed so far, of however many wirings.
    """

    def __init__(
        self,
        drafter: Drafter,
        parts: Parts,
        states: States,
        steps: int,
        sample: Sample = Sample(),
    ) -> None:
        """Choose the chains.

        Raises:
            InputError: the states do not fit, or no chain of ``steps`` counted tokens is in them.
        """
        check_fit(drafter, states)
        self.drafter, self.parts, self.states, self.steps = drafter, parts, states, steps
        chosen = _chains(states, steps, sample)
        if not chosen:
            raise InputError(
                f"{states.path}: expected runs of at least {steps} counted tokens, found none; "
                "record longer answers or give fewer --steps"
            )
        order = list(chosen)
        device = drafter.fc.weight.device
        self._blocks = [
            batch_of(states, part, [chosen[i] for i in part], device)
            for part in (order[i : i + BLOCK] for i in range(0, len(order), BLOCK))
        ]
        self._order = tuple(range(len(self._blocks)))
        self.looks = _looks(len(self._order))
        self.replays = 0
        self._parts: dict[tuple[Wiring, int], Part] = {}
        self._fused: dict[tuple, torch.Tensor] = {}
        self._joined: dict[tuple[Wiring, int], tuple[Observations, torch.Tensor]] = {}

    @property
    def sequences(self) -> int:
        """Sequences in all."""
        return sum(len(self._blocks[number].index) for number in self._order)

    @property
    def blocks(self) -> int:
        """Blocks of sequences that may be replayed."""
        return len(self._order)

    def part(self, numbers: Sequence[int]) -> Bench:
        """A bench of some of the blocks, in this order; what is replayed is shared."""
        other = copy.copy(self)
        other._order = tuple(self._order[number] for number in numbers)
        other.looks, other.replays, other._joined = _looks(len(other._order)), 0, {}
        return other

    def members(self) -> list[int]:
        """The sequences, in the order of the blocks."""
        return [index for number in self._order for index in self._blocks[number].index]

    def allows(self, wiring: Wiring) -> bool:
        """Whether everything that the wiring asks for is at hand."""
        try:
            check_fit(rewire(self.drafter, wiring, self.parts), self.states)
        except InputError:
            return False
        return True

    def observed(self, wiring: Wiring, look: int | None = None) -> Observations:
        """The wiring replayed on the first ``look`` blocks (all by default).

        Raises:
            InputError: something is not at hand, or scores that are NaN or infinite.
        """
        return self._look(wiring, look)[0]

    def _look(self, wiring: Wiring, look: int | None) -> tuple[Observations, torch.Tensor]:
        """Observations of some blocks, and s of their tokens [k, n]."""
        numbers = self._order[:look]
        if (wiring, len(numbers)) in self._joined:
            return self._joined[wiring, len(numbers)]
        missing = [n for n in numbers if (wiring, n) not in self._parts]
        if missing:
            drafter = rewire(self.drafter, wiring, self.parts)
            scorer = Scorer(drafter)
            for number in missing:
                self._parts[wiring, number] = self._replay(drafter, scorer, number)
                self.replays += 1
        parts = [self._parts[wiring, n] for n in numbers]
        joined = {
            name: torch.cat([getattr(part, name) for part in parts], dim=-1)
            for name in Part.__slots__
        }
        seen = Observations(**joined, whole=False, source=self.states.provenance.source)
        self._joined[wiring, len(numbers)] = seen, _worth(seen, self.drafter.shape.vocabulary)
        return self._joined[wiring, len(numbers)]

    @torch.inference_mode()
    def _replay(self, drafter: Drafter, scorer: Scorer, number: int) -> Part:
        block, wiring = self._blocks[number], drafter.wiring
        norms = frozenset(n for n in wiring.initial if n.startswith(("input_norm", "fc_norm")))
        key = (wiring.taps, wiring.state_shift, wiring.tap_norm, wiring.pre_fc_norm, norms, number)
        if key not in self._fused:
            self._fused[key] = drafter.fuse(block.taps(wiring, drafter.dtype))
        return replay_batch(drafter, scorer, block, self.steps, self._fused[key])

    def score(self, wiring: Wiring, look: int | None = None) -> float:
        """Nats per chain."""
        o, worth = self._look(wiring, look)
        return float(worth.sum() / o.valid[0].sum().clamp(min=1))

    def duel(self, first: Wiring, second: Wiring, look: int | None = None) -> Duel:
        """``second`` less ``first``; positive where the second is likelier."""
        (a, before), (b, after) = self._look(first, look), self._look(second, look)
        both = a.valid & b.valid  # [k, n]
        differences = ((after - before) * both).sum(0)  # [n]
        gain = ratio(a.sums(differences), a.sums(both[0]))
        accepted = expected_difference(_valid(a, both), _valid(b, both))
        same = bool((differences.abs() < _SAME).all())
        return Duel(gain, _t(gain), accepted, _t(accepted), same)

    def acceptance(self, first: Wiring, second: Wiring, look: int | None = None) -> Estimate:
        """Expected acceptance length of ``second`` less that of ``first``, paired."""
        a, b = self.observed(first, look), self.observed(second, look)
        both = a.valid & b.valid
        return expected_difference(_valid(a, both), _valid(b, both))

    def over_guess(self, wiring: Wiring, look: int | None = None) -> Estimate:
        """Step-1 accuracy less that of always guessing the sample's most frequent token."""
        o = self.observed(wiring, look)
        starts = torch.tensor([0, *self.states.lengths]).cumsum(0)[:-1]
        labels = self.states.tokens[starts[o.sequence] + o.slot + 2]
        valid = o.valid[0]
        guess = labels[valid].mode().values if valid.any() else -1
        right = (o.correct[0].long() - (labels == guess).long()) * valid
        return ratio(o.sums(right), o.sums(valid))

    def summary(self, wiring: Wiring, label: str) -> Summary:
        """The wiring's rates on every block."""
        return summarise(self.observed(wiring), label)


def _valid(o: Observations, both: torch.Tensor) -> Observations:
    return replace(o, valid=both, correct=o.correct & both, inside=o.inside & both)


def _worth(o: Observations, vocabulary: int) -> torch.Tensor:
    """S of each token, float64 [k, n]; 0 where it is not valid."""
    likely = o.log_likelihood.double().masked_fill(~o.inside, -torch.inf)
    floor = torch.tensor(log(EPSILON / vocabulary), dtype=torch.float64)
    return torch.logaddexp(likely + log(1 - EPSILON), floor).masked_fill(~o.valid, 0.0)


def _t(gain: Estimate) -> float:
    """Value over standard error; from the interval, whose half width is t(clusters - 1) of them."""
    if gain.value is None or gain.high is None or gain.clusters < 2:
        return 0.0
    from scipy.special import stdtrit

    error = (gain.high - gain.value) / float(stdtrit(gain.clusters - 1, 0.975))
    if error > 0:
        return gain.value / error
    return float(np.sign(gain.value) * np.inf) if gain.value else 0.0


def _looks(blocks: int) -> tuple[int, ...]:
    looks = [1]
    while looks[-1] * 2 < blocks:
        looks.append(2 * looks[-1])
    return tuple(dict.fromkeys((*looks, blocks)))


def _chains(states: States, steps: int, sample: Sample) -> dict[int, torch.Tensor]:
    """Slots of each chosen sequence at which a whole chain of counted tokens starts."""
    random = torch.Generator().manual_seed(sample.seed)
    masks = states.mask.split(list(states.lengths))
    chosen: dict[int, torch.Tensor] = {}
    for index in torch.randperm(len(masks), generator=random).tolist():
        mask = masks[index]
        windows = mask[2:].unfold(0, steps, 1) if len(mask) >= steps + 2 else mask[:0, None]
        starts = windows.all(-1).nonzero().flatten()
        if len(starts):
            count = min(sample.chains, len(starts))
            offset = torch.rand(count, generator=random)
            places = ((torch.arange(count) + offset) * len(starts) / count).long()
            chosen[index] = starts[places.clamp(max=len(starts) - 1)]
        if len(chosen) == sample.sequences:
            break
    return chosen
