"""Checks that a drafter and a target belong together: hidden size, vocabulary, tokenizer.

Reads configs and tokenizer files. Two that fit here may still be of different trainings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftprobe.diagnose.checks.catalogue import finding
from draftprobe.diagnose.checks.subject import Subject
from draftprobe.diagnose.verdict import Finding
from draftprobe.drafter.checkpoint import read_json

TOKENIZER = "tokenizer.json"


def check(subject: Subject) -> Iterator[Finding]:
    """S101 and S102; nothing without a target."""
    target = subject.target
    if target is None:
        return
    hidden = subject.target_hidden
    if hidden is not None and hidden != target.hidden:
        key = "target_hidden_size" if subject.number("target_hidden_size") else "hidden_size"
        yield finding(
            "S101",
            f"{key} is {hidden} in the drafter's config, the target's hidden size is "
            f"{target.hidden}: its taps do not fit fc",
        )
    sizes = {"vocab_size": subject.number("vocab_size")}
    if subject.t2d is not None:
        sizes["t2d"] = len(subject.t2d)
    for name, size in sizes.items():
        if size is not None and size != target.vocabulary:
            yield finding(
                "S102",
                f"the drafter's {name} is of {size} tokens, the target's vocabulary of "
                f"{target.vocabulary}",
            )


def tokenizers(drafter: Path, target: Path | None) -> tuple[list[Finding], str | None]:
    """S103, and why it could not be checked (None: it was).

    The files' digests are compared first, and on a difference the token ids.

    Raises:
        InputError: a tokenizer file is not JSON.
    """
    if target is None or not target.is_dir():
        return [], "no target folder was given"
    for folder in (drafter, target):
        if not (folder / TOKENIZER).is_file():
            return [], f"{folder} holds no {TOKENIZER}"
    if _digest(drafter / TOKENIZER) == _digest(target / TOKENIZER):
        return [], None
    own, other = (_ids(folder / TOKENIZER) for folder in (drafter, target))
    if own == other:
        return [], None
    differing = sorted(
        token for token in own.keys() | other.keys() if own.get(token) != other.get(token)
    )
    first = differing[0]
    told = (
        f"{len(differing)} tokens have other ids in {drafter / TOKENIZER} ({len(own)} tokens) "
        f"than in {target / TOKENIZER} ({len(other)}): {first!r} is {own.get(first)} and "
        f"{other.get(first)}"
    )
    return [finding("S103", told)], None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _ids(path: Path) -> dict[str, int]:
    """Token -> id, added tokens counted; empty for a form that is not known."""
    data: dict[str, Any] = read_json(path)
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    found: dict[str, int] = {}
    if isinstance(vocabulary, dict):
        found |= vocabulary
    elif isinstance(vocabulary, list):  # unigram: pairs of token and score, in the order of ids
        found |= {str(pair[0]): index for index, pair in enumerate(vocabulary) if pair}
    for token in data.get("added_tokens") or []:
        if isinstance(token, dict) and isinstance(token.get("content"), str):
            found[token["content"]] = token.get("id", -1)
    return found
