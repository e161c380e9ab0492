"""`draftprobe inspect`: what a drafter's files say, and what each engine will make of them."""

from pathlib import Path
from typing import Annotated

import typer

FINDINGS, UNDECIDED = 1, 3


def inspect(
    folder: Annotated[Path, typer.Argument(help="The drafter's folder.")],
    target: Annotated[
        Path | None, typer.Option(help="The target's config.json, or its folder.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Judge what this engine does: NAME or NAME@VERSION; may be repeated."),
    ] = None,
    wanted: Annotated[
        str | None, typer.Option(help="Boundaries to be fed, such as 0,3,31: what to write.")
    ] = None,
    histogram: Annotated[
        Path | None, typer.Option(help="Token counts: JSON {id: count} or a list, or a .npy.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every weight: NaN, overflow, own tables.")
    ] = False,
    trainer: Annotated[
        str | None, typer.Option(help="Who trained it, such as specforge@since-879.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also every effect, where each rule is from, and why.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell from files alone what a drafter is, how engines read it, and what is wrong.

    Without --engine every engine is shown and none accused: findings are what is wrong with the
    folder whoever serves it. Exit code 1: a finding; 3: an engine could not be judged.
    """
    from draftprobe.cli.progress import counted
    from draftprobe.diagnose.checks.inspection import Asked
    from draftprobe.diagnose.checks.inspection import inspect as run
    from draftprobe.drafter.wiring import parse_taps

    taps = None if wanted is None else parse_taps(wanted)
    with counted("inspect", "MiB or rows") as progress:
        found = run(
            Asked(folder, target, tuple(engine or ()), taps, histogram, deep, trainer, progress)
        )
    if as_json:
        import json

        print(json.dumps(found.to_json(), indent=2))
    else:
        from draftprobe.report.inspection import render

        print(*render(found, verbose), sep="\n")
    raise typer.Exit(FINDINGS if found.findings else UNDECIDED if found.undecided else 0)
