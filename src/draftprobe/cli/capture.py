"""`draftprobe capture`: a target and texts in, a States file out."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from draftprobe.errors import InputError


def capture(
    target: Annotated[str, typer.Argument(help="A transformers folder or hub id.")],
    out: Annotated[Path, typer.Option(help="The states file to write.")],
    text: Annotated[Path | None, typer.Option(help="Texts: one per line, or .jsonl.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="Chat prompts: lines, or .jsonl.")] = None,
    tokens: Annotated[Path | None, typer.Option(help="JSON lines of input_ids, loss_mask.")] = None,
    boundaries: Annotated[str, typer.Option(help="Such as 0,3,16,N; or all.")] = "all",
    greedy: Annotated[
        int, typer.Option(min=0, help="Let the target continue by this many tokens.")
    ] = 0,
    dtype: Annotated[str, typer.Option(help="Of the stored states.")] = "float32",
    compute: Annotated[str, typer.Option(help="Dtype the target runs in.")] = "float32",
    batch: Annotated[int, typer.Option(min=1, help="Sequences per pass.")] = 8,
    limit: Annotated[int, typer.Option(min=2, help="Longest input, in tokens.")] = 2048,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run model code that the target brings.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Record a target's hidden states at chosen boundaries; an interrupted run resumes."""
    given = [path for path in (text, prompts, tokens) if path is not None]
    if len(given) != 1:
        raise InputError(f"expected exactly one of --text, --prompts, --tokens, found {len(given)}")
    from draftprobe.cli.progress import check_device
    from draftprobe.drafter.wiring import parse_taps
    from draftprobe.states.capture import DTYPES, Plan
    from draftprobe.states.capture import capture as record
    from draftprobe.states.prompts import read_prompts, read_texts, read_tokens
    from draftprobe.states.record import open_states
    from draftprobe.states.target import load_target

    check_device(device)
    if compute not in DTYPES:
        raise InputError(f"--compute: expected one of {', '.join(DTYPES)}, found {compute!r}")
    taps = None if boundaries == "all" else parse_taps(boundaries)
    if out.exists():
        raise InputError(f"{out}: exists already and is not overwritten; choose another --out")
    loaded = load_target(
        target, dtype=DTYPES[compute], device=device, trust_remote_code=trust_remote_code
    )
    template = None
    if prompts is not None:
        items, template = read_prompts(prompts, loaded.tokenizer, limit)
    elif text is not None:
        items = read_texts(text, loaded.tokenizer, limit)
    else:
        items = read_tokens(given[0], limit)
    plan = Plan(
        boundaries=taps or loaded.structure.boundaries(),
        dtype=dtype,
        batch=batch,
        greedy=greedy,
        template=template,
    )
    from draftprobe.cli.progress import counted

    with counted("capture", "batches") as progress:
        record(loaded, items, plan, out, progress)
    states = open_states(out)
    counted_tokens = int(states.mask.sum())
    if not counted_tokens:
        print(
            "capture: no token counts, so nothing can be replayed on this file: the prompts hold "
            "no answers; give --greedy N to let the target answer",
            file=sys.stderr,
        )
    if as_json:
        import json

        print(
            json.dumps(
                {
                    "out": str(out),
                    "sequences": len(states),
                    "tokens": sum(states.lengths),
                    "counted": counted_tokens,
                    "boundaries": list(states.boundaries),
                    "bytes": out.stat().st_size,
                }
            )
        )
        return
    print(
        f"{out}: {len(states)} sequences, {sum(states.lengths)} tokens ({counted_tokens} count), "
        f"{len(states.boundaries)} boundaries, {out.stat().st_size / 1e6:.1f} MB"
    )
