"""`draftprobe train`: states in, a drafter folder out."""

from pathlib import Path
from typing import Annotated

import typer

from draftprobe.errors import InputError


def train(
    target: Annotated[Path, typer.Option(help="The target's transformers folder.")],
    states: Annotated[list[Path], typer.Option(help="States to train on; may be given often.")],
    taps: Annotated[str, typer.Option(help="Boundaries in slot order, such as 0,3,16.")],
    out: Annotated[Path, typer.Option(help="The drafter folder to write.")],
    held_out: Annotated[Path | None, typer.Option(help="States to measure on as it goes.")] = None,
    draft_vocabulary: Annotated[
        int, typer.Option(min=1, help="Tokens the drafter can say.")
    ] = 4864,
    intermediate: Annotated[
        int | None, typer.Option(min=1, help="MLP width; default: target's.")
    ] = None,
    updates: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 2000,
    batch_tokens: Annotated[int, typer.Option(min=16, help="Slots per update.")] = 800,
    steps: Annotated[int, typer.Option(min=1, help="Draft steps trained.")] = 3,
    steps_from: Annotated[float, typer.Option(help="Share of updates on one step only.")] = 0.5,
    decay: Annotated[float, typer.Option(help="Weight of step i is this ** (i - 1).")] = 0.8,
    rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-3,
    warm_up: Annotated[int, typer.Option(min=1, help="Updates of linear warm-up.")] = 40,
    clip: Annotated[float, typer.Option(help="Largest gradient norm.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of order and initial weights.")] = 0,
    measure_every: Annotated[int, typer.Option(min=1, help="Updates between figures.")] = 250,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Matrix products in bfloat16 (autocast).")
    ] = False,
    snapshots: Annotated[
        Path | None, typer.Option(help="A folder for fc's weights at each measurement.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Train a small EAGLE-3 drafter on recorded states; an interrupted run resumes."""
    import json

    import torch

    from draftprobe.drafter.wiring import parse_taps
    from draftprobe.states.record import open_states
    from draftprobe.train.held_out import measurer
    from draftprobe.train.loop import Recipe
    from draftprobe.train.run import Sizes, run

    if not 0 <= steps_from <= 1:
        raise InputError(f"--steps-from: expected a share in 0..1, found {steps_from}")
    for name, number in (("decay", decay), ("rate", rate), ("clip", clip)):
        if not 0 < number < float("inf"):
            raise InputError(f"--{name}: expected a positive number, found {number}")
    if snapshots is not None and not snapshots.is_dir():
        raise InputError(f"{snapshots}: expected a folder for snapshots, found none; create it")
    files = [open_states(path) for path in states]
    wanted = parse_taps(taps)
    for file in files:
        file.require((*wanted, "N"))

    def report(fact: dict[str, object]) -> None:
        told = (
            json.dumps(fact) if as_json else "  ".join(f"{k} {_told(v)}" for k, v in fact.items())
        )
        print(told, flush=True)

    run(
        target,
        files,
        wanted,
        Sizes(draft_vocabulary, intermediate),
        Recipe(
            updates=updates,
            batch_tokens=batch_tokens,
            steps=steps,
            steps_from=steps_from,
            decay=decay,
            rate=rate,
            warm_up=warm_up,
            clip=clip,
            seed=seed,
        ),
        out,
        report,
        measurer(open_states(held_out), wanted) if held_out else None,
        measure_every,
        torch.bfloat16 if bfloat16 else None,
        snapshots,
    )
    report({"out": str(out)})


def _told(value: object) -> str:
    if isinstance(value, list):
        return "/".join(_told(entry) for entry in value)
    return f"{value:.4f}" if isinstance(value, float) else str(value)
