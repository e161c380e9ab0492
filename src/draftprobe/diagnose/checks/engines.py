"""What an engine does with a folder, where that is a finding: its readings and its effects judged.

Knows what is harmless (what the trainer meant anyway), no engine's rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from draftprobe.diagnose.checks.catalogue import finding
from draftprobe.diagnose.checks.meaning import Meaning, place_of
from draftprobe.diagnose.checks.rope import short
from draftprobe.diagnose.checks.subject import Subject
from draftprobe.diagnose.checks.taps import lists
from draftprobe.diagnose.mend import CANNOT
from draftprobe.diagnose.taps import taps_finding
from draftprobe.diagnose.verdict import Finding, NotEvaluated
from draftprobe.dialects.ids import KEY
from draftprobe.drafter.wiring import Tap, taps_name

Taps = tuple[Tap, ...]
Lists = Mapping[str, list[int]]

if TYPE_CHECKING:
    from draftprobe.diagnose.checks.numbers import Alike
    from draftprobe.diagnose.verdict import Mend
    from draftprobe.dialects.reading import Effect, Reading

_BY_KEY = {
    "norm_before_residual": "W203", "norm_output": "W204", "tie_word_embeddings": "W308",
}  # fmt: skip
"""Config key -> finding, whatever was done to it."""

_BY_DEED = {
    "ignores tensor": "W311", "leaves at initial value": "W312", "refuses": "S104",
    "ignores key": "S105", "defaults": "S105",
}  # fmt: skip
"""What was done -> finding, for all other keys and for tensors."""

_BRANCH = "this engine captures states without the residual stream"

_UNUSED_WHEN_SERVED = ("t2d", "rotary_emb.inv_freq")
"""Tensors that no engine needs: dropping them is no loss."""


def name(item: Reading | Effect) -> str:
    """``vllm 0.32.0 V2``."""
    variant = getattr(item, "variant", "")
    return " ".join(part for part in (item.engine, item.version, variant) if part)


def refusals(effects: Iterable[Effect]) -> list[Effect]:
    """Why an engine does not load the folder as a drafter; empty where it does."""
    return [
        effect
        for effect in effects
        if (effect.did == "refuses" and effect.wire != "taps")
        or (effect.did == "ignores tensor" and effect.subject.endswith("fc.weight"))
    ]


def of_readings(
    meaning: Meaning, readings: Sequence[Reading], wanted: Taps | None, subject: Subject
) -> Iterator[Finding | NotEvaluated]:
    """W106, W112, W114, W117, and with wanted taps W101 to W104; what is not known is no finding.

    For engines that load the folder.
    """
    fed: dict[Taps, list[Reading]] = {}
    for reading in readings:
        if reading.taps is not None:
            fed.setdefault(reading.taps, []).append(reading)
        elif reading.outcome == "unknown":
            yield NotEvaluated(f"taps in {name(reading)}", reading.problem)
        elif reading.outcome == "fails":
            yield finding("W112", f"{name(reading)}: {reading.problem}")
        else:
            told = f"{name(reading)}: {reading.problem}"
            yield Finding("W117", _BRANCH, "taps", None, None, None, told)
    found = lists(subject)
    for taps, group in fed.items():
        yield from _unread(found, meaning, group, taps, wanted)
        if wanted is None:
            yield from _otherwise(found, meaning, group, taps)
        elif taps != wanted:
            identifier, title = taps_finding(taps, wanted)
            named = taps_name(taps), taps_name(wanted)
            told = f"{named[0]} instead of {named[1]}: {names(group)}"
            yield Finding(identifier, title, "taps", None, *named, told)


def names(readings: Iterable[Reading]) -> str:
    """``vllm 0.32.0 V1, vllm 0.32.0 V2``."""
    return ", ".join(map(name, readings))


def _unread(
    found: Lists, meaning: Meaning, group: Iterable[Reading], taps: Taps, wanted: Taps | None
) -> Iterator[Finding]:
    """W106: there are ids, and an engine takes its default; told unless that is the same."""
    unread = [reading for reading in group if reading.found == "default"]
    if found and unread and not (taps == meaning.taps and wanted in (None, taps)):
        places = " and ".join(f"{place} {ids}" for place, ids in found.items())
        told = f"{places} is not read; the default {taps_name(taps)} is fed: {names(unread)}"
        meant = None if meaning.taps is None else taps_name(meaning.taps)
        yield finding("W106", told, taps_name(taps), meant)


def _otherwise(
    found: Lists, meaning: Meaning, group: Sequence[Reading], taps: Taps
) -> Iterator[Finding]:
    """W114: a list read otherwise than it is meant; without ids, another than the usual default."""
    if found:
        odd: dict[Taps, list[Reading]] = {}
        for reading in group:
            meant = meaning.places.get(place_of(reading.found))
            if meant is not None and meant != taps:
                odd.setdefault(meant, []).append(reading)
        for meant, readings in odd.items():
            told = f"{names(readings)} feed {taps_name(taps)} from {_place(readings[0], found)}"
            named = taps_name(taps), taps_name(meant)
            yield finding("W114", f"{told}, which means {taps_name(meant)}", *named)
    elif meaning.taps is not None and taps != meaning.taps:
        told = f"{names(group)} feed {taps_name(taps)} without layer ids"
        named = taps_name(taps), taps_name(meaning.taps)
        why = "training stacks take" if meaning.usual else "the conversion noted"
        yield finding("W114", f"{told}; {why} {taps_name(meaning.taps)}", *named)


def _place(reading: Reading, found: Lists) -> str:
    place = place_of(reading.found)
    return f"{place} {found.get(place, '')}".strip()


def of_effects(
    subject: Subject, effects: Iterable[Effect], alike: dict[str, Alike | str] | None = None
) -> Iterator[Finding]:
    """S104, S105, W203, W204, W206, W309, W311, W312, by what was done to what.

    One finding for each engine and id; what the trainer meant anyway is none.
    """
    gathered: dict[tuple[str, str], list[Effect]] = {}
    for effect in effects:
        identifier = _identifier(subject, effect, alike or {})
        if identifier is not None:
            gathered.setdefault((name(effect), identifier), []).append(effect)
    for (who, identifier), group in gathered.items():
        yield replace(finding(identifier, f"{who}: {_told(group)}"), **_wired(subject, group[0]))


def _wired(subject: Subject, effect: Effect) -> dict[str, str | None]:
    """Wire, served and wanted of a finding, where the effect decides a wire."""
    if effect.wire is None:
        return {}
    meant = None if subject.trained is None else getattr(subject.trained, effect.wire, None)
    return {
        "wire": effect.wire,
        "served": None if effect.value is None else str(effect.value),
        "wanted": None if meant is None else str(meant),
    }


def _told(group: Sequence[Effect]) -> str:
    """Subjects and texts, the first few of many; sources stand with the effects."""
    subjects = _some([effect.subject for effect in group], ", ")
    texts = _some([effect.text for effect in group], "; ")
    rules = "; ".join(dict.fromkeys(f"{e.rule.source}; {e.rule.how}" for e in group))
    return f"{subjects}: {texts} ({rules})"


def _some(items: Sequence[str], between: str, most: int = 3) -> str:
    different = list(dict.fromkeys(items))
    more = f" and {len(different) - most} more" if len(different) > most else ""
    return between.join(different[:most]) + more


def _identifier(subject: Subject, effect: Effect, alike: dict[str, Alike | str]) -> str | None:
    """The finding's id, None where the effect takes nothing from the drafter."""
    key = effect.subject.rsplit(".", 1)[-1] if effect.did != "ignores tensor" else effect.subject
    if effect.did == "is not known":
        return None
    if effect.did == "replaces":
        return "W309" if _differs(effect.subject, alike) else None
    if effect.did == "ignores tensor" and effect.subject.endswith(_UNUSED_WHEN_SERVED):
        return None
    if key in (KEY, "d2t"):  # a reading tells it with its taps; W301 tells of no table
        return None
    if _as_trained(subject, effect):
        return None
    if effect.did == "defaults" and effect.wire is None:
        return None
    if effect.wire == "pre_fc_norm":
        return "W206"
    return _BY_KEY.get(key) or _BY_DEED.get(effect.did)


