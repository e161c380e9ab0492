"""`draftprobe demo`: the whole story on a real model, on two cores, in a few minutes."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer


def demo(
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Only make the demo's target; print its folder.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a drafter wired wrong: found, judged, and proved by a lossless decode."""
    import tempfile
    from pathlib import Path

    from draftprobe.demo.target import prepare as prepare_target

    folder = prepare_target(_say)
    if prepare:
        print(folder)
        return
    import json

    import torch

    from draftprobe.cli.progress import counted
    from draftprobe.demo import story
    from draftprobe.report.terminal import render

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="draftprobe-demo-") as name:
        with counted("capture", "batches") as progress:
            stage = story.set_stage(folder, Path(name), _say, progress)
        verdict = story.judge(stage, _say)
        if not as_json:
            print("\n".join(render(verdict)), flush=True)
        with counted("decode", "texts") as progress:
            proof = story.prove(stage, verdict, _say, progress)
    if as_json:
        print(json.dumps(verdict.to_json() | {"decode": proof.to_json()}, indent=2))
    else:
        print("\n".join(_proof_lines(proof.to_json())))
    raise typer.Exit(0 if story.as_told(verdict, proof) else 1)


def _say(stage: str) -> None:
    print(f"demo: {stage}", file=sys.stderr, flush=True)


def _proof_lines(decode: dict[str, Any]) -> Iterator[str]:
    yield f"proof    same text in all three modes on {decode['same']}/{decode['n']} prompts"
    for name in ("plain", "right", "wrong"):
        mode = decode[name]
        told = f"{mode['emitted']} tokens in {mode['rounds']} target passes"
        if name != "plain":
            rates = " ".join(f"{rate:.3f}" for rate in mode["rates"])
            told += (
                f": acceptance length {mode['acceptance_length']:.2f} ({mode['accepted']} of "
                f"{mode['drafted']} drafts accepted; per step {rates})"
            )
        yield f"         {name:6} {told}; {mode['tokens_per_s']:.1f} tok/s"
    yield "         tok/s are of one run on this machine, no benchmark"
