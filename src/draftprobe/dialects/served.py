"""What every engine does with a folder, a line each: the taps that arrive, and what is changed.

Says it in words; which of it is a finding is judged by ``diagnose.checks``. Reads no weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from draftprobe.dialects.engines import ENGINES, Engine, parse_engine
from draftprobe.dialects.ids import Unspellable
from draftprobe.dialects.reading import Effect, Reading, Target
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.layout import layout_of
from draftprobe.drafter.wiring import Tap, Wiring, taps_name

_NEEDLESS = ("t2d", "rotary_emb.inv_freq")
"""Tensors that no engine needs."""


@dataclass(frozen=True, slots=True)
class Served:
    """One engine, or one of its runners.

    Attributes:
        engine: with its version, and its runner where they differ.
        taps: what it feeds; None where it refuses or fails, or where that is not known.
        as_meant: it feeds the taps that were meant and changes no wire, as far as known here.
        told: what it does, in words.
    """

    engine: str
    taps: tuple[Tap, ...] | None
    as_meant: bool
    told: str


def what_engines_do(folder: Path, target: Target, meant: Wiring) -> tuple[Served, ...]:
    """Every known engine at the newest version that is known here, by name.

    Args:
        folder: the drafter's.
        target: what it is served with.
        meant: what it was trained with.

    Raises:
        InputError: the folder cannot be read.
    """
    checkpoint = open_checkpoint(folder)
    layout = layout_of(checkpoint)
    found: list[Served] = []
    for engine in map(parse_engine, sorted(ENGINES)):
        effects = engine.effects(checkpoint, layout, target)
        readings = engine.readings(checkpoint.config, target)
        for _, alike in groupby(readings, lambda reading: (reading.taps, reading.problem)):
            group = list(alike)
            variants = [reading.variant for reading in group] if len(group) < len(readings) else []
            name = " ".join((engine.name, engine.version, *variants))
            taps, told = _told(engine, group[0], effects, meant, target)
            good = not told
            fed = [] if taps is None else [f"feeds {taps_name(taps)}" + (" as meant" * good)]
            found.append(Served(name, taps, good, "; ".join([*fed, *told])))
    return tuple(found)


def _told(
    engine: Engine, reading: Reading, effects: tuple[Effect, ...], meant: Wiring, target: Target
) -> tuple[tuple[Tap, ...] | None, list[str]]:
    """The taps that arrive, and all that is not as meant; nothing where all of it is."""
    refused = [effect.text for effect in effects if effect.did == "refuses"]
    if refused:
        return None, ["refuses it: " + "; ".join(refused)]
    unknown = [effect.text for effect in effects if effect.did == "is not known"]
    if reading.taps is None or unknown:
        return None, [reading.problem or unknown[0]]
    changed = [effect.text for effect in effects if _changes(effect, meant)]
    if reading.taps == meant.taps:
        return reading.taps, changed
    wanted = engine.spell(meant.taps, target.family, target.layers)
    if isinstance(wanted, Unspellable):
        how = wanted.reason
    else:
        how = wanted.text or f"it would read {wanted.level} ids {list(wanted.ids)}"
    return reading.taps, [f"not {taps_name(meant.taps)}: {how}", *changed]


def _changes(effect: Effect, meant: Wiring) -> bool:
    """Whether something that was meant is lost or changed; taps are told by the reading."""
    if effect.wire == "taps":
        return False
    if effect.did in ("ignores tensor", "leaves at initial value"):
        return not effect.subject.endswith(_NEEDLESS)
    wire, value = effect.wire, effect.value
    return wire is not None and value is not None and getattr(meant, wire) != value
