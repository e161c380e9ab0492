"""llama.cpp: which boundaries reach the drafter, and how boundaries are written there.

The converter writes the GGUF key ``eagle3.extract_layers`` as 2, L // 2, L - 3 of the target,
whatever the drafter's config says. Id k feeds the input of layer k, h[k], in the order of the
array; exactly three. Read at commit 0274f0fc, and at 069be0ae the graphs of four target families,
which hand out a layer's input; of other families nothing is known. Nothing was executed.
A later version of ``common/speculative.cpp`` also takes L, for the state before the final norm, and
one of ``eagle3.cpp`` takes any number of entries; which builds have them is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftprobe.dialects.ids import Rule, Spelling, Unspellable, default_taps
from draftprobe.dialects.reading import Reading, Unknown, reading
from draftprobe.drafter.wiring import Tap, taps_name

NAME, READ = "llamacpp", "0274f0fc"
"""The commit of the files that were read; builds are not told apart."""

OPTION = "eagle3.extract_layers"


_GRAPHS = {
    "gpt_oss": "openai-moe.cpp",
    "llama": "llama.cpp",
    "qwen3": "qwen3.cpp",
    "qwen3_moe": "qwen3moe.cpp",
}
"""Families whose graph was read, under ``src/models``."""


def _rule(written: bool, family: str) -> Rule:
    graph = f", src/models/{_GRAPHS[family]} at 069be0ae" if family in _GRAPHS else ""
    return Rule(
        text=f"id k of the GGUF key {OPTION} feeds h[k], in the array's order; the converter "
        "writes 2, L // 2, L - 3 and reads no ids",
        source=f"conversion/llama.py, src/models/eagle3.cpp at {READ}{graph}",
        how="inferred" if written else "read",
    )


def readings(
    config: dict[str, Any], family: str, layers: int, version: str, options: Mapping[str, Any]
) -> tuple[Reading, ...]:
    """One reading, of a family whose graph was read."""
    ids = options.get(OPTION)
    found, rule = ("default" if ids is None else OPTION), _rule(ids is not None, family)
    taps = _unknown(family) or _fed(list(default_taps(layers)) if ids is None else ids, layers)
    return (reading((NAME, version, ""), taps, found, rule),)


def spell(taps: tuple[Tap, ...], family: str, layers: int, version: str) -> Spelling | Unspellable:
    """The key's value, or why there is none: any three of h[0]..h[L - 1], in any order."""
    rule, unknown = _rule(True, family), _unknown(family)
    if unknown:
        return Unspellable(unknown, rule)
    fed = _fed(list(taps), layers)
    if isinstance(fed, str):
        return Unspellable(f"llama.cpp: {fed}", rule)
    ids = tuple(tap for tap in taps if isinstance(tap, int))
    text = (
        f"write {OPTION} = {list(ids)} into the drafter's GGUF (gguf-py can set it); the "
        "converter does not read it from any config"
    )
    return Spelling("option", ids, rule, name=OPTION, text=text)


def _unknown(family: str) -> str:
    if family in _GRAPHS:
        return ""
    known = ", ".join(sorted(_GRAPHS))
    return Unknown(f"llama.cpp is not known for {family} targets here (known: {known})")


def _fed(ids: Any, layers: int) -> tuple[Tap, ...] | str:
    if isinstance(ids, list | tuple) and "N" in ids:
        return "h[N], the final norm's output, is no layer's input"
    if not isinstance(ids, list | tuple) or not all(type(i) is int for i in ids):
        return f"expected integers under {OPTION}, found {ids!r}"
    if len(ids) != 3:
        return f"fails: exactly 3 entries are expected in {OPTION}, found {len(ids)}"
    if not all(0 <= i < layers for i in ids):
        return f"{taps_name(ids)}: only the inputs of layers 0..{layers - 1} can be asked for"
    return tuple(ids)
