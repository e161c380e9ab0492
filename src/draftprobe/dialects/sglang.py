"""SGLang: which boundaries reach the drafter under a config, and how boundaries are written there.

Ids are read from ``eagle_config`` alone; at top level they are ignored without a word, and then,
as without ids, h[2], h[L // 2], h[L - 3] arrive. What an id means depends on the target family and
on the version. The table was read in wheels from 0.5.4.post2 to 0.5.23, not in every one between:
a ``since`` is the first opened one that has the rule. For the DeepSeek family's change of 2026-05
both neighbours were opened: 0.5.12.post1 has the old rule, 0.5.13 the new one. Later versions are
taken to follow 0.5.23, and say so; earlier ones are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from draftprobe.dialects.reading import NoBoundary, Reading, Unknown, reading
from draftprobe.dialects.version import version_key
from draftprobe.drafter.wiring import Tap, taps_name

NAME, OLDEST, READ = "sglang", "0.5.4.post2", "0.5.23"
"""The span of versions that was read; without a version, the newest is meant."""

ALIASES = {"before-2026-05": "0.5.12.post1"}
"""The last release before pull request 25454 (2026-05-16) changed the DeepSeek family's rule."""

_ADDS_ONE: dict[str, Callable[[Sequence[int], int], bool]] = {
    "id k feeds h[k + 1], -1 the embedding": lambda ids, layers: True,
    "id k feeds h[k], or all feed h[k + 1] if the first id is 1": lambda ids, layers: ids[0] == 1,
    "id k feeds h[k + 1], or all feed h[k] if the largest id is the number of layers": (
        lambda ids, layers: max(ids) != layers
    ),
}
_PLUS_ONE, _FIRST_ONE, _LAST_RAW = _ADDS_ONE

_NO_EMBEDDING = (
    "this version's code fails on h[0] at the first request (it adds a residual that is None in "
    "front of layer 0): the target's model file must be changed there"
)


@dataclass(frozen=True, slots=True)
class _Period:
    """What holds from version ``since`` on; 0..L - 1 can be captured, with these exceptions."""

    since: str
    reading: str
    embedding: bool = True
    last: bool = False
    file: str = ""

    def captured(self, ids: Sequence[int], layers: int) -> tuple[int, ...]:
        """The boundaries that the loop over layers really captures, in its order."""
        add = int(_ADDS_ONE[self.reading](ids, layers))
        asked = {identifier + add for identifier in ids}
        return tuple(sorted(asked & set(range(not self.embedding, layers + self.last))))


_DEEPSEEK = (
    _Period("0.5.4.post2", _PLUS_ONE, embedding=False),
    _Period("0.5.13", _FIRST_ONE, embedding=False),
    _Period("0.5.14", _FIRST_ONE),
)

# file under srt/models: families, periods
_TABLE: dict[str, tuple[tuple[str, ...], tuple[_Period, ...]]] = {
    "apertus": (("apertus",), (_Period(OLDEST, _PLUS_ONE, False), _Period("0.5.22", _PLUS_ONE))),
    "bailing_moe": (("bailing_moe",), (_Period("0.5.9", _PLUS_ONE),)),
    "deepseek_v2": (tuple(sorted(DEEPSEEK - {"kimi_k25"})), _DEEPSEEK),
    "exaone_moe": (
        ("exaone_moe",), (_Period("0.5.9", _PLUS_ONE, False), _Period("0.5.22", _PLUS_ONE)),
    ),
    "gemma4_causal": (("gemma4_text",), (_Period("0.5.22", _PLUS_ONE, last=True),)),
    "glm4_moe": (
        ("glm4_moe",), (_Period("0.5.5", _PLUS_ONE, False), _Period("0.5.21", _PLUS_ONE)),
    ),
    "glm4_moe_lite": (
        ("glm4_moe_lite",), (_Period("0.5.13", _FIRST_ONE, False), _Period("0.5.21", _FIRST_ONE)),
    ),
    "gpt_oss": (
        ("gpt_oss",), (_Period(OLDEST, _PLUS_ONE, False), _Period("0.5.17", _LAST_RAW, last=True)),
    ),
    "kimi_k25": (("kimi_k25",), (replace(_DEEPSEEK[0], since="0.5.10"), *_DEEPSEEK[1:])),
    "llama": (
        ("llama", "phi3"), (_Period(OLDEST, _PLUS_ONE, False), _Period("0.5.22", _PLUS_ONE)),
    ),
    "llama4": (
        ("llama4_text",), (_Period(OLDEST, _PLUS_ONE, False), _Period("0.5.21", _PLUS_ONE)),
    ),
    "longcat_flash": (
        ("longcat_flash",), (_Period("0.5.9", _PLUS_ONE, False), _Period("0.5.21", _PLUS_ONE)),
    ),
    "minimax_m2": (
        ("minimax_m2",), (_Period("0.5.9", _PLUS_ONE, False), _Period("0.5.11", _PLUS_ONE)),
    ),
    "qwen2": (("qwen2",), (_Period(OLDEST, _PLUS_ONE),)),
    "qwen2_5_vl": (("qwen2_5_vl_text",), (_Period(OLDEST, _PLUS_ONE),)),
    "qwen2_moe": (("qwen2_moe",), (_Period(OLDEST, _PLUS_ONE),)),
    "qwen3": (("qwen3",), (_Period(OLDEST, _PLUS_ONE),)),
    "qwen3_moe": (("qwen3_moe",), (_Period(OLDEST, _PLUS_ONE),)),
    "qwen3_next": (("qwen3_next",), (_Period("0.5.9", _PLUS_ONE),)),
    "qwen3_vl": (("qwen3_vl_text",), (_Period("0.5.11", _PLUS_ONE),)),
}  # fmt: skip

