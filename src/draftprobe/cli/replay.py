"""`draftprobe replay`: the standalone test of a drafter on recorded states."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftprobe.errors import InputError

if TYPE_CHECKING:
    from draftprobe.drafter.checkpoint import Checkpoint
    from draftprobe.drafter.wiring import Wiring
    from draftprobe.measure.interval import Estimate
    from draftprobe.measure.summary import Summary
    from draftprobe.states.record import States


def replay(
    draft: Annotated[Path, typer.Argument(help="The drafter's folder.")],
    states: Annotated[Path, typer.Option(help="A states file of its target.")],
    target: Annotated[
        Path | None, typer.Option(help="The target's folder, for its embedding table.")
    ] = None,
    taps: Annotated[
        str | None,
        typer.Option(
            help="Such as 0,3,16; else by golden.safetensors, else by ids that are certain."
        ),
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option(help="Who trained it, where the folder does not tell; with --taps."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Draft steps.")] = 5,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Counted tokens, spread over all sequences.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Test a drafter alone on recorded states: accuracy per step, expected acceptance length."""
    from draftprobe.cli.progress import check_device, counted
    from draftprobe.dialects.trainers import wiring_of
    from draftprobe.drafter.checkpoint import open_checkpoint
    from draftprobe.drafter.model import load_drafter
    from draftprobe.drafter.wiring import parse_taps, taps_name
    from draftprobe.measure.replay import observe
    from draftprobe.measure.summary import summarise
    from draftprobe.states.record import open_states

    check_device(device)
    checkpoint = open_checkpoint(draft)
    recorded = open_states(states)
    if taps is None:
        wiring, how = _trained(checkpoint, trainer, recorded.provenance.layers)
    else:
        wiring, how = wiring_of(checkpoint, parse_taps(taps), trainer), "--taps"
    recorded.require(wiring.taps)
    tables = _tables(wiring, recorded, target)
    drafter = load_drafter(checkpoint, wiring, *tables).to(device)
    with counted("replay", "sequences") as progress:
        observations = observe(drafter, recorded, steps, limit, progress)
    summary = summarise(observations, taps_name(wiring.taps))
    if as_json:
        import json

        print(json.dumps(summary.to_json() | {"taps_from": how}))
        return
    print(*_lines(summary, how, bool(recorded.mask.all())), sep="\n")


def _trained(checkpoint: Checkpoint, trainer: str | None, layers: int) -> tuple[Wiring, str]:
    """The wiring as trained and by what it is known: the golden file, else certain ids."""
    from draftprobe.dialects.meant import GOLDEN, against_golden, certain_taps
    from draftprobe.dialects.trainers import wiring_of
    from draftprobe.drafter.golden import read
    from draftprobe.drafter.layout import layout_of

    folder = checkpoint.folder
    if (folder / GOLDEN).is_file():
        wiring = read(folder).wiring
        for told in against_golden(checkpoint, layout_of(checkpoint), wiring, None):
            print(f"replay: {folder}: {told}", file=sys.stderr)
        return wiring, GOLDEN
    taps, why = certain_taps(checkpoint, layers)
    if taps is None:
        raise InputError(
            f"{folder}: which boundaries it was trained on is not known: {why}; give --taps, such "
            f"as 2,15,27. `draftprobe inspect {folder}` shows how each list may be read"
        )
    return wiring_of(checkpoint, taps, trainer), why


def _tables(wiring: Wiring, states: States, target: Path | None) -> tuple[Any, Any]:
    """The target's embedding and head, as far as the wiring names them; else a stand-in, None."""
    import torch

    from draftprobe.states.target import check_belongs, embedding_table, head_table

    if wiring.embedding == "own" and wiring.head != "target":
        return torch.empty(0), None
    folder = target or Path(states.provenance.model)
    if not folder.is_dir():
        raise InputError(
            f"{folder}: expected the target's folder, whose embedding table or head this drafter "
            "reads, found none; give --target"
        )
    check_belongs(folder, states)
    table = embedding_table(folder) if wiring.embedding == "target" else torch.empty(0)
    return table, head_table(folder) if wiring.head == "target" else None


def _lines(summary: Summary, how: str, every: bool) -> Iterator[str]:
    from draftprobe.report.dump import PROMPTS_TOO

    steps = len(summary.steps)
    yield (
        f"replayed {summary.label}: {summary.sequences} sequences, {summary.tokens:,} tokens, "
        f"{steps} steps, {summary.source} text"
    )
    rows = [("step", "top-1", "95 %", "given before", "joint", "nll", "n")]
    for s in summary.steps:
        figures = (_number(e) for e in (s.top1, s.conditional, s.joint, s.nll))
        top1, conditional, joint, nll = figures
        rows.append((str(s.step), top1, _spread(s.top1), conditional, joint, nll, f"{s.top1.n:,}"))
    yield from _aligned(rows)
    yield (
        f"coverage {_number(summary.coverage)} ({_spread(summary.coverage)}): the draft vocabulary "
        "holds that share of the tokens, the ceiling of step 1"
    )
    yield _acceptance(summary)
    if summary.tokens and summary.sequences < 2:
        yield "one sequence has no interval; replay at least 2, better 16 or more"
    rows = [("slots", *(f"top-1 {s.step}" for s in summary.steps), "95 % of 1", "n")]
    for bucket in summary.buckets:
        first = bucket.top1[0]
        figures = (_number(estimate) for estimate in bucket.top1)
        rows.append((f"{bucket.first}-{bucket.last}", *figures, _spread(first), f"{first.n:,}"))
    yield from _aligned(rows)
    yield f"taps by {how}" + (f"; {PROMPTS_TOO}" if every else "")


def _acceptance(summary: Summary) -> str:
    told = (
        f"expected acceptance length {_number(summary.acceptance)} ({_spread(summary.acceptance)})"
    )
    if summary.walk is None:
        return (
            f"{told}: estimated from a sample of tokens, some percent high; no --limit for a walk"
        )
    walk = summary.walk
    sizes = f"{sum(walk.emitted):,} tokens in {sum(walk.rounds):,} rounds of {walk.steps} drafts"
    if summary.exact:
        return f"{told}: {sizes}, on the target's own greedy text"
    return f"{told}: {sizes}; an estimate, since the text is not the target's own greedy one"


def _number(estimate: Estimate) -> str:
    return "-" if estimate.value is None else f"{estimate.value:.3f}"


def _spread(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"{estimate.low:.3f}-{estimate.high:.3f}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
