"""The engines whose reading of a config is known: ``NAME[@VERSION]``, and the way to each dialect.

Knows no rule itself, and runs no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftprobe.dialects import sglang, vllm
from draftprobe.dialects.ids import Spelling, Unspellable
from draftprobe.dialects.version import version_key
from draftprobe.drafter.wiring import Tap
from draftprobe.errors import InputError


@dataclass(frozen=True, slots=True)
class _Dialect:
    delivered: Callable[..., tuple[Tap, ...]]
    spell: Callable[..., Spelling | Unspellable]
    read: str
    aliases: Mapping[str, str]


ENGINES = {
    "sglang": _Dialect(sglang.delivered, sglang.spell, sglang.READ, sglang.ALIASES),
    "vllm": _Dialect(vllm.delivered, vllm.spell, vllm.READ, vllm.ALIASES),
}


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine at a version: whose reading of a config is meant."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    def delivered(
        self, config: dict[str, Any], family: str, layers: int, where: Any
    ) -> tuple[Tap, ...]:
        """Boundaries at fc's slots under a drafter's config.

        Raises:
            InputError: not known here, or the engine would fail.
        """
        return ENGINES[self.name].delivered(config, family, layers, where, self.version)

    def spell(self, taps: tuple[Tap, ...], family: str, layers: int) -> Spelling | Unspellable:
        """How these taps are written, or why they cannot be."""
        return ENGINES[self.name].spell(taps, family, layers, self.version)


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
    version_key(version)
    return Engine(name, version)
