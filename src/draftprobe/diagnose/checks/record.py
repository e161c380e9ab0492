"""What is asked of an inspection, and what it found: plain records. Finds nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from draftprobe.diagnose.verdict import SCHEMA_VERSION, Finding, Mend, NotEvaluated
from draftprobe.drafter.wiring import Tap, Wiring, to_json

if TYPE_CHECKING:
    from draftprobe.diagnose.checks.answers import Answer
    from draftprobe.diagnose.checks.numbers import Alike
    from draftprobe.dialects.reading import Effect, Reading, Target


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user wants to know.

    Attributes:
        folder: the drafter's; target: a config file or a folder with one.
        engines: whose findings are wanted, ``NAME[@VERSION]``; empty: all are shown, none accused.
        wanted: boundaries to be fed.
        histogram: a file of token counts.
        deep: read every weight; progress: ``(done, total)`` in MiB or rows.
        trainer: who trained it, where the user knows better than the folder.
    """

    folder: Path
    target: Path | None = None
    engines: tuple[str, ...] = ()
    wanted: tuple[Tap, ...] | None = None
    histogram: Path | None = None
    deep: bool = False
    trainer: str | None = None
    progress: Callable[[int, int], None] = lambda done, total: None


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found.

    Attributes:
        answers: each engine's, worst first; accused: whether engines were asked for.
        facts, target, wiring: the drafter, its target, and how it was trained, as files say it.
        readings, effects: what engines do.
        findings: what is wrong: with the files, then with the engines asked for.
        wanted: the taps that the mend is for; wanted_by: ``option``, or ``config`` if they are
            what the config means.
        mend: what to write; not_evaluated: what was not checked.
        coverage: share of a histogram's tokens that is drafted.
        alike: own tables against the target's (deep only).
        undecided: the folder, or an engine asked for, could not be judged.
    """

    answers: tuple[Answer, ...]
    accused: bool
    facts: dict[str, Any]
    target: Target | None
    wiring: Wiring | None
    readings: tuple[Reading, ...]
    effects: tuple[Effect, ...]
    findings: tuple[Finding, ...]
    wanted: tuple[Tap, ...] | None
    wanted_by: Literal["option", "config"] | None
    mend: tuple[Mend, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    coverage: float | None
    alike: dict[str, Alike | str]
    undecided: bool

    def to_json(self) -> dict[str, Any]:
        """One plain object; findings and mend as a Verdict has them."""
        target = self.target
        return plain({
            "schema_version": SCHEMA_VERSION,
            "answers": [asdict(answer) for answer in self.answers],
            "undecided": self.undecided,
            "drafter": self.facts | {"coverage": self.coverage},
            "target": None
            if target is None
            else {
                "family": target.family, "layers": target.layers, "hidden": target.hidden,
                "vocabulary": target.vocabulary, "where": target.where,
            },
            "wiring": None if self.wiring is None else _wires(self.wiring),
            "readings": [asdict(reading) for reading in self.readings],
            "effects": [asdict(effect) for effect in self.effects],
            "alike": {k: v if isinstance(v, str) else asdict(v) for k, v in self.alike.items()},
            "findings": [asdict(found) for found in self.findings],
            "wanted": self.wanted and list(self.wanted),
            "wanted_by": self.wanted_by,
            "mend": [asdict(entry) for entry in self.mend],
            "not_evaluated": [asdict(entry) for entry in self.not_evaluated],
        })  # fmt: skip


def plain(value: Any) -> Any:
    """A value as JSON can hold it: numbers that JSON has no word for become text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _wires(wiring: Wiring) -> dict[str, Any]:
    return {wire: value for wire, value in to_json(wiring).items() if wire != "taps"}