INHERITED = {
    "glm_moe_dsa": ("deepseek_v2", "deepseek_v2"),
    "internlm3": ("llama", "llama"),
    "ministral3": ("llama", "ministral3"),
    "mistral": ("llama", "mistral"),
}
"""Families whose class inherits setter and loop: whose, and its own file; opened from 0.5.12.post1
on."""


def _since(periods: tuple[_Period, ...], first: str) -> tuple[_Period, ...]:
    """The periods from a version on."""
    before = [p for p in periods if version_key(p.since) <= version_key(first)]
    return (replace(before[-1], since=first), *periods[len(before) :])


FAMILIES: dict[str, tuple[_Period, ...]] = {
    family: tuple(replace(period, file=file) for period in periods)
    for file, (families, periods) in _TABLE.items()
    for family in families
} | {
    family: tuple(replace(p, file=file) for p in _since(_TABLE[base][1], "0.5.12.post1"))
    for family, (base, file) in INHERITED.items()
}
"""The rule's history by target family."""

_REFUSED = {
    "gemma3_text": NoBoundary(
        "SGLang captures this family's states without the residual (gemma3_causal.py, pull request "
        "39286): only the branch's output arrives, which is no boundary"
    ),
}


def readings(
    config: dict[str, Any], family: str, layers: int, version: str, options: Mapping[str, Any]
) -> tuple[Reading, ...]:
    """One reading: boundaries at fc's slots for a target of ``family`` (a ``model_type``)."""
    ids = nested_of(config).get(KEY)
    found = "default" if ids is None else "nested"
    period = _period(family, version)
    if isinstance(period, str):
        return (reading((NAME, version, ""), period, found, None),)
    taps = switched_off(config) or _fed(period, ids, family, layers, version)
    return (reading((NAME, version, ""), taps, found, rule_of(period, version)),)


def _fed(
    period: _Period, ids: Any, family: str, layers: int, version: str
) -> tuple[int, ...] | str:
    if ids is not None and not is_ids(ids):
        return not_ids(ids, KEY)
    captured = period.captured(ids, layers) if ids else _captured_by_default(layers)
    if len(captured) == (len(ids) if ids else 3):
        return captured
    said = f"ids {ids} in {NESTED}" if ids else "no ids"
    return (
        f"for {said}, SGLang {version} would capture {taps_name(captured) or 'nothing'} of a "
        f"{family} target of {layers} layers, and fail: expected {len(ids) if ids else 3} distinct "
        f"boundaries in h[{int(not period.embedding)}]..h[{layers - 1 + period.last}] "
        f"({rule_of(period, version)})"
    )


def meanings(ids: Sequence[int], family: str, layers: int) -> dict[tuple[int, ...], str]:
    """What these ids have meant on targets of ``family``: boundaries in the list's order, and why.

    One entry where every rule that the family has had agrees; none where no rule is known.
    """
    found: dict[tuple[int, ...], str] = {}
    for period in FAMILIES.get(family, ()):
        add = int(_ADDS_ONE[period.reading](ids, layers))
        because = {
            _PLUS_ONE: "",
            _FIRST_ONE: f" as the first id is {ids[0]}",
            _LAST_RAW: f" as the largest id is {max(ids)} of {layers} layers",
        }[period.reading]
        why = f"id k is h[k{' + 1' * add}] on {family} targets{because}"
        found[tuple(identifier + add for identifier in ids)] = why
    return found


