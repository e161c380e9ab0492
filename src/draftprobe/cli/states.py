"""`draftprobe states`: what a file or folder of hidden states is, and which boundaries it holds.

Prints, and writes the same as a States file on demand.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftprobe.errors import InputError

if TYPE_CHECKING:
    from draftprobe.drafter.wiring import Tap
    from draftprobe.states.dumps.identify import Match
    from draftprobe.states.dumps.record import Dump
    from draftprobe.states.dumps.write import Facts

MISMATCH = 1


def states(
    dump: Annotated[Path, typer.Argument(help="A file or folder of hidden states.")],
    format: Annotated[
        str | None, typer.Option(help="Such as specforge or vllm; else by content.")
    ] = None,
    boundaries: Annotated[
        str | None, typer.Option(help="Of the slots in order, such as 0,3,31,N.")
    ] = None,
    output_ids: Annotated[
        str | None, typer.Option(help="The same as layer outputs: id k is one lower.")
    ] = None,
    draft: Annotated[
        Path | None, typer.Option(help="A drafter's folder: the slots are what --engine feeds it.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Such as vllm or sglang@0.5.12.")] = None,
    target: Annotated[Path | None, typer.Option(help="Its folder or config.json.")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="A states file of the same tokens, to compare with.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The states file to write.")] = None,
    mask: Annotated[
        str,
        typer.Option(
            help="Tokens that count: marked (in the dump, else in the reference), trained (as its "
            "trainer did) or all."
        ),
    ] = "marked",
    source: Annotated[
        str | None, typer.Option(help="Of the text: greedy, sampled or dataset.")
    ] = None,
    states_key: Annotated[str, typer.Option(help="Entries with states: a, or a,b,c.")] = "",
    tokens_key: Annotated[str | None, typer.Option(help="The entry with token ids.")] = None,
    mask_key: Annotated[str | None, typer.Option(help="The entry with the loss mask.")] = None,
    tokens: Annotated[Path | None, typer.Option(help="A file with the token ids.")] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="The arrow dataset beside hs_*.safetensors.")
    ] = None,
    tokens_out: Annotated[
        Path | None,
        typer.Option(help="Write the token ids, for `draftprobe capture --tokens`."),
    ] = None,
    compute: Annotated[
        str | None, typer.Option(help="Dtype the target ran in, if you know it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a hidden-state dump is and which boundaries it holds; write it as a states file."""
    from draftprobe.cli.progress import counted
    from draftprobe.report.dump import PROMPTS_TOO, missing, next_step, render
    from draftprobe.states.dumps import Options, open_dump
    from draftprobe.states.dumps.identify import identify, name_by
    from draftprobe.states.dumps.record import GIVEN, GIVEN_IDS, name_slots, settle
    from draftprobe.states.dumps.tokens import masked_by, write_tokens
    from draftprobe.states.dumps.write import facts_from, facts_of
    from draftprobe.states.record import open_states

    repeated = {
        "format": format, "boundaries": boundaries, "output-ids": output_ids, "draft": draft,
        "engine": engine, "target": target, "reference": reference, "source": source,
        "states-key": states_key or None, "tokens-key": tokens_key, "mask-key": mask_key,
        "tokens": tokens, "dataset": dataset, "compute": compute,
    }  # fmt: skip
    given = _given(boundaries, output_ids)
    served = _served(draft, engine, target, given)
    known = None if reference is None else open_states(reference)
    facts = facts_of(target) if target else None if known is None else facts_from(known)
    keys = tuple(key for key in states_key.split(",") if key)
    hidden = None if facts is None else facts.hidden
    options = Options(format, keys, tokens_key, mask_key, tokens, dataset, hidden)
    with counted("states", "files") as progress:
        found = open_dump(dump, options, progress)
    found = name_slots(found, given, GIVEN if boundaries else GIVEN_IDS) if given else found
    found = name_slots(found, *served) if served else found
    found = settle(found, facts.layers) if facts else found
    matches = () if known is None else identify(found, known)
    found = name_by(found, matches) if matches else found
    if known is not None and mask == "marked" and found.masked < len(found):
        found = masked_by(found, known)
    told = _described(found, matches, None if facts is None else facts.layers)
    told["mismatch"] = None if served is None else _mismatch(found, *served)
    told["missing"] = missing(told, facts is not None, mask)
    if tokens_out is not None:
        write_tokens(found, tokens_out)
        told["tokens_out"] = str(tokens_out)
    if out is not None:
        written = _write(found, out, facts, Wanted(mask, source, compute), told["missing"])
        told |= {"out": str(out), "written": written}
        told["notes"] += [PROMPTS_TOO] if mask == "all" else []
    told["next"] = next_step(told, repeated, mask)
    print(json.dumps(told)) if as_json else print(*render(told), sep="\n")
    if told["mismatch"]:
        raise typer.Exit(MISMATCH)


