"""`draftprobe explain`: the page of a finding."""

from typing import Annotated

import typer


def explain(
    identifier: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A finding's id, such as W103; none: all are listed."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what a finding means: symptom, mechanism, how it is established, mend, reports."""
    from draftprobe.report.findings import ids, read_page

    if identifier is None:
        titles = {known: read_page(known).title for known in ids()}
        if as_json:
            import json

            print(json.dumps(titles, indent=2))
        else:
            print(*(f"{known}  {title}" for known, title in titles.items()), sep="\n")
        return
    page = read_page(identifier)
    if as_json:
        import json
        from dataclasses import asdict

        print(json.dumps(asdict(page), indent=2))
    else:
        print(page.text, end="")
