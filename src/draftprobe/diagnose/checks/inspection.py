"""An inspection: a folder's facts, every engine's reading of it, and what is wrong, from files.

Opens, asks the dialects, runs the checks. Imports no torch, except for a pickle folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftprobe.diagnose.checks import belonging, engines, norms, rope, taps, tensors, vocabulary
from draftprobe.diagnose.checks.catalogue import finding
from draftprobe.diagnose.checks.facts import facts
from draftprobe.diagnose.checks.given import open_target, read_histogram
from draftprobe.diagnose.checks.subject import Subject, subject_of
from draftprobe.diagnose.mend import Wanted, mend, read_config
from draftprobe.diagnose.verdict import SCHEMA_VERSION, Finding, Mend, NotEvaluated
from draftprobe.dialects import trainers
from draftprobe.dialects.engines import ENGINES, Engine, parse_engine
from draftprobe.dialects.reading import Effect, Reading, Target
from draftprobe.dialects.recognise import Recognised, parse_trainer, recognise
from draftprobe.drafter.checkpoint import Checkpoint, open_checkpoint
from draftprobe.drafter.kind import FAMILIES, family
from draftprobe.drafter.layout import Layout, layout_of
from draftprobe.drafter.wiring import Tap, Wiring, check_taps, to_json
from draftprobe.errors import InputError

if TYPE_CHECKING:
    from draftprobe.diagnose.checks.numbers import Alike

_LIKE_EAGLE3 = ("eagle3", "p-eagle", "unknown")
"""Families whose folders hold what the checks of taps, norms and tensors expect."""

_EARLIER = "sglang@before-2026-05"
"""The other side of a rule's change, shown beside the newest where the two differ."""


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
    """The answer. ``alike`` compares own tables with the target's (deep only)."""

    facts: dict[str, Any]
    target: Target | None
    wiring: Wiring | None
    readings: tuple[Reading, ...]
    effects: tuple[Effect, ...]
    findings: tuple[Finding, ...]
    mend: tuple[Mend, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    coverage: float | None
    alike: dict[str, Alike | str]

    def to_json(self) -> dict[str, Any]:
        """One plain object; findings and mend as a Verdict has them."""
        target = self.target
        return {
            "schema_version": SCHEMA_VERSION,
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
            "mend": [asdict(entry) for entry in self.mend],
            "not_evaluated": [asdict(entry) for entry in self.not_evaluated],
        }  # fmt: skip


def _wires(wiring: Wiring) -> dict[str, Any]:
    return {wire: value for wire, value in to_json(wiring).items() if wire != "taps"}


def inspect(asked: Asked) -> Inspection:
    """Look at a folder as the module says.

    Raises:
        InputError: no drafter's folder, no target's config, or an option that fits neither.
    """
    checkpoint = open_checkpoint(asked.folder)
    layout = layout_of(checkpoint)
    target = None if asked.target is None else open_target(asked.target)
    open_points: list[NotEvaluated] = []
    who = _trainer(checkpoint, layout, asked.trainer)
    wiring = _meant(checkpoint, layout, asked.trainer, open_points)
    subject = subject_of(checkpoint, layout, target, wiring, who.name)
    findings = list(_static(subject, open_points))
    counts = None if asked.histogram is None else read_histogram(asked.histogram)
    findings += _doubts(subject, asked.trainer)
    findings += [] if counts is None else vocabulary.check_coverage(subject, counts)
    found, why = belonging.tokenizers(asked.folder, asked.target)
    findings += found
    _note(open_points, "tokenizer", why)
    alike = _deep(subject, asked, findings, open_points)
    readings, effects = _engines(subject, asked, findings, open_points, alike)
    claims = trainers.claims(checkpoint, target and target.layers, asked.trainer)
    mends = _mends(subject, asked, findings)
    if counts is None:
        _note(open_points, "coverage", "no token histogram was given (--histogram)")
    return Inspection(
        facts(subject, who, claims),
        target,
        wiring,
        readings,
        effects,
        tuple(findings),
        mends,
        tuple(open_points),
        None if counts is None else vocabulary.coverage(subject, counts),
        alike,
    )


def _static(subject: Subject, points: list[NotEvaluated]) -> list[Finding]:
    modules = [taps, norms, vocabulary, tensors, rope, belonging]
    kind = family(subject.checkpoint, subject.layout)
    if kind not in _LIKE_EAGLE3:
        _note(points, "taps, norms and tensors", f"not an EAGLE-3 drafter: {FAMILIES[kind]}")
        modules = [vocabulary, rope, belonging]
    return [found for module in modules for found in module.check(subject)]


def _note(points: list[NotEvaluated], what: str, why: str | None) -> None:
    if why is not None:
        points.append(NotEvaluated(what, why))


def _trainer(checkpoint: Checkpoint, layout: Layout, given: str | None) -> Recognised:
    if given is not None:
        return parse_trainer(given)
    return recognise(checkpoint, layout)


def _meant(
    checkpoint: Checkpoint, layout: Layout, trainer: str | None, points: list[NotEvaluated]
) -> Wiring | None:
    """The wires as trained; taps are not asked here, so they are left at a stand-in.

    What contradicts itself is told by the checks, each by its name, and not as bad input.
    """
    try:
        return trainers.parse(checkpoint, layout, (0,), trainer)
    except InputError as error:
        _note(points, "wiring as trained", str(error))
        return None


_DOUBTED = {"rope": "W405", "residual": "W207"}


def _doubts(subject: Subject, trainer: str | None) -> list[Finding]:
    """W207 and W405: keys that training did not read, and that servers do."""
    if subject.trained is None:
        return []
    found = trainers.doubts(subject.checkpoint, subject.layout, trainer)
    return [
        finding(_DOUBTED[d.wire], f"{d.why}: {d.taken} by training, {d.other} as written")
        for d in found
        if d.wire in _DOUBTED
    ]


def _deep(
    subject: Subject, asked: Asked, findings: list[Finding], points: list[NotEvaluated]
) -> dict[str, Alike | str]:
    """The checks that read every weight; without --deep they are named as not evaluated."""
    if not asked.deep:
        for what in ("NaN, infinity and half precision of the weights", "own tables' contents"):
            _note(points, what, "needs every weight (--deep)")
        return {}
    from draftprobe.diagnose.checks import numbers

    found, left = numbers.check(subject, asked.progress)
    findings += found
    points += left
    if asked.target is None or not asked.target.is_dir():
        _note(points, "own tables against the target's", "no target folder was given")
        return {}
    try:
        target = open_checkpoint(asked.target)
    except InputError as error:
        _note(points, "own tables against the target's", str(error))
        return {}
    alike = numbers.compare(subject, target, asked.progress)
    findings += numbers.check_embedding(alike)
    for name, told in alike.items():
        if isinstance(told, str):
            _note(points, f"{name} against the target's", told)
    return alike


def _engines(
    subject: Subject,
    asked: Asked,
    findings: list[Finding],
    points: list[NotEvaluated],
    alike: dict[str, Alike | str],
) -> tuple[tuple[Reading, ...], tuple[Effect, ...]]:
    """Readings and effects of the engines asked for, or of all; only the former are accused."""
    if subject.target is None:
        _note(points, "what each engine feeds", "needs the target's depth and family (--target)")
        if asked.engines:
            raise InputError("--engine: a reading needs the target's config; give --target")
        return (), ()
    readings: list[Reading] = []
    effects: list[Effect] = []
    for engine in _which(subject.target, asked.engines):
        config, target = subject.checkpoint.config, subject.target
        new = engine.readings(config, target)
        readings += new if asked.engines else [r for r in new if not _same(r, readings)]
        if asked.engines or engine != parse_engine(_EARLIER):
            effects += engine.effects(subject.checkpoint, subject.layout, target)
    if asked.engines:
        for told in engines.of_readings(subject, readings, asked.wanted):
            if isinstance(told, Finding):
                findings.append(told)
            else:
                points.append(told)
        findings += engines.of_effects(subject, effects, alike)
        names = dict.fromkeys(parse_engine(text).name for text in asked.engines)
        findings += engines.of_positions(subject, names)
        points += engines.open_points(effects, alike)
    return tuple(readings), tuple(effects)


def _which(target: Target, given: Sequence[str]) -> list[Engine]:
    if given:
        return list(dict.fromkeys(parse_engine(text) for text in given))
    names = list(ENGINES)
    at = names.index("sglang")
    return [parse_engine(text) for text in (*names[: at + 1], _EARLIER, *names[at + 1 :])]


def _same(reading: Reading, others: Sequence[Reading]) -> bool:
    """Whether the same engine at another version reads the folder alike: shown once then."""
    return any(
        (reading.engine, reading.variant, reading.taps, reading.problem)
        == (other.engine, other.variant, other.taps, other.problem)
        for other in others
    )


def _mends(subject: Subject, asked: Asked, findings: list[Finding]) -> tuple[Mend, ...]:
    if asked.wanted is None:
        return ()
    target = subject.target
    if target is None:
        raise InputError("--wanted: what to write depends on the target; give --target")
    check_taps(asked.wanted, target.layers)
    count = taps.slots(subject)
    if count is not None and count != len(asked.wanted):
        raise InputError(
            f"--wanted: expected {count} boundaries, one per slot of fc, found {len(asked.wanted)}"
        )
    text = read_config(asked.folder)
    wanted = Wanted(asked.folder, asked.wanted, target.family, target.layers, proved=False)
    out: list[Mend] = []
    for engine in _which(target, asked.engines):
        entry = mend(text, wanted, engine).mend
        if not entry.diff or entry.diff not in [other.diff for other in out]:
            out.append(entry)
    if asked.engines:
        findings += engines.of_mends(out)
    return tuple(out)
