"""`draftprobe selftest`: a drafter's own wiring test, from the golden file it carries."""

from pathlib import Path
from typing import Annotated

import typer


def selftest(
    draft: Annotated[Path, typer.Argument(help="A drafter folder with golden.safetensors.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay a drafter's golden file: do its weights still draft what they drafted in training?"""
    from draftprobe.dialects.trainers import wiring_of
    from draftprobe.drafter.checkpoint import open_checkpoint
    from draftprobe.drafter.golden import drafts_of, read
    from draftprobe.drafter.model import load_drafter
    from draftprobe.drafter.wiring import difference, taps_name

    checkpoint, golden = open_checkpoint(draft), read(draft)
    drafter = load_drafter(checkpoint, golden.wiring, golden.table())
    same = drafts_of(drafter, golden.tokens, golden.taps, len(golden.drafts)) == golden.drafts
    wires = difference(wiring_of(checkpoint, golden.wiring.taps), golden.wiring)
    steps = [{"step": i + 1, "same": int(s.sum()), "n": s.numel()} for i, s in enumerate(same)]
    good = bool(same.all()) and not wires
    if as_json:
        import json

        told = {name: [str(config), str(trained)] for name, (config, trained) in wires.items()}
        facts = {"same": good, "taps": list(golden.wiring.taps), "steps": steps, "wires": told}
        print(json.dumps(facts))
    else:
        drafts = "  ".join(f"step {s['step']} {s['same']}/{s['n']}" for s in steps)
        print(f"{'same' if good else 'DIFFERENT'}: trained on {taps_name(golden.wiring.taps)}")
        print(f"drafts as in training: {drafts}")
        for name, (config, trained) in wires.items():
            print(f"{name}: the config now says {config}, trained with {trained}")
    raise typer.Exit(0 if good else 1)
