"""`draftprobe decode`: the same prompts, decoded plainly and with a drafter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftprobe.errors import InputError

if TYPE_CHECKING:
    from draftprobe.measure.decode import Comparison


def decode(
    target: Annotated[str, typer.Argument(help="A transformers folder or hub id.")],
    draft: Annotated[Path, typer.Argument(help="The drafter's folder.")],
    prompts: Annotated[Path, typer.Option(help="Chat prompts: lines, or .jsonl.")],
    taps: Annotated[
        str | None, typer.Option(help="Such as 0,3,16; else as the drafter was trained.")
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option(help="Who trained it, where the folder does not tell; with --taps."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Drafts per target pass.")] = 5,
    max_new: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Of everything; medians are told.")] = 1,
    limit: Annotated[int, typer.Option(min=2, help="Longest prompt, in tokens.")] = 2048,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Dtype both models run in.")] = "float32",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run model code that the target brings.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Decode greedily, plainly and speculatively: same text, acceptance length, speed."""
    from draftprobe.cli.progress import check_device, counted
    from draftprobe.dialects.trainers import wiring_of
    from draftprobe.drafter.checkpoint import open_checkpoint
    from draftprobe.drafter.golden import read
    from draftprobe.drafter.model import load_drafter
    from draftprobe.drafter.wiring import parse_taps, taps_name
    from draftprobe.measure.decode import compare
    from draftprobe.states.capture import DTYPES
    from draftprobe.states.prompts import read_prompts
    from draftprobe.states.target import load_target

    check_device(device)
    if dtype not in DTYPES:
        raise InputError(f"--dtype: expected one of {', '.join(DTYPES)}, found {dtype!r}")
    checkpoint = open_checkpoint(draft)
    if taps is None:
        wiring = read(draft).wiring
    else:
        wiring = wiring_of(checkpoint, parse_taps(taps), trainer)
    loaded = load_target(
        target, dtype=DTYPES[dtype], device=device, trust_remote_code=trust_remote_code
    )
    items, _ = read_prompts(prompts, loaded.tokenizer, limit)
    model: Any = loaded.model
    table = model.get_input_embeddings().weight.detach()
    head = model.get_output_embeddings().weight.detach() if wiring.head == "target" else None
    drafter = load_drafter(checkpoint, wiring, table, head, DTYPES[dtype]).to(device)
    with counted("decode", "answers") as progress:
        compared = compare(
            loaded, [item.tokens for item in items], {"drafter": drafter}, steps, max_new,
            repeats, progress,
        )  # fmt: skip
    found = _found(compared) | {
        "taps": list(wiring.taps), "steps": steps, "max_new": max_new, "repeats": repeats,
        "device": device, "dtype": dtype,
    }  # fmt: skip
    if as_json:
        import json

        print(json.dumps(found))
        return
    print(
        f"taps {taps_name(wiring.taps)}; {steps} drafts per pass, at most {max_new} new tokens, "
        f"{dtype} on {device}"
    )
    print(*_lines(found), sep="\n")


def _found(compared: Comparison) -> dict[str, Any]:
    from dataclasses import asdict

    partings = compared.partings("drafter")
    n = len(compared.plain.texts)
    return {
        "plain": compared.plain.figures(),
        "speculative": compared.drafted["drafter"].figures(),
        "same_text": n - len(partings),
        "n": n,
        "partings": [asdict(parting) for parting in partings],
        "noise": compared.noise("drafter"),
    }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    plain, drafted = found["plain"], found["speculative"]
    yield f"same text          {found['same_text']}/{found['n']} prompts"
    for parting in found["partings"]:
        yield (
            f"  prompt {parting['prompt'] + 1} parts at new token {parting['position'] + 1}: its "
            f"top two logits are {_gap(parting['plain_gap'])} apart in plain decoding, "
            f"{_gap(parting['speculative_gap'])} in speculative; a wider pass moved such gaps by "
            f"up to {found['noise']:.1e} elsewhere"
        )
    if drafted["rounds"] == 0:
        yield "no target pass after the prefill: every answer ended with its first token"
        return
    low, high = drafted["interval"]
    spread = f"95 % {low:.3f}-{high:.3f}, " if low is not None else ""
    yield (
        f"acceptance length  {drafted['acceptance_length']:.3f} tokens per target pass ({spread}"
        f"{drafted['emitted']} tokens in {drafted['rounds']} passes)"
    )
    yield f"accepted           {drafted['accepted']} of {drafted['drafted']} drafts"
    yield "  by step (joint)  " + "  ".join(f"{rate:.3f}" for rate in drafted["rates"])
    slow, fast = plain["tokens_per_s"], drafted["tokens_per_s"]
    kind = "one run, no benchmark" if found["repeats"] == 1 else f"median of {found['repeats']}"
    yield (
        f"tokens per second  plain {slow:.1f}, speculative {fast:.1f}: {fast / slow:.2f} times "
        f"({kind})"
    )


def _gap(gap: float | None) -> str:
    return "none (ended)" if gap is None else f"{gap:.1e}"
