"""Target families: from a target's ``config.json`` to the name that the engines' rules go by.

A family is a ``model_type``. Knows which wrappers matter, not what any engine does with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftprobe.drafter.checkpoint import read_json
from draftprobe.errors import InputError

DEEPSEEK = frozenset({"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25"})
"""DeepSeek's decoder under all its names; Kimi-K2.5 is a wrapper around it."""

TRANSPARENT = frozenset({
    "gemma3", "gemma4", "llama4", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl",
    "qwen3_vl_moe",
})  # fmt: skip
"""Wrappers that pass the list on to their language model: its family decides."""


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a target's config (wrappers nest it)."""
    for key in ("text_config", "language_config", "llm_config", "thinker_config"):
        if isinstance(config.get(key), dict):
            return config[key]
    return config


def family_of(config: dict[str, Any], where: Any) -> str:
    """The family of a target's config: the language model's inside a transparent wrapper, else
    the outermost, so that a wrapper with a rule of its own, or without any, is not taken for what
    it wraps.

    Raises:
        InputError: no ``model_type``.
    """
    outer = config.get("model_type")
    inside = isinstance(outer, str) and outer in TRANSPARENT
    family = text_part(config).get("model_type") if inside else outer
    if not isinstance(family, str) or not family:
        raise InputError(f"{where}: expected a name under 'model_type', found {family!r}")
    return family


def read_family(folder: Path) -> str:
    """The family of the target in ``folder``; see :func:`family_of`."""
    where = folder / "config.json"
    return family_of(read_json(where), where)
