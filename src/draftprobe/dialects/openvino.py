"""OpenVINO GenAI: which boundaries reach the drafter, and how boundaries are written there.

The drafter's ``config.json`` is not asked: ids are ``hidden_layers_list``, in the runtime info of
the drafter's model file or a property of the pipeline. Id k feeds h[k + 1]: the residual addition
at the end of layer k. The additions are collected in the order of the target's graph, so the list's
order has no effect. Without a list, 2, L // 2, L - 3 are taken as such ids: one layer above what
EAGLE's reference, SGLang and vLLM feed. Measured on a Llama target at 2026.4.1 (the three nodes
equal transformers' hidden states 3, 16, 28 of 30 layers); other releases were not opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftprobe.dialects.ids import Rule, Spelling, Unspellable, in_layer_order
from draftprobe.dialects.loading import Folder, unread_ids, width
from draftprobe.dialects.reading import Effect, Reading, Target, Unknown, reading
from draftprobe.dialects.version import version_key
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout
from draftprobe.drafter.wiring import Tap, taps_name

NAME, READ = "openvino", "2026.4.1"

OPTION = "hidden_layers_list"

_MEASURED = frozenset({"llama"})
_DENSE = _MEASURED | {"mistral", "qwen2", "qwen2_5_vl_text", "qwen3", "qwen3_vl_text"}
"""Families whose layers end in the addition that is looked for: a matrix product of a gated
activation is added last. Read in their transformers modules, not in exported graphs."""


def rule_of(family: str, version: str) -> Rule:
    """The record of where the rule comes from, as it is printed."""
    measured = family in _MEASURED and version_key(version) == version_key(READ)
    return Rule(
        text=f"id k of {OPTION} feeds h[k + 1], in the order of the layers; ids in config.json are "
        "not read",
        source="openvino.genai src/cpp/src/speculative_decoding/eagle3_model_transforms.cpp at "
        "015a9936, wheel 2026.4.1",
        how="read" if measured else "inferred",
    )


def readings(
    config: dict[str, Any], family: str, layers: int, version: str, options: Mapping[str, Any]
) -> tuple[Reading, ...]:
    """One reading."""
    rule, ids = rule_of(family, version), options.get(OPTION)
    found = "default" if ids is None else OPTION
    taps = _unknown(family, version) or _captured(ids, layers)
    return (reading((NAME, version, ""), taps, found, rule),)


def spell(taps: tuple[Tap, ...], family: str, layers: int, version: str) -> Spelling | Unspellable:
    """The list, or why there is none: exactly three boundaries above h[0], in ascending order."""
    rule = rule_of(family, version)
    numbers = in_layer_order(taps)
    if isinstance(numbers, str):
        return Unspellable(f"OpenVINO: {numbers}", rule)
    ids = tuple(tap - 1 for tap in numbers)
    fed = _captured(list(ids), layers)
    if isinstance(fed, str):  # whatever the family
        return Unspellable(f"OpenVINO: {fed}", rule)
    unknown = _unknown(family, version)
    if unknown:
        return Unspellable(unknown, rule)
    text = (
        f"set {OPTION} to {list(ids)} in the runtime info of the drafter's model "
        f'(model.set_rt_info({list(ids)}, ["{OPTION}"]) before openvino.save_model)'
    )
    return Spelling("option", ids, rule, name=OPTION, text=text)


def _unknown(family: str, version: str) -> str:
    if version_key(version) < version_key(READ):
        return Unknown(f"OpenVINO GenAI {version} is not known here (known: {READ})")
    if family not in _DENSE:
        return Unknown(
            f"OpenVINO GenAI is not known for {family} targets: the node that is looked for, an "
            "addition whose second input is a matrix product of a gated activation, ends no layer "
            "of a mixture of experts; where none is found, no states arrive at all"
        )
    return ""


def _captured(ids: Any, layers: int) -> tuple[Tap, ...] | str:
    if ids is None:
        if layers < 10:
            return f"fails without {OPTION} on a target of {layers} layers: it needs 10"
        ids = [2, layers // 2, layers - 3]
    if not isinstance(ids, list | tuple) or not all(type(i) is int for i in ids):
        return f"expected a list of integers for {OPTION}, found {ids!r}"
    if len(ids) != 3:
        return f"fails: exactly three layers are expected, found {len(ids)}"
    taps = tuple(sorted({i + 1 for i in ids if 0 <= i < layers}))
    if len(taps) != 3:
        return (
            f"fails: would find {taps_name(taps) or 'nothing'} of three; expected distinct ids in "
            f"0..{layers - 1} (h[0] is no layer's output)"
        )
    return taps


def effects(
    checkpoint: Checkpoint, layout: Layout, target: Target, version: str
) -> tuple[Effect, ...]:
    """What OpenVINO ignores or replaces of this folder, as far as it is known.

    The folder is exported by optimum-intel first, whose drafter class was not read: what becomes of
    norms, biases and flags there is not known, and not told.
    """
    folder = Folder(NAME, version, checkpoint.config, checkpoint, target)
    rule = Rule(
        text="the target's embedding is copied into the drafter's model",
        source="openvino.genai eagle3_model_transforms.cpp at 015a9936, share_vocabulary",
        how="inferred",
    )
    read = rule_of(target.family, version)
    found = unread_ids(folder, (), read, f"OpenVINO takes ids from {OPTION}")
    own, wide = folder.holds("embed_tokens.weight"), folder.count("target_hidden_size")
    if own and wide in (None, folder.count("hidden_size")):
        text = "OpenVINO copies the target's embedding over the drafter's own"
        found.append(folder.effect("replaces", own, text, rule, "embedding", "target"))
    hidden = folder.count("target_hidden_size") or folder.count("hidden_size")
    return (*found, *width(folder, 3, hidden, read))