def _as_trained(subject: Subject, effect: Effect) -> bool:
    """Whether the wire is then what the trainer meant anyway."""
    if effect.wire is None or subject.trained is None:
        return False
    return getattr(subject.trained, effect.wire, None) == effect.value


def _differs(tensor: str, alike: dict[str, Alike | str]) -> bool:
    for inside, found in alike.items():
        if tensor.endswith(inside) and not isinstance(found, str):
            return found.equal < found.rows
    return False


def open_points(effects: Iterable[Effect], alike: dict[str, Alike | str]) -> Iterator[NotEvaluated]:
    """Replaced tables that nobody has compared with what takes their place."""
    for effect in effects:
        compared = any(effect.subject.endswith(inside) for inside in alike)
        if effect.did == "replaces" and not compared:
            why = "needs every weight and the target's (--deep, --target FOLDER)"
            yield NotEvaluated(f"whether {effect.subject} differs: {name(effect)} replaces it", why)


_GROWS = frozenset({"sglang", "vllm"})
"""Engines that serve positions beyond the drafter's number: vLLM raises it to the target's (pull
request 48894), SGLang lengthens its rotary table (srt/utils/common.py in 0.5.12.post1, 0.5.13 and
0.5.23; read)."""


def of_positions(subject: Subject, engines: Iterable[str]) -> Iterator[Finding]:
    """W404, for engines of which it is not known that they serve positions beyond."""
    told, doubted = short(subject), [who for who in engines if who not in _GROWS]
    if told is not None and doubted:
        yield finding(
            "W404",
            f"{told}: whether {', '.join(doubted)} computes positions beyond that, or clamps them, "
            "is not known here (vLLM and SGLang compute them)",
        )


def of_mends(mends: Iterable[Mend]) -> Iterator[Finding]:
    """W113: a mend without a diff that has no way to say it."""
    for entry in mends:
        if entry.note.startswith(CANNOT):
            yield finding("W113", f"{entry.engine} {entry.version}: {entry.note}")