def spell(taps: tuple[Tap, ...], family: str, layers: int, version: str) -> Spelling | Unspellable:
    """How these taps are written for a target of ``family``, or why they cannot be.

    Where several lists feed the same boundaries, the one that holds under every version's rule is
    taken: [1, 29, 57] for h[2], h[30], h[58] on the DeepSeek family.
    """
    period = _period(family, version)
    if isinstance(period, str):
        return Unspellable(period, None)
    rule, numbers = rule_of(period, version), in_layer_order(taps)
    if isinstance(numbers, str):
        return Unspellable(f"SGLang: {numbers}", rule)
    if numbers[-1] >= layers + period.last:
        return Unspellable(
            f"SGLang's loop over the layers never reaches h[{numbers[-1]}] on {family} targets of "
            f"{layers} layers",
            rule,
        )
    patched = replace(period, embedding=True)
    patch = "" if period.embedding or numbers[0] else _NO_EMBEDDING
    for ids in _candidates(numbers, layers):
        if patched.captured(ids, layers) == numbers:
            return Spelling("nested", ids, rule, patch)
    return Unspellable(f"SGLang: no list of ids feeds {taps_name(taps)} on {family} targets", rule)


def rule_of(period: _Period, version: str) -> Rule:
    """The record of where a rule comes from, as it is printed.

    Executed where this version's own setter and loop over the layers were run for this file.
    """
    later = version_key(version) > version_key(READ)
    ran = _LOOP_OF.get(period.file, period.file) in LOOPED.get(version, ())
    return Rule(
        text=period.reading,
        source=f"srt/models/{period.file}.py, since sglang {period.since} or before",
        how="inferred" if later else "executed" if ran else "read",
    )


_LOOP_OF = {"kimi_k25": "deepseek_v2", "ministral3": "llama", "mistral": "llama"}
"""Files that pass the list on, or inherit all of it."""

_OLDER = frozenset({
    "apertus", "bailing_moe", "deepseek_v2", "exaone_moe", "glm4_moe", "gpt_oss", "llama", "llama4",
    "longcat_flash", "minimax_m2", "qwen2", "qwen2_5_vl", "qwen3_vl",
})  # fmt: skip
LOOPED: dict[str, frozenset[str]] = {
    "0.5.12.post1": _OLDER,
    "0.5.13": _OLDER | {"glm4_moe_lite"},
    READ: frozenset({
        "apertus", "bailing_moe", "deepseek_v2", "exaone_moe", "glm4_moe", "glm4_moe_lite",
        "gpt_oss", "llama", "llama4", "minimax_m2", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen3",
        "qwen3_moe", "qwen3_next",
    }),
}  # fmt: skip
"""Files whose own setter and loop tests/test_engine_targets.py runs over stand-ins for the layers,
by version. Of other files the setter alone was run, or nothing: what they capture was read."""

EXECUTED = frozenset(LOOPED)
"""Versions whose wheels the tests open, to run functions of the engine's own."""


def _captured_by_default(layers: int) -> tuple[int, ...]:
    return tuple(sorted({tap for tap in default_taps(layers) if tap > 0}))


def _candidates(taps: tuple[int, ...], layers: int) -> Iterator[tuple[int, ...]]:
    outputs = tuple(tap - 1 for tap in taps)
    yield from (taps, outputs) if taps[-1] == layers else (outputs, taps)
    if len(taps) > 1:  # another first id than 1: the order of capture stays that of the layers
        yield (taps[1], taps[0], *taps[2:])


def _period(family: str, version: str) -> _Period | str:
    """The row of the table, or why there is none."""
    if family in _REFUSED:
        return _REFUSED[family]
    if family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        return Unknown(
            f"SGLang's rule for target family {family!r} is not known here (known: {known})"
        )
    if version_key(version) < version_key(OLDEST):
        return Unknown(f"SGLang {version} is not known here (known: {OLDEST} to {READ})")
    history = FAMILIES[family]
    valid = [p for p in history if version_key(p.since) <= version_key(version)]
    if not valid:
        return Unknown(
            f"SGLang {version} is not known to capture states of {family} targets "
            f"(first seen in {history[0].since})"
        )
    return valid[-1]
