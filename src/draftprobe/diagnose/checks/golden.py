"""Whether a drafter's golden file and its config say the same wiring. Reads headers only.

The golden file holds the wiring as trained; servers read the config.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from draftprobe.diagnose.checks.catalogue import finding
from draftprobe.diagnose.checks.meaning import Meaning
from draftprobe.diagnose.checks.subject import Subject
from draftprobe.diagnose.verdict import Finding
from draftprobe.drafter.checkpoint import read_header
from draftprobe.drafter.wiring import Wiring, from_json, taps_name
from draftprobe.errors import InputError

NAME, KEY = "golden.safetensors", "draftprobe-golden"
"""The file, and the member of its metadata that holds the wiring."""

_BY_SERVER = ("taps", "rope", "embedding", "head", "initial", "position_limit", "window")
"""Wires that need the target, or are told elsewhere; taps are compared by themselves."""


def check(subject: Subject, meaning: Meaning) -> Iterator[Finding]:
    """S108; nothing without a golden file.

    Raises:
        InputError: the golden file is damaged.
    """
    path = subject.checkpoint.folder / NAME
    if not path.is_file():
        return
    golden, told = _wiring(path), []
    if meaning.taps is not None and not meaning.usual and meaning.taps != golden.taps:
        told.append(f"taps {taps_name(golden.taps)} there, {taps_name(meaning.taps)} here")
    if subject.trained is not None:
        for wire in Wiring.__dataclass_fields__:
            there, here = getattr(golden, wire), getattr(subject.trained, wire)
            if wire not in _BY_SERVER and there != here:
                told.append(f"{wire} {there} there, {here} here")
    if told:
        yield finding("S108", f"{NAME} against config.json: {'; '.join(told)}")


def _wiring(path: Path) -> Wiring:
    _, metadata = read_header(path)
    try:
        facts = json.loads(metadata[KEY])
        wiring = facts["wiring"]
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not a golden file of draftprobe: {error!r}") from None
    return from_json(wiring, str(path))
