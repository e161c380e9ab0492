"""The engines whose reading of a folder is known: ``NAME[@VERSION]``, and the way to each dialect.

Knows no rule itself, and runs no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from draftprobe.dialects import (
    llamacpp,
    llamacpp_loader,
    openvino,
    sglang,
    sglang_loader,
    tensorrt_llm,
    tensorrt_llm_loader,
    vllm,
    vllm_loader,
)
from draftprobe.dialects.ids import Spelling, Unspellable
from draftprobe.dialects.reading import Effect, Reading, Target
from draftprobe.dialects.version import version_key
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout
from draftprobe.drafter.wiring import Tap, Wiring, taps_name
from draftprobe.errors import InputError


@dataclass(frozen=True, slots=True)
class _Dialect:
    """One engine's rules.

    Attributes:
        readings, spell, effects: the functions of its module.
        read: the newest version that was read, meant where none is named.
        oldest: the oldest one; empty where it is the same.
        aliases: names of versions.
        releases: whether other versions can be named; else the one that was read is all there is.
        in_config: whether taps are written in the drafter's own config.
    """

    readings: Callable[..., tuple[Reading, ...]]
    spell: Callable[..., Spelling | Unspellable]
    effects: Callable[..., tuple[Effect, ...]]
    read: str
    aliases: Mapping[str, str] = field(default_factory=dict)
    oldest: str = ""
    releases: bool = True
    in_config: bool = False


ENGINES = {
    "llamacpp": _Dialect(
        llamacpp.readings, llamacpp.spell, llamacpp_loader.effects, llamacpp.READ, releases=False
    ),
    "openvino": _Dialect(openvino.readings, openvino.spell, openvino.effects, openvino.READ),
    "sglang": _Dialect(
        sglang.readings,
        sglang.spell,
        sglang_loader.effects,
        sglang.READ,
        sglang.ALIASES,
        oldest=sglang.OLDEST,
        in_config=True,
    ),
    "tensorrt_llm": _Dialect(
        tensorrt_llm.readings,
        tensorrt_llm.spell,
        tensorrt_llm_loader.effects,
        tensorrt_llm.READ,
        releases=False,
    ),
    "vllm": _Dialect(
        vllm.readings, vllm.spell, vllm_loader.effects, vllm.READ, vllm.ALIASES, in_config=True
    ),
}


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine at a version: whose reading of a folder is meant."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def age(self) -> Literal["read", "newer", "older"]:
        """Where the version stands to the span that was read: rules of a newer one are inferred
        from the newest, of an older one none is known.
        """
        dialect = ENGINES[self.name]
        if not dialect.releases:
            return "read"
        mine = version_key(self.version)
        if mine > version_key(dialect.read):
            return "newer"
        return "older" if mine < version_key(dialect.oldest or dialect.read) else "read"

    @property
    def newest(self) -> str:
        """The newest version that was read."""
        return ENGINES[self.name].read

    def readings(
        self, config: dict[str, Any], target: Target, options: Mapping[str, Any] | None = None
    ) -> tuple[Reading, ...]:
        """Which boundaries arrive under a drafter's config, once per runner.

        Whatever the config holds, nothing is raised: an engine that fails, or whose rule is not
        known, is a Reading without taps that says so.

        Args:
            config: the drafter's ``config.json``.
            target: the target.
            options: what the server is told beside it, by the names that :meth:`spell` uses:
                ``eagle3_layers_to_capture``, ``hidden_layers_list``, ``eagle3.extract_layers``.
        """
        return self._readings(config, target.family, target.layers, options or {})

    def delivered(
        self, config: dict[str, Any], family: str, layers: int, where: Any
    ) -> tuple[Tap, ...]:
        """The boundaries that every reading of a drafter's config agrees on.

        Raises:
            InputError: not known here, or the engine would fail, or its runners differ.
        """
        found = self._readings(config, family, layers, {})
        first = found[0]
        for reading in found:
            if reading.taps is None:
                raise InputError(f"{where}: {reading.problem}; give the served boundaries outright")
            if reading.taps != first.taps:
                raise InputError(f"{where}: {_differ(self.name, first, reading)}")
        assert first.taps is not None
        return first.taps

    def spell(self, taps: tuple[Tap, ...], family: str, layers: int) -> Spelling | Unspellable:
        """How these taps are written, or why they cannot be."""
        return ENGINES[self.name].spell(taps, family, layers, self.version)

    def effects(self, checkpoint: Checkpoint, layout: Layout, target: Target) -> tuple[Effect, ...]:
        """What the engine ignores, drops, defaults, replaces or refuses of a folder.

        Headers and config are read, no tensor. Nothing is raised for what the folder holds.
        """
        return ENGINES[self.name].effects(checkpoint, layout, target, self.version)

    def served(self, wiring: Wiring, effects: Iterable[Effect]) -> Wiring:
        """What the engine runs of a wiring that was meant: its effects applied, the taps as given.

        An effect on a wire whose value no Wiring can hold (None) leaves that wire: look at
        ``effect.wire`` before the result is taken for the whole truth.
        """
        changed = {
            effect.wire: effect.value
            for effect in effects
            if effect.wire not in (None, "taps") and effect.value is not None
        }
        return replace(wiring, **changed)

    def _readings(
        self, config: dict[str, Any], family: str, layers: int, options: Mapping[str, Any]
    ) -> tuple[Reading, ...]:
        return ENGINES[self.name].readings(config, family, layers, self.version, options)


def parse_engine(text: str) -> Engine:
    """``sglang``, ``sglang@0.5.12`` or ``sglang@before-2026-05``.

    Without a version, the newest that was read is meant; the Engine names it.

    Raises:
        InputError: an unknown name, or a version of another form.
    """
    name, at, version = text.partition("@")
    if name not in ENGINES:
        raise InputError(
            f"--engine: expected NAME or NAME@VERSION with a name of {', '.join(sorted(ENGINES))}, "
            f"found {text!r}"
        )
    dialect = ENGINES[name]
    version = dialect.aliases.get(version, version) if at else dialect.read
    if dialect.releases:
        version_key(version)
    elif version != dialect.read:
        raise InputError(
            f"--engine: expected {name} alone: its releases are not told apart, only commit "
            f"{dialect.read} was read; found {text!r}"
        )
    return Engine(name, version)


def config_engines() -> list[str]:
    """The engines whose taps are written in the drafter's own config."""
    return sorted(name for name, dialect in ENGINES.items() if dialect.in_config)


def _differ(name: str, one: Reading, other: Reading) -> str:
    def said(reading: Reading) -> str:
        taps = taps_name(reading.taps or ())
        return f"its {reading.variant} runner feeds {taps} (ids: {reading.found})"

    return (
        f"{name} reads this config in two ways: {said(one)}, {said(other)}; write the ids where "
        "both read them (draftprobe mend), or give the served boundaries outright"
    )
