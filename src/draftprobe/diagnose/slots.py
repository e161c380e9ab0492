"""What each slot wants, from two witnesses: replay, and the weights themselves.

Replay compares log-likelihoods and is blind in a slot that costs nothing; the weights' imprint
names a slot that replay cannot. Knows what both say, not how they found it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch

from draftprobe.diagnose.pool import Pool
from draftprobe.diagnose.search import Search
from draftprobe.diagnose.verdict import Confidence
from draftprobe.diagnose.witness import Witness
from draftprobe.drafter.wiring import Tap

_MANY = 256


@dataclass(frozen=True, slots=True)
class SlotEvidence:
    """One slot.

    Attributes:
        slot: its place, from 0.
        replay: boundaries that replay cannot tell apart, best first.
        weights: boundaries that the weights name, best first; empty where they are silent.
        silent: why the weights are silent; None where they are not.
    """

    slot: int
    replay: tuple[Tap, ...]
    weights: tuple[Tap, ...]
    silent: str | None

    @property
    def disagree(self) -> bool:
        """The weights name boundaries, and none that replay allows."""
        return bool(self.weights) and not set(self.weights) & set(self.replay)

    @property
    def tied(self) -> tuple[Tap, ...]:
        """What both allow; replay's own set where the weights are silent or contradict it."""
        both: tuple[Tap, ...] = tuple(tap for tap in self.weights if tap in self.replay)
        return both or self.replay

    @property
    def agree(self) -> bool:
        """Both witnesses decided, on the same boundary."""
        return len(self.replay) == len(self.weights) == 1 and self.replay == self.weights

    @property
    def decided(self) -> bool:
        """At least one witness decided, and the other does not contradict it."""
        return not self.disagree and 1 in (len(self.replay), len(self.weights))


def combine(search: Search, witness: Witness | None) -> tuple[SlotEvidence, ...]:
    """Both witnesses, slot by slot."""
    out = []
    for slot in search.slots:
        heard = witness.slots[slot.slot] if witness else None
        named = heard.named if heard else ()
        silent = heard.reason if heard else "fc's blocks were not questioned"
        out.append(SlotEvidence(slot.slot, slot.taps, named, silent))
    return tuple(out)


def wanted_taps(search: Search, slots: Sequence[SlotEvidence], pool: Pool) -> tuple[Tap, ...]:
    """The likeliest tuple of what both witnesses allow in every slot."""
    for rival in search.tied:
        if all(tap in slot.tied for tap, slot in zip(rival.taps, slots, strict=True)):
            return rival.taps
    choices = [slot.tied for slot in slots]
    while prod(map(len, choices)) > _MANY:  # a slot with many ties costs least to cut
        longest = max(range(len(choices)), key=lambda index: len(choices[index]))
        choices[longest] = choices[longest][:-1]
    tokens = torch.arange(len(pool))
    return max(product(*choices), key=lambda taps: float(pool.log_likelihood(taps, tokens).mean()))


def confidence(slots: Sequence[SlotEvidence]) -> Confidence:
    """High: a witness decided in every slot, both and alike in one, none disagreeing."""
    if any(slot.disagree for slot in slots):
        return "low"
    sure = all(slot.decided for slot in slots) and any(slot.agree for slot in slots)
    return "high" if sure else "medium"
