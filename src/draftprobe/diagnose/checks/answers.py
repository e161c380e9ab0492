"""The answer of an inspection for each engine: what it feeds against what is meant, in one line.

Puts together what the readings and the checks of an engine say; finds nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from draftprobe.diagnose.checks import engines
from draftprobe.diagnose.checks.meaning import Meaning
from draftprobe.diagnose.checks.subject import Subject
from draftprobe.diagnose.verdict import Finding
from draftprobe.drafter.wiring import Tap, taps_name

if TYPE_CHECKING:
    from draftprobe.diagnose.checks.numbers import Alike
    from draftprobe.dialects.engines import Engine
    from draftprobe.dialects.reading import Effect, Reading

Status = Literal["refuses", "wrong", "undecided", "ok"]
WORST_FIRST: tuple[Status, ...] = ("refuses", "wrong", "undecided", "ok")


@dataclass(frozen=True, slots=True)
class Answer:
    """One engine, or those of its runners that do the same.

    Attributes:
        engine, version: whose; variants: its runners, empty for all of them.
        status: it does not load the folder; it does something else than is meant; that cannot be
            told; or neither.
        fed: the taps that arrive, None where none do or that is not known; meant: what the
            config means or the user wants, None in doubt.
        findings: ids of what is wrong.
        text: the rest of the sentence after the engine's name.
        note: what to know of the version; mostly empty.
    """

    engine: str
    version: str
    variants: tuple[str, ...]
    status: Status
    fed: tuple[Tap, ...] | None
    meant: tuple[Tap, ...] | None
    findings: tuple[str, ...]
    text: str
    note: str = ""

    @property
    def name(self) -> str:
        """``vllm 0.32.0 V2``."""
        return " ".join((self.engine, self.version, *self.variants))


@dataclass(frozen=True, slots=True)
class Judged:
    """What an engine's answer rests on: the drafter, the meaning of its ids, and what is asked."""

    subject: Subject
    meaning: Meaning
    wanted: tuple[Tap, ...] | None
    alike: Mapping[str, Alike | str]
    other_family: str = ""


def answers(
    judged: Judged, engine: Engine, readings: Sequence[Reading], effects: Sequence[Effect]
) -> list[Answer]:
    """One answer, or one for each group of runners that are fed alike."""
    newer = f"{engine.version} is newer than the newest rule, {engine.newest}"
    note = newer if engine.age == "newer" else ""
    refused = engines.refusals(effects)
    meant = judged.meaning.taps if judged.wanted is None else judged.wanted
    who = (engine.name, engine.version)
    if judged.other_family:
        return [Answer(*who, (), "undecided", None, None, (), judged.other_family, note)]
    if refused and engine.age != "older":
        found = tuple(dict.fromkeys(f.id for f in _of_effects(judged, refused)))
        text = _refusal(refused)
        return [Answer(*who, (), "refuses", None, meant, found, text, note)]
    groups: dict[tuple[object, str], list[Reading]] = {}
    for reading in readings:
        groups.setdefault((reading.taps, reading.problem), []).append(reading)
    out: list[Answer] = []
    for group in groups.values():
        variants = tuple(r.variant for r in group) if len(groups) > 1 else ()
        status, found, text = _judge(judged, engine, group, effects)
        out.append(Answer(*who, variants, status, group[0].taps, meant, found, text, note))
    return out


def _judge(
    judged: Judged, engine: Engine, group: Sequence[Reading], effects: Sequence[Effect]
) -> tuple[Status, tuple[str, ...], str]:
    """Status, ids of findings, and the sentence."""
    reading, meaning = group[0], judged.meaning
    unknown = [effect for effect in effects if effect.did == "is not known"]
    if reading.outcome == "unknown" or unknown:
        return "undecided", (), reading.problem or unknown[0].text
    told = engines.of_readings(meaning, group, judged.wanted, judged.subject)
    taps = [found for found in told if isinstance(found, Finding)]
    others = [*_of_effects(judged, effects), *engines.of_positions(judged.subject, [engine.name])]
    ids = tuple(dict.fromkeys(found.id for found in (*taps, *others)))
    if reading.taps is None:
        return "wrong", ids, reading.problem
    fed, clash = f"feeds {taps_name(reading.taps)}", _arrival(effects, reading)
    meant, by = meaning.taps, "the drafter means"
    if judged.wanted is not None:
        meant, by = judged.wanted, "wanted is"
    elif meant is None:
        meant = meaning.places.get(engines.place_of(reading.found))
        by = "that list means"
    also = "" if not others else f"; {others[0].title}"
    if clash:
        return "wrong", ids, f"{fed}: {clash}"
    if meant is not None and reading.taps != meant:
        return "wrong", ids, f"{fed}; {by} {taps_name(meant)}{also}"
    if meant is None:
        return ("wrong" if ids else "undecided"), ids, f"{fed}; {_doubt(meaning)}{also}"
    how = "the usual default, as there are no ids" if meaning.usual else "as meant"
    how = "as wanted" if judged.wanted is not None else how
    return ("wrong" if ids else "ok"), ids, f"{fed}, {how}{also}"


def _doubt(meaning: Meaning) -> str:
    if not meaning.agree:
        return "what the config says of layer ids does not agree with itself"
    likely = f", likelier {taps_name(meaning.likely)}" if meaning.likely else ""
    if not meaning.either:
        return "the ids mean no boundaries of this target"
    return f"the ids may mean {' or '.join(map(taps_name, meaning.either))}{likely}"


def _of_effects(judged: Judged, effects: Iterable[Effect]) -> list[Finding]:
    return list(engines.of_effects(judged.subject, effects, dict(judged.alike)))


def _refusal(refused: Sequence[Effect]) -> str:
    first = refused[0]
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    return f"{first.text}{more}"


def _arrival(effects: Iterable[Effect], reading: Reading) -> str:
    """That another number of states arrives than this runner's fc is built for."""
    for effect in effects:
        runner = f"({reading.variant} runner)"
        here = not reading.variant or runner in effect.text
        if effect.did == "refuses" and effect.wire == "taps" and here:
            return "another number than fc is built for, so that the first request fails"
    return ""


def sort(found: Iterable[Answer]) -> tuple[Answer, ...]:
    """Worst first, in their own order otherwise."""
    return tuple(sorted(found, key=lambda answer: WORST_FIRST.index(answer.status)))
