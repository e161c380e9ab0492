"""Make the test world anew: both targets, their states, every drafter.

    python -m tests.world.make WORK [--only llama l2_5_7 ...]

Run from the repository's root. Parts that are in the world's folder already are left as they are;
remove one to have it made again. States stay in WORK; they are too large to ship.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from . import language, targets
from .drafters import DRAFTERS, Made, train_by_speculators, train_command
from .figures import call

WORLD = Path("tests/world")
TRAINING, HELD_OUT, FRESH = (1600, 2), (128, targets.HELD_OUT_SEED), (24, 20_000_003)
"""Count and seed of the prompts: drafters' training, held-out replay, decode."""
NEW = 60
"""Longest continuation; an answer ends before."""


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="*", default=[*targets.RECIPES, *DRAFTERS])
    given = parser.parse_args()
    given.work.mkdir(exist_ok=True)
    for name in targets.RECIPES:
        if name in given.only and not (WORLD / name).exists():
            targets.train(name, given.work / name, targets.RECIPES[name])
            shutil.move(given.work / name, WORLD / name)
    for name, made in DRAFTERS.items():
        if name in given.only and not (WORLD / name).exists():
            draft(name, made, given.work)


def states(target: str, part: tuple[int, int], label: str, work: Path) -> Path:
    """States of the target's greedy answers to that part's prompts, captured if not there."""
    out, (count, seed) = work / f"{target}_{label}.safetensors", part
    if not out.exists():
        prompts = language.write_prompts(work / f"{label}.jsonl", count, seed)
        call(
            "capture", WORLD / target, "--prompts", prompts, "--out", out, "--greedy", NEW,
            "--dtype", "float16", "--batch", 64,
        )  # fmt: skip
    return out


def draft(name: str, made: Made, work: Path) -> None:
    """Train one drafter and move it into the world."""
    target, out = WORLD / made.target, work / name
    training = states(made.target, TRAINING, "train", work)
    held_out = states(made.target, HELD_OUT, "held_out", work)
    if made.trainer == "speculators":
        train_by_speculators(made, target, training, out)
    else:
        print(call(*train_command(made, target, training, held_out, out)))
    (out / "config.py").unlink(missing_ok=True)  # speculators puts a copy of its own code there
    for path in out.iterdir():
        path.chmod(0o644)
    shutil.move(out, WORLD / name)


if __name__ == "__main__":
    sys.exit(main())
