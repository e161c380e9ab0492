"""An inspection: a folder's facts, every engine's reading of it, and what is wrong, from files.

Opens, asks the dialects, runs the checks. Imports no torch, except for a pickle folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from draftprobe.diagnose.checks import (
    belonging,
    engines,
    golden,
    norms,
    rope,
    taps,
    tensors,
    vocabulary,
)
from draftprobe.diagnose.checks.answers import Answer, Judged, answers, sort
from draftprobe.diagnose.checks.catalogue import finding
from draftprobe.diagnose.checks.facts import facts
from draftprobe.diagnose.checks.given import open_target, read_histogram
from draftprobe.diagnose.checks.meaning import meaning_of
from draftprobe.diagnose.checks.mends import Order, mends
from draftprobe.diagnose.checks.record import Asked, Inspection
from draftprobe.diagnose.checks.subject import Subject, subject_of
from draftprobe.diagnose.mend import Wanted, read_config
from draftprobe.diagnose.verdict import Finding, Mend, NotEvaluated
from draftprobe.dialects import trainers
from draftprobe.dialects.engines import ENGINES, Engine, parse_engine
from draftprobe.dialects.reading import Effect, Reading, Target
from draftprobe.dialects.recognise import MARK, Recognised, parse_trainer, recognise
from draftprobe.drafter.checkpoint import Checkpoint, open_checkpoint
from draftprobe.drafter.kind import FAMILIES, family
from draftprobe.drafter.layout import Layout, layout_of
from draftprobe.drafter.shape import unread
from draftprobe.drafter.wiring import Tap, Wiring, check_taps
from draftprobe.errors import InputError

if TYPE_CHECKING:
    from draftprobe.diagnose.checks.numbers import Alike

_LIKE_EAGLE3 = ("eagle3", "p-eagle", "unknown")
"""Families whose folders hold what the checks of taps, norms and tensors expect."""

_EARLIER = "sglang@before-2026-05"
"""The other side of a rule's change, shown beside the newest where the two differ."""


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
    claims = trainers.claims(
        checkpoint, target and target.layers, asked.trainer, target and target.family
    )
    kind = family(checkpoint, layout)
    other = "" if kind in _LIKE_EAGLE3 else f"not an EAGLE-3 drafter: {FAMILIES[kind]}"
    findings = list(_static(subject, other, open_points))
    counts = None if asked.histogram is None else read_histogram(asked.histogram)
    findings += _doubts(subject, asked.trainer)
    findings += [] if counts is None else vocabulary.check_coverage(subject, counts)
    found, why = belonging.tokenizers(asked.folder, asked.target)
    findings += found
    _note(open_points, "tokenizer", why)
    alike = _deep(subject, asked, findings, open_points)
    _check_wanted(subject, asked)
    judged = Judged(subject, meaning_of(subject, claims), asked.wanted, alike, other)
    findings += golden.check(subject, judged.meaning)
    served = _served(subject, asked, open_points)
    answered = sort(a for one in served for a in answers(judged, *one))
    if asked.engines:
        _accuse(judged, asked, served, findings, open_points)
    wanted, by = _wanted(judged, asked)
    mended = _mends(subject, asked, wanted, served, findings)
    if counts is None:
        _note(open_points, "coverage", "no token histogram was given (--histogram)")
    for told in unread(checkpoint):
        _note(open_points, "replay", told)
    return Inspection(
        answers=answered,
        accused=bool(asked.engines),
        facts=facts(subject, who, claims),
        target=target,
        wiring=wiring,
        readings=tuple(reading for _, readings, _ in served for reading in readings),
        effects=tuple(effect for _, _, effects in served for effect in effects),
        findings=tuple(findings),
        wanted=wanted,
        wanted_by=by,
        mend=mended,
        not_evaluated=tuple(open_points),
        coverage=None if counts is None else vocabulary.coverage(subject, counts),
        alike=alike,
        undecided=bool(other) or (bool(asked.engines) and _open(answered)),
    )


def _static(subject: Subject, other: str, points: list[NotEvaluated]) -> list[Finding]:
    modules = [taps, norms, vocabulary, tensors, rope, belonging]
    if other:
        _note(points, "taps, norms and tensors", other)
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
    """W207 and W405: keys that training did not read, and that servers do.

    Not where our own conversion wrote the folder in a layout that is not its trainer's: the habit
    of that layout's trainer says nothing then.
    """
    mark = subject.checkpoint.config.get(MARK)
    converted = isinstance(mark, dict) and mark.get("from") not in (None, subject.trainer)
    if subject.trained is None or (converted and trainer is None):
        return []
    found = trainers.doubts(subject.checkpoint, subject.layout, trainer)
    return [
        finding(_DOUBTED[d.wire], f"{d.why}: {_both(subject, d)}")
        for d in found
        if d.wire in _DOUBTED
    ]


def _both(subject: Subject, doubt: trainers.Doubt) -> str:
    """The two values, each by what it is: the config's, or training's."""
    key = _written(subject, doubt)
    if key == doubt.taken:
        return f"{doubt.taken} as written, {doubt.other} by training"
    if key == doubt.other:
        return f"{doubt.taken} by training, {doubt.other} as written"
    return f"{doubt.taken} and {doubt.other}"