def _mismatch(dump: Dump, taps: tuple[Tap, ...], how: str) -> dict[str, Any] | None:
    """What the slots hold by comparison, where the engine would feed others; None where it agrees,
    or where no slot is known to hold something else.
    """
    from draftprobe.drafter.wiring import taps_name

    held = [slot.boundary for slot in dump.slots[: len(taps)]]
    differ = [one for one, tap in zip(held, taps, strict=False) if one not in (None, tap)]
    if not differ:
        return None
    names = ", ".join(slot.name for slot in dump.slots[: len(taps)])
    text = f"MISMATCH: the dump holds {names}; {taps_name(taps)} would be fed by {how}"
    return {"held": held, "served": list(taps), "how": how, "text": text}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of the states file: which tokens count, whose text it is, the target's dtype as it ran."""

    mask: str
    source: str | None
    compute: str | None


def _write(
    dump: Dump, out: Path, facts: Facts | None, wanted: Wanted, missing: list[str]
) -> list[Tap]:
    from draftprobe.cli.progress import counted
    from draftprobe.states.dumps.write import COUNTS, write_states
    from draftprobe.states.record import open_states

    if wanted.mask not in COUNTS:
        raise InputError(f"--mask: expected one of {', '.join(COUNTS)}, found {wanted.mask!r}")
    if missing or facts is None:
        raise InputError(f"{out}: not written. Missing are " + "; and ".join(missing))
    with counted("states", "sequences") as progress:
        written = write_states(
            dump, out, facts, wanted.mask, wanted.source, progress, wanted.compute
        )
    if not bool(open_states(out).mask.any()):
        print(
            "states: no token counts, so nothing can be replayed on this file; choose --mask all",
            file=sys.stderr,
        )
    return list(written)


def _given(boundaries: str | None, output_ids: str | None) -> tuple[Any, ...] | None:
    from draftprobe.drafter.wiring import parse_taps

    if boundaries is not None and output_ids is not None:
        raise InputError("--boundaries and --output-ids say the same in two ways; give one")
    if output_ids is not None:
        if "N" in output_ids:
            raise InputError(f"--output-ids: expected layer numbers, found {output_ids!r}")
        ids = [int(entry) if entry.strip() != "-1" else -1 for entry in _numbers(output_ids)]
        return tuple(number + 1 for number in ids)
    return None if boundaries is None else parse_taps(boundaries)


def _served(
    draft: Path | None, engine: str | None, target: Path | None, given: tuple[Any, ...] | None
) -> tuple[tuple[Tap, ...], str] | None:
    """The boundaries that an engine feeds a drafter, and how that is known."""
    if draft is None and engine is None:
        return None
    if draft is None or engine is None or target is None or given is not None:
        raise InputError(
            "--draft, --engine and --target together say which boundaries the slots are; give all "
            "three, and neither --boundaries nor --output-ids"
        )
    from draftprobe.dialects.engines import parse_engine
    from draftprobe.dialects.families import family_of
    from draftprobe.drafter.checkpoint import read_json
    from draftprobe.states.dumps.write import facts_of

    path = target / "config.json" if target.is_dir() else target
    where, reader = draft / "config.json", parse_engine(engine)
    family = family_of(read_json(path), path)
    taps = reader.delivered(read_json(where), family, facts_of(target).layers, where)
    return taps, f"{reader}'s reading of {where}"


def _numbers(text: str) -> list[str]:
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entry == "-1" or (entry.isdecimal() and len(entry) < 7) for entry in entries):
        raise InputError(f"--output-ids: expected layer numbers such as -1,2,30, found {text!r}")
    return entries


def _described(dump: Dump, matches: tuple[Match, ...], layers: int | None) -> dict[str, Any]:
    from draftprobe.states.dumps import own
    from draftprobe.states.dumps.record import in_words

    slots: list[dict[str, Any]] = [
        {
            "slot": number,
            "role": slot.role,
            "boundary": slot.boundary,
            "name": slot.name,
            "how": slot.how,
        }
        for number, slot in enumerate(dump.slots)
    ]
    for entry, match in zip(slots, matches, strict=False):
        entry["compared"] = {
            "tokens": match.tokens,
            "floor": match.floor,
            "errors": [
                {
                    "boundary": e.boundary,
                    "median": _finite(e.median),
                    "largest": _finite(e.largest),
                }
                for e in match.errors[:3]
            ],
        }
    return {
        "path": str(dump.path),
        "format": dump.format,
        "producer": dump.producer,
        "sequences": len(dump),
        "tokens": sum(dump.lengths),
        "hidden_size": dump.hidden,
        "dtype": dump.dtype,
        "slots": slots,
        "in_words": None if dump.format == own.NAME else in_words(dump, layers),
        "masked_sequences": dump.masked,
        "mask_lag": dump.layout.lag,
        "notes": list(dump.layout.notes),
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity: null, where a reference state is zero and the dump's is not."""
    return value if math.isfinite(value) else None
