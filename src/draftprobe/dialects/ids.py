"""Layer ids: the key that most stacks write them under, and the records of how an engine reads it.

Knows no engine: each engine's module holds its own rules in these terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftprobe.drafter.wiring import Tap, tap_name, taps_name
from draftprobe.errors import InputError

KEY = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config"


@dataclass(frozen=True, slots=True)
class Rule:
    """How an engine reads layer ids, and how that is known.

    Attributes:
        text: what an id means there.
        source: file and versions.
        how: the engine's own code was executed, or read, or the rule is inferred from another
            version's.
    """

    text: str
    source: str
    how: Literal["executed", "read", "inferred"]

    def __str__(self) -> str:
        return f"{self.text} ({self.source}; {self.how})"


@dataclass(frozen=True, slots=True)
class Spelling:
    """How taps are written for an engine.

    Attributes:
        level: the list stands at the config's top level, or nested in ``eagle_config``, or in an
            option of the engine that is no part of the drafter's config.
        ids: the list.
        rule: what that rests on.
        patch: what must be changed in the engine's own code before this holds; empty for nothing.
        name: the option's name; empty for a list in the config.
        text: what to do for that option, one sentence; empty for a list in the config.
    """

    level: Literal["top", "nested", "option"]
    ids: tuple[int, ...]
    rule: Rule
    patch: str = ""
    name: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Unspellable:
    """Why an engine cannot be told to feed these taps; ``rule`` is None where none is known."""

    reason: str
    rule: Rule | None


def layer_ids(config: dict[str, Any], where: Any) -> list[int] | None:
    """The list under :data:`KEY`, or None if it is absent; InputError if it is malformed.

    An empty list is none: ModelOpt's templates carry one, and training takes its default then.
    """
    ids = config.get(KEY)
    if ids is None or ids == []:
        return None
    if not is_ids(ids):
        raise InputError(f"{where}: {not_ids(ids, KEY)}")
    return ids


def nested_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The object under ``eagle_config``, empty if there is none."""
    nested = config.get(NESTED)
    return nested if isinstance(nested, dict) else {}


def switched_off(config: Mapping[str, Any]) -> str:
    """Why nothing is captured at all, where the config says so; else empty."""
    used = nested_of(config).get("use_aux_hidden_state", True)
    if used is True:
        return ""
    return (
        f"{NESTED}.use_aux_hidden_state is {used!r}: the engine captures no states at all; "
        "expected true, or no such key"
    )


def not_ids(found: Any, key: str) -> str:
    """What is said of a value that is no list of ids."""
    return f"expected a list of integers under {key!r}, found {str(found)[:60]}"


def is_ids(value: Any) -> bool:
    """Whether a value is a non-empty list of integers."""
    return isinstance(value, list) and bool(value) and all(type(i) is int for i in value)


def default_taps(layers: int) -> tuple[int, ...]:
    """h[2], h[L // 2], h[L - 3]: EAGLE's reference code, SGLang and vLLM without ids."""
    return (2, layers // 2, layers - 3)


def in_layer_order(taps: tuple[Tap, ...]) -> tuple[int, ...] | str:
    """The taps as integers, or why an engine that captures layer by layer cannot feed them."""
    numbers = tuple(tap for tap in taps if isinstance(tap, int))
    if len(numbers) != len(taps):
        return f"{tap_name('N')}, the final norm's output, is not captured"
    if list(numbers) != sorted(set(numbers)):
        return (
            f"states arrive in the order of the layers, whatever the list's order: "
            f"{taps_name(taps)} cannot be had; reorder the column blocks of fc.weight instead"
        )
    return numbers
