"""`draftprobe convert`: a drafter in another training stack's layout, its wiring kept."""

from pathlib import Path
from typing import Annotated

import typer


def convert(
    draft: Annotated[Path, typer.Argument(help="The drafter's folder.")],
    to: Annotated[
        str,
        typer.Option(
            help="specforge, speculators, eagle, modelopt or torchspec. For SGLang take specforge, "
            "for vLLM speculators."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; it must not exist yet.")],
    target: Annotated[
        Path | None,
        typer.Option(
            help="The target's config.json, or its folder: then its weights tell whether the "
            "drafter's embedding table may be left out."
        ),
    ] = None,
    taps: Annotated[
        str | None, typer.Option(help="Boundaries in slot order, such as 0,3,16.")
    ] = None,
    read_ids: Annotated[
        str | None,
        typer.Option(help="How the config's layer ids are read: output or boundary."),
    ] = None,
    trainer: Annotated[
        str | None, typer.Option(help="Whose folder it is, where that is not recognised.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="The target's name, for speculators' config.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a drafter in another stack's layout; refuse what that layout cannot hold."""
    from draftprobe.dialects.convert import convert as write
    from draftprobe.dialects.meant import Wish
    from draftprobe.drafter.wiring import parse_taps, taps_name, to_json

    wanted = parse_taps(taps) if taps is not None else None
    done = write(draft, to, out, Wish(wanted, read_ids, trainer, target, verifier))
    if as_json:
        import json
        from dataclasses import asdict

        told = asdict(done) | {"out": str(done.out), "wiring": to_json(done.wiring)}
        print(json.dumps(told))
        return
    print(f"written: {done.out}, {done.tensors} tensors in the layout of {done.to}")
    print(f"read as: {done.source.name} ({done.source.why})")
    ids = f", as {done.level} ids {list(done.ids)}" if done.ids else ""
    print(f"taps:    {taps_name(done.wiring.taps)}{ids}")
    for what, names in (("made", done.made), ("left out", done.left)):
        if names:
            print(f"{what}: {', '.join(names)}, which d2t gives")
    if done.dropped:
        print(f"config keys left out: {', '.join(done.dropped)}")
    for note in done.notes:
        print(f"note: {note}")
    for served in done.served:
        print(f"{'ok' if served.as_meant else 'BUT':3}  {served.engine} {served.told}")
    if not done.served:
        print("give --target to see what each engine does with it (or `draftprobe inspect`)")
