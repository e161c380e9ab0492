"""SGLang: which boundaries reach the drafter, given a drafter's config and a target family.

Source: sglang wheel 0.5.23, ``spec_aux_hidden_state.py`` and ``set_eagle3_layers_to_capture`` of
``srt/models/*.py``. Ids are read from ``eagle_config`` alone, at top level they are ignored.
"""

from __future__ import annotations

from typing import Any

from draftprobe.dialects.ids import default_taps, layer_ids
from draftprobe.drafter.wiring import Tap
from draftprobe.errors import InputError

PLUS_ONE = frozenset({
    "apertus", "bailing_moe", "exaone_moe", "gemma3_text", "gemma4_text", "glm4_moe", "llama",
    "llama4_text", "longcat_flash", "minimax_m2", "phi3", "qwen2", "qwen2_5_vl_text", "qwen2_moe",
    "qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl_text",
})  # fmt: skip
"""Families whose ids mean the output of a layer: id k delivers h[k + 1], -1 the embedding."""


def delivered(config: dict[str, Any], family: str, layers: int, where: Any) -> tuple[Tap, ...]:
    """Boundaries at fc's slots, in order, for a target of ``family`` (a ``model_type``).

    Raises:
        InputError: the family's rule is not known here, or ids that this engine cannot capture.
    """
    nested = config.get("eagle_config")
    ids = layer_ids(nested, where) if isinstance(nested, dict) else None
    if ids is None:
        return default_taps(layers)
    if family not in PLUS_ONE:
        raise InputError(
            f"{where}: SGLang's rule for target family {family!r} is not known here; "
            f"give the served boundaries outright (known: {', '.join(sorted(PLUS_ONE))})"
        )
    captured = sorted({identifier + 1 for identifier in ids})
    if len(captured) != len(ids) or captured[0] < 0 or captured[-1] >= layers:
        raise InputError(
            f"{where}: SGLang would capture {captured} for ids {ids}: expected {len(ids)} distinct "
            f"boundaries in 0..{layers - 1}"
        )
    return tuple(captured)
