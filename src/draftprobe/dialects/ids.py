"""The key that most stacks write layer ids under, and the triple that most of them default to."""

from __future__ import annotations

from typing import Any

from draftprobe.drafter.wiring import Tap
from draftprobe.errors import InputError

KEY = "eagle_aux_hidden_state_layer_ids"


def layer_ids(config: dict[str, Any], where: Any) -> list[int] | None:
    """The list under :data:`KEY`, or None if it is absent; InputError if it is malformed."""
    ids = config.get(KEY)
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        raise InputError(f"{where}: expected a list of integers under {KEY!r}, found {ids!r}")
    return ids


def default_taps(layers: int) -> tuple[Tap, ...]:
    """h[2], h[L // 2], h[L - 3]: EAGLE's reference code, SGLang and vLLM without ids."""
    return (2, layers // 2, layers - 3)
