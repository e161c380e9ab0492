"""A drafter's config, value by value: what a key must hold before anybody acts on it.

Knows no stack. A value of the wrong kind is an input error; an absent key is ``None``.
"""

from __future__ import annotations

import math
from typing import Any

from draftprobe.drafter import layout
from draftprobe.errors import InputError

LAYER = "transformer_layer_config"
"""Where speculators keeps the decoder layer's sizes and rope."""

_LARGEST = 2**63


def layer_config(config: dict[str, Any], where: Any) -> dict[str, Any]:
    """The config with the members of ``transformer_layer_config``, which stand before the rest.

    Raises:
        InputError: that key holds something other than an object.
    """
    part(config, LAYER, where)
    return layout.layer_config(config)


def part(config: dict[str, Any], key: str, where: Any) -> dict[str, Any] | None:
    """The object under ``key``; ``None`` where it is absent or null."""
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise InputError(f"{where}: expected an object under {key!r}, found {_shown(value)}")
    return value


def flag(config: dict[str, Any], key: str, where: Any) -> bool | None:
    """True or false; ``None`` where the key is absent or null."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise InputError(f"{where}: expected true or false under {key!r}, found {_shown(value)}")
    return value


def number(config: dict[str, Any], key: str, where: Any) -> float | None:
    """A finite number; ``None`` where the key is absent or null."""
    value = config.get(key)
    if value is None:
        return None
    if not is_number(value):
        raise InputError(f"{where}: expected a finite number under {key!r}, found {_shown(value)}")
    return float(value)


def count(config: dict[str, Any], key: str, where: Any) -> int | None:
    """A positive integer; ``None`` where the key is absent or null."""
    value = config.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 < value < _LARGEST:
        raise InputError(
            f"{where}: expected a positive integer under {key!r}, found {_shown(value)}"
        )
    return value


def is_number(value: Any) -> bool:
    """A finite number that is neither a truth value nor beyond what any size can be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -_LARGEST < value < _LARGEST and math.isfinite(value)


def _shown(value: Any) -> str:
    """A stranger's value, cut to what a message can hold (a huge integer has no decimal text)."""
    if isinstance(value, int) and not -_LARGEST < value < _LARGEST:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value) if not isinstance(value, dict | list) else type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."
