"""TensorRT-LLM (PyTorch flow): which boundaries reach the drafter, and how boundaries are written.

The drafter's config is not asked: ids are the server's option ``eagle3_layers_to_capture``, a set.
Id k feeds h[k + 1], in ascending order; without the option h[2], h[L // 2], h[L - 3], for targets
of more than five layers. -1 is the final norm's output, and its slot differs between the files
read. Whether some release fills the option from the drafter's config is not known; none of the
files read does. That a family's layers capture, as branch plus residual at their end, is known of
the model files that were read alone. Read at single commits, not at a release; nothing was
executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from draftprobe.dialects.ids import Rule, Spelling, Unspellable, default_taps, in_layer_order
from draftprobe.dialects.reading import Reading, Unknown, reading
from draftprobe.drafter.wiring import Tap, taps_name

NAME, READ = "tensorrt_llm", "001e6700"
"""The commit of ``eagle3.py`` that was read; releases are not told apart."""

OPTION = "eagle3_layers_to_capture"

RULE = Rule(
    text=f"id k of the option {OPTION} feeds h[k + 1], ascending; ids in the drafter's config are "
    "not read",
    source="tensorrt_llm/_torch/speculative/eagle3.py at 001e6700 and f933a608, llm_args.py",
    how="read",
)

_FAMILIES = {
    "deepseek_v3": "modeling_deepseekv3.py",
    "deepseek_v32": "modeling_deepseekv3.py",
    "gpt_oss": "modeling_gpt_oss.py",
    "kimi_k2": "modeling_deepseekv3.py",
    "kimi_k25": "modeling_deepseekv3.py",
    "llama": "modeling_llama.py",
    "qwen3": "modeling_qwen3.py",
    "qwen3_moe": "modeling_qwen3_moe.py",
}
"""Families whose model file was read, under ``tensorrt_llm/_torch/models``; Kimi-K2.5's wrapper is
a subclass that passes everything on."""

_FINAL = Unknown(
    "-1 is the final norm's output, and its slot is not certain: the two-model code moves it to "
    "the last slot (f933a608), the one-model code leaves it in the first (001e6700)"
)


def readings(
    config: dict[str, Any], family: str, layers: int, version: str, options: Mapping[str, Any]
) -> tuple[Reading, ...]:
    """One reading, of a family whose model file was read."""
    ids = options.get(OPTION)
    found = "default" if ids is None else OPTION
    taps = _unknown(family) or _captured(ids, layers)
    return (reading((NAME, version, ""), taps, found, _rule(family)),)


def spell(taps: tuple[Tap, ...], family: str, layers: int, version: str) -> Spelling | Unspellable:
    """The option's value, or why there is none: h[0] and any order but the layers' are not had."""
    unknown = _unknown(family)
    if unknown:
        return Unspellable(unknown, RULE)
    if "N" in taps:
        return Unspellable(f"TensorRT-LLM: {_FINAL}", RULE)
    numbers = in_layer_order(taps)
    if isinstance(numbers, str):
        return Unspellable(f"TensorRT-LLM: {numbers}", RULE)
    if numbers[0] == 0:
        return Unspellable(
            "TensorRT-LLM cannot feed h[0], the embedding output: id k is the output of layer k, "
            "and -1 is the final norm's",
            RULE,
        )
    if numbers[-1] > layers:
        return Unspellable(f"h[{numbers[-1]}] does not exist on a target of {layers} layers", RULE)
    ids = tuple(tap - 1 for tap in numbers)
    text = (
        f"set {OPTION}={{{', '.join(map(str, ids))}}} in the server's speculative config; nothing "
        "in the drafter's config does it"
    )
    return Spelling("option", ids, RULE, name=OPTION, text=text)


def _rule(family: str) -> Rule:
    file = f", models/{_FAMILIES[family]}" if family in _FAMILIES else ""
    return replace(RULE, source=RULE.source + file)


def _unknown(family: str) -> str:
    if family in _FAMILIES:
        return ""
    known = ", ".join(sorted(_FAMILIES))
    return Unknown(f"TensorRT-LLM is not known for {family} targets here (known: {known})")


def _captured(ids: Any, layers: int) -> tuple[Tap, ...] | str:
    if ids is None:
        return _captured_by_default(layers)
    if not isinstance(ids, list | tuple | set | frozenset) or not all(type(i) is int for i in ids):
        return f"expected integers for {OPTION}, found {ids!r}"
    if -1 in ids:
        return _FINAL
    taps = tuple(sorted({identifier + 1 for identifier in ids}))
    if not taps or taps[0] < 1 or taps[-1] > layers:
        fed = taps_name(taps) or "nothing"
        return f"{fed}: outside h[1]..h[{layers}] a slot would stay unfilled"
    return taps


def _captured_by_default(layers: int) -> tuple[Tap, ...] | str:
    taps = default_taps(layers)
    if layers <= 5:
        return f"fails: 'Not enough hidden layers for default EAGLE3 capture', found {layers}"
    if len(set(taps)) != 3:
        return f"{taps_name(taps)}: the last slot would stay unfilled"
    return taps