def _written(subject: Subject, doubt: trainers.Doubt) -> Any:
    """What the config says of a doubted wire; None where it says two things."""
    if doubt.wire == "residual":
        return doubt.other
    if "twice" in doubt.why:
        return None
    values = (rope.theta(subject.config), rope.partial(subject.config))
    return next((v for v in values if v in (doubt.taken, doubt.other)), None)


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


_Served = tuple[Engine, tuple[Reading, ...], tuple[Effect, ...]]


def _served(subject: Subject, asked: Asked, points: list[NotEvaluated]) -> list[_Served]:
    """Readings and effects of the engines asked for, or of all."""
    target = subject.target
    if target is None:
        _note(points, "what each engine feeds", "needs the target's depth and family (--target)")
        if asked.engines:
            raise InputError("--engine: a reading needs the target's config; give --target")
        return []
    out: list[_Served] = []
    for engine in _which(target, asked.engines):
        readings = engine.readings(subject.checkpoint.config, target)
        if not asked.engines:
            readings = tuple(r for r in readings if not _same(r, out))
        if readings:
            effects = engine.effects(subject.checkpoint, subject.layout, target)
            out.append((engine, readings, effects))
    return out


def _accuse(
    judged: Judged,
    asked: Asked,
    served: Sequence[_Served],
    findings: list[Finding],
    points: list[NotEvaluated],
) -> None:
    """The findings of the engines asked for; of an engine that loads nothing, its refusal alone."""
    subject, readings, effects = judged.subject, list[Reading](), list[Effect]()
    for engine, read, done in served:
        if engine.age == "older" or judged.other_family:
            points += [NotEvaluated(f"{engine}", judged.other_family or read[0].problem)]
            continue
        refused = engines.refusals(done)
        readings += [] if refused else read
        effects += refused or done
        points += [
            NotEvaluated(f"{effect.subject} in {engine}", effect.text)
            for effect in done
            if effect.did == "is not known"
        ]
    for told in engines.of_readings(judged.meaning, readings, asked.wanted, subject):
        if isinstance(told, Finding):
            findings.append(told)
        else:
            points.append(told)
    findings += engines.of_effects(subject, effects, dict(judged.alike))
    findings += engines.of_positions(subject, dict.fromkeys(e.name for e, _, _ in served))
    points += engines.open_points(effects, dict(judged.alike))


def _open(answered: Sequence[Answer]) -> bool:
    return any(answer.status == "undecided" for answer in answered)


def _which(target: Target, given: Sequence[str]) -> list[Engine]:
    if given:
        return list(dict.fromkeys(parse_engine(text) for text in given))
    names = list(ENGINES)
    at = names.index("sglang")
    return [parse_engine(text) for text in (*names[: at + 1], _EARLIER, *names[at + 1 :])]


def _same(reading: Reading, others: Sequence[_Served]) -> bool:
    """Whether the same engine at another version reads the folder alike: shown once then."""
    return any(
        (reading.engine, reading.variant, reading.taps, reading.problem)
        == (other.engine, other.variant, other.taps, other.problem)
        for _, readings, _ in others
        for other in readings
    )


def _check_wanted(subject: Subject, asked: Asked) -> None:
    """Raise InputError where the wanted taps fit neither the target nor fc."""
    if asked.wanted is None:
        return
    target = subject.target
    if target is None:
        raise InputError("--wanted: what to write depends on the target; give --target")
    check_taps(asked.wanted, target.layers)
    count = taps.slots(subject)
    if count is not None and count != len(asked.wanted):
        raise InputError(
            f"--wanted: expected {count} boundaries, one per slot of fc, found {len(asked.wanted)}"
        )


def _wanted(
    judged: Judged, asked: Asked
) -> tuple[tuple[Tap, ...] | None, Literal["option", "config"] | None]:
    """What a mend is for: the option, else what the config means beyond doubt."""
    meant, count = judged.meaning.taps, taps.slots(judged.subject)
    if asked.wanted is not None:
        return asked.wanted, "option"
    if not asked.engines or meant is None or count not in (None, len(meant)):
        return None, None
    return meant, "config"


def _mends(
    subject: Subject,
    asked: Asked,
    wanted: tuple[Tap, ...] | None,
    served: Sequence[_Served],
    findings: list[Finding],
) -> tuple[Mend, ...]:
    target = subject.target
    if target is None or not (asked.engines or wanted):
        return ()
    doubt = "not proved by replay on recorded states (draftprobe diagnose)"
    order = None if wanted is None else Wanted(
        asked.folder, wanted, target.family, target.layers, proved=False, doubt=doubt
    )  # fmt: skip
    which = _which(target, asked.engines)
    known = {engine: effects for engine, _, effects in served}
    for engine in which:
        if engine not in known:
            known[engine] = engine.effects(subject.checkpoint, subject.layout, target)
    out: list[Mend] = []
    for entry in mends(Order(subject, read_config(asked.folder), order, known), which):
        if asked.engines or (entry.engine, entry.diff) not in [(m.engine, m.diff) for m in out]:
            out.append(entry)
    if asked.engines and asked.wanted is not None:
        findings += engines.of_mends(out)
    return tuple(out)
