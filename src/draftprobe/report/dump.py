"""What `draftprobe states` prints of a dump: its slots, what is missing, and the next command.

Takes the one dictionary that --json prints. Reads no file.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

PROMPTS_TOO = "every token counts, prompts too: accuracy is lower than on answers alone"


def render(told: dict[str, Any]) -> Iterator[str]:
    """One line after the other; the first says it if an engine would feed something else."""
    if told["mismatch"]:
        yield told["mismatch"]["text"]
    yield (
        f"{told['path']}: {told['format']} ({told['producer']}), {told['sequences']:,} sequences, "
        f"{told['tokens']:,} tokens, hidden size {told['hidden_size']}, {told['dtype']}"
    )
    for (role, _), alike in groupby(told["slots"], lambda slot: (slot["role"], slot["how"])):
        yield _slots(list(alike), role)
    if told["in_words"]:
        yield told["in_words"]
    yield f"mask: {told['masked_sequences']:,} of {told['sequences']:,} sequences have one"
    yield from (f"note: {note}" for note in told["notes"])
    if told.get("tokens_out"):
        yield f"wrote {told['tokens_out']}: token ids for `draftprobe capture TARGET --tokens`"
    if told.get("out"):
        yield f"wrote {told['out']}: {names([f'h[{tap}]' for tap in told['written']])}"
    for what in told["missing"]:
        yield f"missing: {what}"
    if told["next"]:
        yield f"next: {told['next']}"


def _slots(alike: Sequence[dict[str, Any]], role: str) -> str:
    first, last = alike[0]["slot"], alike[-1]["slot"]
    which = f"slots {first}-{last}" if last > first else f"slot {first}"
    held = names([slot["name"] for slot in alike])
    return f"{which}  {held}{' (last hidden)' if role == 'last' else ''}: {alike[0]['how']}"


def names(each: Sequence[str]) -> str:
    """``h[0]..h[30], h[N]``: boundaries that follow one another as one span; equal names once."""
    runs: list[list[str]] = []
    for name in each:
        if runs and (name == runs[-1][-1] or _number(runs[-1][-1]) == _number(name) - 1):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(_span(run) for run in runs)


def _span(run: Sequence[str]) -> str:
    if run[0] == run[-1]:
        return run[0]
    return f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(run)


def _number(name: str) -> float:
    """The k of ``h[k]``; no number for ``h[N]``, ``h[L]`` and ``unknown``."""
    digits = name.removeprefix("h[").removesuffix("]")
    return int(digits) if digits.isdecimal() else float("nan")


def missing(told: dict[str, Any], target: bool, mask: str) -> list[str]:
    """What a states file needs and nobody has given, a sentence each."""
    if told["format"] == "draftprobe":
        return []
    found: list[str] = []
    unknown = [s for s in told["slots"] if s["role"] == "aux" and s["boundary"] is None]
    if unknown:
        found.append(
            f"the boundaries of {len(unknown)} slots: --boundaries with all of them in the slots' "
            "order, or --draft, --engine and --target, or --reference with states of the same "
            "tokens: --tokens-out t.jsonl here, then `draftprobe capture TARGET --tokens t.jsonl "
            "--out r.safetensors`"
        )
    if not target:
        found.append("the target: --target with its folder or config.json")
    if mask != "all" and told["masked_sequences"] < told["sequences"]:
        found.append(
            "which tokens count, for there is no loss mask: --mask all (prompts too, so accuracy "
            "is lower than on answers), or the mask's entry (--mask-key) or dataset (--dataset)"
        )
    return found


def next_step(told: dict[str, Any], given: dict[str, Any], mask: str) -> str:
    """The command that goes on from here; in capitals stands what only a person knows.

    Args:
        told: the dictionary.
        given: options by name, as they were given; None for those that were not.
        mask: which tokens count.
    """
    if told.get("out"):
        return f"draftprobe replay DRAFTER --states {shlex.quote(told['out'])}"
    path = shlex.quote(told["path"])
    if told["format"] == "draftprobe":
        return f"draftprobe replay DRAFTER --states {path}"
    words = [f"draftprobe states {path}"]
    words += [
        f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None
    ]
    aux = [slot for slot in told["slots"] if slot["role"] == "aux"]
    if any(slot["boundary"] is None for slot in aux):
        words.append("--boundaries " + ",".join(f"K{number}" for number in range(len(aux))))
    if given["target"] is None and given["reference"] is None:
        words.append("--target TARGET")
    if mask != "all" and told["masked_sequences"] < told["sequences"]:
        words.append("--mask all")
    return " ".join([*words, "--out s.safetensors"])
