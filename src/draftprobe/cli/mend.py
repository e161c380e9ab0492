"""`draftprobe mend`: the config that makes an engine feed what the weights want."""

from pathlib import Path
from typing import Annotated

import typer

from draftprobe.errors import InputError


def mend(
    verdict: Annotated[Path, typer.Argument(help="A verdict.json, or the run folder with it.")],
    engine: Annotated[
        str, typer.Option(help="Whose reading: sglang or vllm, NAME or NAME@VERSION.")
    ],
    write: Annotated[
        bool, typer.Option("--write", help="Write config.ENGINE.json beside the old config.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the change to the drafter's config that mends its taps for one engine."""
    from draftprobe.diagnose.checks.mends import refusal
    from draftprobe.diagnose.mend import (
        check_unchanged,
        mend,
        read_config,
        read_wanted,
        write_beside,
    )
    from draftprobe.dialects.engines import parse_engine

    reader, wanted = parse_engine(engine), read_wanted(verdict)
    text = read_config(wanted.drafter)
    check_unchanged(verdict, wanted, text)
    mended = mend(text, wanted, reader)
    change, written = mended.mend, None
    refused = refusal(wanted.drafter, reader, wanted.family, wanted.layers)
    if write and mended.text is None:
        raise InputError(f"--write: no config to write: {change.note}")
    if write and mended.text is not None and change.diff:
        written = write_beside(wanted.drafter, mended.text, reader)
    if as_json:
        import json
        from dataclasses import asdict

        told = {"mend": asdict(change), "refused": refused or None}
        print(json.dumps(told | {"written": written and str(written)}))
        return
    if refused:
        print(f"REFUSES  {reader} does not load this folder: {refused}")
        print(f"what to do: draftprobe inspect {wanted.drafter} --target T --engine {reader}")
    if change.diff:
        print(change.diff, end="")
        print(f"{'safe' if change.safe else 'UNSAFE'} for {reader}: {change.note}")
    else:
        print(f"{reader}: {change.note}")
    if written:
        unproved = "" if change.safe else "UNSAFE, not proved to help; "
        print(f"written: {written} ({unproved}nothing else in {wanted.drafter} was changed)")
        print(f"{engine} reads config.json: put the new one in its place to use it")
