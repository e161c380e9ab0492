"""Drafters that were stopped early: rightly wired, and weak for want of training.

Made in a fixture, some seconds each, since twenty of them are too much to ship.
"""

from __future__ import annotations

from pathlib import Path

from draftprobe.drafter.wiring import Tap
from draftprobe.states.record import States
from draftprobe.train.loop import Recipe
from draftprobe.train.run import Sizes, run

WIRINGS: tuple[tuple[Tap, ...], ...] = ((2, 5, 7), (0, 3, 6), (8, 4, 1), (1, 4, 8), (0, 2, 7))


def undertrained(
    target: Path, states: States, folder: Path, count: int = 20
) -> list[tuple[Path, tuple[Tap, ...]]]:
    """``count`` drafters in ``folder`` and their taps: 15 to 110 updates, seeds and taps differ.

    Args:
        target: the target's folder.
        states: its states with every boundary and h[N], 64 sequences or more.
        folder: where to write.
        count: how many.
    """
    made = []
    for number in range(count):
        taps, out = WIRINGS[number % len(WIRINGS)], folder / f"early_{number:02d}"
        recipe = Recipe(
            updates=15 + 5 * number, batch_tokens=1000, steps=2, steps_from=0.5, decay=0.8,
            rate=3e-3, warm_up=10, clip=1.0, seed=number,
        )  # fmt: skip
        run(target, [states], taps, Sizes(960, 128), recipe, out, lambda fact: None)
        made.append((out, taps))
    return made
