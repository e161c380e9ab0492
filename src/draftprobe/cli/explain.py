"""`draftprobe explain`: the page of a finding."""

from typing import Annotated

import typer


def explain(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="A finding's id, such as W103.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what a finding means: symptom, mechanism, how it is established, mend, reports."""
    from draftprobe.report.findings import read_page

    page = read_page(identifier)
    if as_json:
        import json
        from dataclasses import asdict

        print(json.dumps(asdict(page), indent=2))
    else:
        print(page.text, end="")
