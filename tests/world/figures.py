"""What the world's parts reach: answers, boundaries, drafters, slots; each with n and interval.

    python -m tests.world.figures WORK > tests/world/FIGURES.md

Measures with draftprobe's own replay, decode and ablation on held-out texts; trains nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from draftprobe.diagnose.pool import Limits, Pool
from draftprobe.diagnose.search import ablate
from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import Drafter, load_drafter
from draftprobe.measure.interval import Estimate, ratio
from draftprobe.measure.replay import observe
from draftprobe.measure.summary import summarise
from draftprobe.states.record import States, open_states
from draftprobe.states.target import embedding_table, load_target

from . import language, targets
from .drafters import DRAFTERS, Made

COMMAND = (sys.executable, "-c", "from draftprobe.cli import main; main()")


def call(*arguments: object) -> str:
    """Run ``draftprobe`` and give back what it printed."""
    words = [*COMMAND, *map(str, arguments)]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def open_drafter(folder: Path, taps: tuple[int, ...], target: Path) -> Drafter:
    """A drafter fed from ``taps``, its other wires as its folder says."""
    checkpoint = open_checkpoint(folder)
    return load_drafter(checkpoint, wiring_of(checkpoint, taps), embedding_table(target))


def neighbours(states: States, sequences: int = 64) -> list[tuple[int, float, float]]:
    """For each layer k: |h[k+1] - h[k]| / |h[k]| and the cosine of the two, means over tokens."""
    last = states.provenance.layers
    rows: list[list[tuple[float, float]]] = []
    for index in range(min(sequences, len(states))):
        s = states.sequence(index, range(last + 1))
        for k in range(last):
            a, b = s.h[k][4:].float(), s.h[k + 1][4:].float()  # sinks left out
            cosine = torch.cosine_similarity(a, b, dim=-1).mean().item()
            moved = ((b - a).norm(dim=-1) / a.norm(dim=-1)).mean().item()
            rows.extend([[]] if len(rows) <= k else [])
            rows[k].append((moved, cosine))
    return [(k, *(sum(x) / len(x) for x in zip(*row, strict=True))) for k, row in enumerate(rows)]


def replayed(drafter: Drafter, states: States, steps: int = 5) -> dict[str, Any]:
    """Accuracy per step and the walk's acceptance length, as ``replay --json`` gives them."""
    return summarise(observe(drafter, states, steps), "as trained").to_json()


def decoded(target: Path, folder: Path, taps: tuple[int, ...], prompts: Path) -> dict[str, Any]:
    """``draftprobe decode --json`` with 5 drafts per pass."""
    told = ",".join(map(str, taps))
    return json.loads(
        call("decode", target, folder, "--prompts", prompts, "--taps", told, "--json")
    )


def slots(drafter: Drafter, states: States) -> dict[str, Any]:
    """What zeroing each slot costs, and what its neighbour's state there costs, at step 1."""
    taps = drafter.wiring.taps
    pool = Pool(drafter, states, tuple(range(states.provenance.layers + 1)), Limits(tokens=2048))
    tokens = torch.arange(len(pool))
    whole = pool.correct(taps, tokens)

    def cost(other: Sequence[Any]) -> Estimate:
        changed = pool.correct(tuple(other), tokens).double() - whole.double()
        _, line, counts = pool.sequence.unique(return_inverse=True, return_counts=True)
        sums = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, line, changed)
        return ratio(sums.numpy(), counts.numpy())

    layers = states.provenance.layers
    moved = {}
    for slot, tap in enumerate(taps):
        for other in (tap - 1, tap + 1):
            if 0 <= other <= layers:
                moved[slot, tap, other] = cost((*taps[:slot], other, *taps[slot + 1 :]))
    late = [tap + 1 for tap in taps]
    return {
        "n": len(pool),
        "step_1": float(whole.double().mean()),
        "zeroed": [(a.slot, taps[a.slot], a.accuracy) for a in ablate(pool, taps, tokens)],
        "moved": moved,
        "all one late": cost(late) if max(late) <= layers else None,
    }


def _told(e: Estimate, digits: int = 3) -> str:
    values = (e.value, e.low, e.high)
    value, low, high = (f"{x:+.{digits}f}" if x is not None else "none" for x in values)
    return f"{value} ({low} to {high})"


def tables(work: Path) -> Iterator[str]:
    """All figures as Markdown, from the states that ``make`` left in ``work``."""
    from .make import FRESH, HELD_OUT, WORLD, states

    prompts = language.write_prompts(work / "decode.jsonl", *FRESH)
    for target in filter(lambda name: (WORLD / name).exists(), targets.RECIPES):
        held_out = open_states(states(target, HELD_OUT, "held_out", work))
        yield f"\n## {target}\n"
        model = load_target(WORLD / target).model
        found = targets.answers(model, 200)
        yield (
            f"Held-out answers ({found['texts']} texts, {found['tokens']} tokens, teacher-forced): "
            f"loss {found['loss']:.3f}, next token right {found['accuracy']:.3f}, "
            f"answers right in every token {found['all_right']:.3f}.\n"
        )
        yield "| boundaries | relative change | cosine |\n|---|---|---|"
        for k, moved, cosine in neighbours(held_out):
            yield f"| h[{k}] to h[{k + 1}] | {moved:.3f} | {cosine:.3f} |"
        for name, made in DRAFTERS.items():
            if made.target == target and (WORLD / name).exists():
                yield from _of_drafter(name, made, WORLD, held_out, prompts)


def _of_drafter(
    name: str, made: Made, world: Path, held_out: States, prompts: Path
) -> Iterator[str]:
    folder, target = world / name, world / made.target
    drafter = open_drafter(folder, made.taps, target)
    replay = replayed(drafter, held_out)
    speculative = decoded(target, folder, made.taps, prompts)
    first, spec = replay["steps"][0], speculative["speculative"]
    yield f"\n### {name}\n"
    yield (
        f"Taps {made.taps}, trained by {made.trainer}, {', '.join(made.flags) or 'no flags'}, "
        f"{sum(p.numel() for p in drafter.parameters()):,} parameters. Step 1: "
        f"{first['top1']:.3f} ({first['low']:.3f} to {first['high']:.3f}, n {first['n']:,}); "
        f"steps: {' '.join(format(s['top1'], '.3f') for s in replay['steps'])}. Real decode: "
        f"{spec['acceptance_length']:.2f} ({spec['interval'][0]:.2f} to {spec['interval'][1]:.2f}) "
        f"tokens per pass, {spec['emitted']} tokens in {spec['rounds']} passes, same text "
        f"{speculative['same_text']}/{speculative['n']}.\n"
    )
    found = slots(drafter, held_out)
    yield f"| step 1, {found['n']} tokens | accuracy |\n|---|---|"
    yield f"| as wired | {found['step_1']:.3f} |"
    for slot, tap, cost in found["zeroed"]:
        yield f"| slot {slot} (h[{tap}]) zeroed | {_told(cost)} |"
    for (slot, tap, other), cost in found["moved"].items():
        yield f"| slot {slot}: h[{other}] for h[{tap}] | {_told(cost)} |"
    if found["all one late"] is not None:
        yield f"| every slot one late | {_told(found['all one late'])} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    torch.set_num_threads(1)
    for line in tables(parser.parse_args().work):
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
