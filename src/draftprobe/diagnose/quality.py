"""How good are these weights and this text, whatever the wiring: figures, and what they leave open.

Accuracy by kind of sample, how varied the text is, whether it is the target's own, what the draft
vocabulary covers, and whether the next token's state helps more than it can be there to help.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from draftprobe.drafter.model import Drafter
from draftprobe.drafter.parts import Parts, rewire
from draftprobe.measure.interval import Estimate, proportion
from draftprobe.measure.replay import Observations, observe
from draftprobe.measure.summary import paired
from draftprobe.states.record import States

_TOKENS = 2048
"""Counted tokens that these figures take, spread over all sequences."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Step-1 accuracy on the sequences of one label."""

    kind: str
    top1: Estimate


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures of weights and text.

    Attributes:
        kinds: accuracy by label of the sequences; empty where they have none.
        distinct_bigrams: distinct pairs of neighbouring counted tokens over all such pairs; near 0
            on a text that repeats itself, which flatters every drafter.
        agreement: share of counted tokens that are the target's own greedy choice; None where
            h[N] or the target's head is not at hand.
        coverage: share of counted tokens that the draft vocabulary holds.
        leak: step-1 accuracy with the state of the next token in each slot less that with its
            own, paired: a drafter that gains by it was trained on states that no server has yet.
    """

    kinds: tuple[Kind, ...]
    distinct_bigrams: float | None
    agreement: Estimate | None
    coverage: Estimate
    leak: Estimate | None


def quality(drafter: Drafter, states: States, parts: Parts) -> Quality:
    """The figures of a drafter under its best wiring on recorded text."""
    one = observe(drafter, states, 1, _TOKENS)
    late = rewire(drafter, replace(drafter.wiring, state_shift=1), parts)
    return Quality(
        kinds=_kinds(one, states),
        distinct_bigrams=distinct_bigrams(states),
        agreement=_agreement(one, states, parts),
        coverage=proportion(one.sums(one.inside[0]), one.sums(one.valid[0])),
        leak=paired(one, observe(late, states, 1, _TOKENS)).accuracy[0],
    )


def _kinds(one: Observations, states: States) -> tuple[Kind, ...]:
    labels = states.provenance.kinds
    found = []
    for kind in sorted({label for label in labels if label}):
        members = torch.tensor([i for i, label in enumerate(labels) if label == kind])
        some = one.only(members)
        if len(some.slot):
            top1 = proportion(some.sums(some.correct[0]), some.sums(some.valid[0]))
            found.append(Kind(kind, top1))
    return tuple(found)


def distinct_bigrams(states: States) -> float | None:
    """Distinct over all pairs of neighbouring tokens that both count; None without any."""
    pairs = []
    texts = states.tokens.split(list(states.lengths)), states.mask.split(list(states.lengths))
    for tokens, mask in zip(*texts, strict=True):
        both = mask[1:] & mask[:-1]
        pairs.append(torch.stack([tokens[:-1][both], tokens[1:][both]], dim=-1))
    every = torch.cat(pairs)
    return len(every.unique(dim=0)) / len(every) if len(every) else None


@torch.inference_mode()
def _agreement(one: Observations, states: States, parts: Parts) -> Estimate | None:
    """The head on h[N] of token t + 1 says x_{t+2}: is it the text's?"""
    if parts.target_head is None or "N" not in states.boundaries:
        return None
    right = torch.zeros_like(one.valid[0])
    known = torch.zeros_like(one.valid[0])
    for index in one.sequence.unique().tolist():
        here = (one.sequence == index).nonzero().flatten()
        recorded = states.sequence(index, ("N",))
        rows = one.slot[here] + 1
        there = rows < len(recorded.h["N"])
        here, rows = here[there], rows[there]
        states_n = recorded.h["N"][rows].to(parts.target_head)
        said = (states_n @ parts.target_head.T).argmax(-1).cpu()
        right[here] = said == recorded.tokens[rows + 1]
        known[here] = True
    known &= one.valid[0]
    return proportion(one.sums(right & known), one.sums(known))
