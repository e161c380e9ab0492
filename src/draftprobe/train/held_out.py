"""Held-out accuracy of a drafter in training, per draft step; a quick look, not the replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from draftprobe.drafter.model import Drafter, unroll
from draftprobe.drafter.wiring import Tap
from draftprobe.states.record import States


def measurer(
    states: States, taps: tuple[Tap, ...], steps: int = 3, sequences: int = 48
) -> Callable[[Drafter], dict[str, Any]]:
    """A function that gives top-1 accuracy of steps 1..k on every n-th recorded sequence."""
    chosen = range(0, len(states), max(1, len(states) // sequences))
    sample = [states.sequence(index, taps) for index in chosen]

    @torch.inference_mode()
    def measure(drafter: Drafter) -> dict[str, Any]:
        drafter.eval()
        ids = drafter.target_ids()
        right, seen = torch.zeros(steps), torch.zeros(steps)
        for s in sample:
            outputs = unroll(drafter, s.taps(taps)[None], s.tokens[None], steps)
            for step, o in enumerate(outputs):
                label, counted = s.tokens[step + 2 :], s.mask[step + 2 :]
                if not counted.any():
                    continue
                drafts = ids[drafter.logits(o[0, : len(label)][counted]).argmax(-1)]
                right[step] += (drafts == label[counted]).sum()
                seen[step] += counted.sum()
        return {"held_out": (right / seen.clamp(min=1)).tolist(), "n": int(seen[0])}

    return measure
