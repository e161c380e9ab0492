"""What a replay says in numbers: rates per step and by position, coverage, acceptance length.

Every number carries its n and its interval, sequences being the clusters. Knows observations, not
the drafter that made them, and no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from draftprobe.measure.acceptance import Walk, expected, expected_difference, walk
from draftprobe.measure.interval import Estimate, proportion, ratio
from draftprobe.measure.replay import Observations

FIRST_BUCKET = 64


@dataclass(frozen=True, slots=True)
class Step:
    """One draft step.

    Attributes:
        step: 1 is the draft made from target states.
        top1: right, of all counted tokens.
        conditional: right, given that all steps before it were right.
        joint: right together with all steps before it.
        nll: mean negative log-likelihood, in nats, of the tokens inside the draft vocabulary.
    """

    step: int
    top1: Estimate
    conditional: Estimate
    joint: Estimate
    nll: Estimate


@dataclass(frozen=True, slots=True)
class Bucket:
    """Top-1 accuracy per step of the chains that start at slots ``first``..``last``."""

    first: int
    last: int
    top1: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """A replay in numbers.

    Attributes:
        label: which wiring was replayed.
        steps: one entry per draft step.
        buckets: by starting slot, 0..63, 64..127, 128..255 and so on.
        coverage: share of the tokens that the draft vocabulary holds: the ceiling of step 1.
        acceptance: expected acceptance length.
        walk: the walk it comes from; None where only a sample was observed.
        source: of the text.
        tokens, sequences: counted at step 1.
    """

    label: str
    steps: tuple[Step, ...]
    buckets: tuple[Bucket, ...]
    coverage: Estimate
    acceptance: Estimate
    walk: Walk | None
    source: str
    tokens: int
    sequences: int

    @property
    def exact(self) -> bool:
        """The acceptance length is a decode's own, not an estimate: the text is the target's."""
        return self.walk is not None and self.source == "greedy"

    def to_json(self) -> dict[str, Any]:
        """The ``replay`` object of a verdict."""
        return {
            "label": self.label,
            "source": self.source,
            "tokens": self.tokens,
            "sequences": self.sequences,
            "steps": [_step_json(step) for step in self.steps],
            "coverage": _estimate_json(self.coverage),
            "expected_acceptance": self.acceptance.value,
            "acceptance": _estimate_json(self.acceptance)
            | {"method": "joint" if self.walk is None else "walk", "exact": self.exact}
            | _walk_json(self.walk),
            "buckets": [
                {"first": b.first, "last": b.last, "top1": [_estimate_json(e) for e in b.top1]}
                for b in self.buckets
            ],
        }


def _step_json(step: Step) -> dict[str, Any]:
    """Flat numbers, low and high being top1's; the others' intervals stand beside them."""
    return {
        "step": step.step,
        "top1": step.top1.value,
        "conditional": step.conditional.value,
        "joint": step.joint.value,
        "nll": step.nll.value,
        "n": step.top1.n,
        "low": step.top1.low,
        "high": step.top1.high,
        "intervals": {
            name: _estimate_json(getattr(step, name)) for name in ("conditional", "joint", "nll")
        },
    }


def _estimate_json(estimate: Estimate) -> dict[str, Any]:
    return {name: getattr(estimate, name) for name in Estimate.__slots__}


def _walk_json(walk: Walk | None) -> dict[str, int]:
    if walk is None:
        return {}
    return {name: sum(getattr(walk, name)) for name in ("rounds", "emitted", "accepted", "drafted")}


def summarise(observations: Observations, label: str) -> Summary:
    """Rates with intervals of one replay."""
    o = observations
    hits, valid = o.sums(o.correct), o.sums(o.valid)  # [k, sequences]
    joint = o.sums(o.correct.long().cumprod(0))
    reached = o.valid & _right_before(o.correct)
    given = o.sums(reached)
    inside = o.sums(o.inside)
    nll = o.sums(-o.log_likelihood.nan_to_num(0.0))
    steps = tuple(
        Step(
            step=i + 1,
            top1=proportion(hits[i], valid[i]),
            conditional=proportion(joint[i], given[i]),
            joint=proportion(joint[i], valid[i]),
            nll=ratio(nll[i], inside[i]),
        )
        for i in range(o.steps)
    )
    return Summary(
        label=label,
        steps=steps,
        buckets=_buckets(o),
        coverage=proportion(inside[0], valid[0]),
        acceptance=expected(o),
        walk=walk(o) if o.whole else None,
        source=o.source,
        tokens=steps[0].top1.n,
        sequences=steps[0].top1.clusters,
    )


def _right_before(correct: torch.Tensor) -> torch.Tensor:
    """All earlier steps right, bool [k, n]."""
    before = torch.cat([torch.ones_like(correct[:1]), correct[:-1]])
    return before.long().cumprod(0).bool()


def _buckets(o: Observations) -> tuple[Bucket, ...]:
    edges = [0, FIRST_BUCKET]
    while edges[-1] <= int(o.slot.max()):
        edges.append(2 * edges[-1])
    buckets = []
    for first, end in pairwise(edges):
        here = (o.slot >= first) & (o.slot < end)
        if not here.any():
            continue
        hits, valid = o.sums(o.correct & here), o.sums(o.valid & here)
        top1 = tuple(proportion(h, v) for h, v in zip(hits, valid, strict=True))
        buckets.append(Bucket(first, end - 1, top1))
    return tuple(buckets)


@dataclass(frozen=True, slots=True)
class Paired:
    """The second replay minus the first, on the same tokens, paired token by token.

    Attributes:
        accuracy: difference of top-1, per step.
        log_likelihood: mean difference in nats, per step, over tokens that both draft
            vocabularies hold.
        acceptance: difference of the expected acceptance length.
    """

    accuracy: tuple[Estimate, ...]
    log_likelihood: tuple[Estimate, ...]
    acceptance: Estimate


def paired(a: Observations, b: Observations) -> Paired:
    """How much better ``b`` is than ``a``, with intervals over sequences.

    Raises:
        ValueError: the two did not observe the same tokens.
    """
    for name in ("sequence", "slot", "valid"):
        if not torch.equal(getattr(a, name), getattr(b, name)):
            raise ValueError(f"paired: the two replays observed other tokens ({name} differs)")
    valid = a.sums(a.valid)
    right = a.sums(b.correct.long() - a.correct.long())
    both = a.inside & b.inside
    likely = a.sums((b.log_likelihood - a.log_likelihood).masked_fill(~both, 0.0))
    return Paired(
        accuracy=tuple(ratio(x, m) for x, m in zip(right, valid, strict=True)),
        log_likelihood=tuple(ratio(x, m) for x, m in zip(likely, a.sums(both), strict=True)),
        acceptance=expected_difference(a, b),
    )
