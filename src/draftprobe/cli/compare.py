"""`draftprobe compare`: what a server fed its drafter, against states captured from the target."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

FINDINGS, UNDECIDED = 1, 3
CODES = {"same": 0, "findings": FINDINGS, "undecided": UNDECIDED}


def compare(
    served: Annotated[Path, typer.Argument(help="The dump of served states: a file or folder.")],
    states: Annotated[Path, typer.Option(help="A states file of the same tokens.")],
    wanted: Annotated[
        str | None, typer.Option(help="Boundaries that should be fed, such as 0,3,16.")
    ] = None,
    trained: Annotated[
        Path | None, typer.Option(help="The dump that the drafter was trained on.")
    ] = None,
    noise: Annotated[
        Path | None,
        typer.Option(help="The same tokens captured in another dtype: measures the noise floor."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Dtype that the states should be precise to.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows on which slots are identified.")] = 1024,
    format: Annotated[
        str | None, typer.Option(help="Of the dump, such as vllm; else by content.")
    ] = None,
    states_key: Annotated[str, typer.Option(help="Entries with states: a, or a,b,c.")] = "",
    tokens_key: Annotated[str | None, typer.Option(help="The entry with token ids.")] = None,
    tokens: Annotated[Path | None, typer.Option(help="A file with the token ids.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say exactly which boundary each served slot is, and where the first wire differs.

    Without --wanted and --trained each slot is named, and what was done to it.
    """
    from draftprobe.cli.progress import counted
    from draftprobe.diagnose.compare.run import Asked, open_served
    from draftprobe.diagnose.compare.run import compare as run
    from draftprobe.drafter.wiring import parse_taps
    from draftprobe.states.dumps import Options
    from draftprobe.states.record import open_states

    taps = None if wanted is None else parse_taps(wanted)
    reference = open_states(states)
    twin = None if noise is None else open_states(noise)
    keys = tuple(key for key in states_key.split(",") if key)
    options = Options(format, keys, tokens_key, None, tokens)
    with counted("compare", "files") as progress:
        dump = open_served(served, options, reference, progress)
        before = None
        if trained is not None:
            before = open_served(trained, Options(), reference, progress)
    with counted("compare", "sequences") as progress:
        found = run(Asked(dump, reference, taps, before, twin, precision, limit), progress)
    found.provenance["command"] = ["draftprobe", *sys.argv[1:]]
    if as_json:
        import json

        print(json.dumps(found.to_json(), indent=2))
    else:
        from draftprobe.report.comparison import render

        print(*render(found), sep="\n")
    raise typer.Exit(CODES[found.outcome])
