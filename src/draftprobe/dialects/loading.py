"""What is the same in every engine's loader: a folder's facts, and names given against names taken.

A loader renames what the files hold and fills its parameters; what it does with a name that is no
parameter, and with a parameter that no name fills, differs by engine and is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from draftprobe.dialects.ids import KEY, NESTED, Rule, nested_of
from draftprobe.dialects.reading import Did, Effect, Reading, Target
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.wiring import taps_name

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_TITLES = {
    "llamacpp": "llama.cpp",
    "openvino": "OpenVINO",
    "sglang": "SGLang",
    "tensorrt_llm": "TensorRT-LLM",
    "vllm": "vLLM",
}
HEADS = ("q_proj", "k_proj", "v_proj", "o_proj")
LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
LATENT_NORMS = ("q_a_layernorm", "kv_a_layernorm")

MOST = 1000
"""Layers and slots that are gone through one by one: more than any drafter has."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A drafter's folder as one engine at one version meets it.

    Attributes:
        engine, version: whose eyes.
        config: the config as the engine sees it, which may be a part of the file.
        checkpoint: names and shapes.
        target: the target.
    """

    engine: str
    version: str
    config: Mapping[str, Any]
    checkpoint: Checkpoint
    target: Target

    @property
    def title(self) -> str:
        """The engine's name as it is written."""
        return _TITLES[self.engine]

    def effect(
        self,
        did: Did,
        subject: str,
        text: str,
        rule: Rule,
        wire: str | None = None,
        value: Any = None,
    ) -> Effect:
        """One thing this engine does with this folder."""
        return Effect(self.engine, self.version, did, subject, wire, value, text, rule)

    def flag(self, key: str) -> bool:
        """Whether a key is set to something that Python takes for true, as the engines do."""
        return bool(self.config.get(key))

    def count(self, key: str) -> int | None:
        """A positive integer under a key, or None."""
        value = self.config.get(key)
        return value if type(value) is int and value > 0 else None

    def layers(self) -> int:
        """Decoder layers as the config says, one without; at most :data:`MOST`."""
        return min(self.count("num_hidden_layers") or 1, MOST)

    def rows(self, inside: str) -> int | None:
        """Rows of the tensor of that plain name (any prefix), or None if there is none."""
        shape = self._shape(inside)
        return shape[0] if shape else None

    def columns(self, inside: str) -> int | None:
        """Columns of the tensor of that plain name (any prefix), or None."""
        shape = self._shape(inside)
        return shape[1] if len(shape) > 1 else None

    def holds(self, inside: str) -> str | None:
        """The file's name for a plain name such as ``lm_head.weight``, or None."""
        for name in sorted(self.checkpoint.tensors):
            if name == inside or name.endswith(f".{inside}"):
                return name
        return None

    def _shape(self, inside: str) -> tuple[int, ...]:
        name = self.holds(inside)
        return self.checkpoint.tensors[name].shape if name else ()


@dataclass(frozen=True, slots=True)
class Names:
    """What a loader made of the names in the files.

    Attributes:
        left: names in the files that are no parameter, sorted.
        unfilled: parameters that no name fills, sorted.
    """

    left: tuple[str, ...]
    unfilled: tuple[str, ...]


def compare(
    names: Iterable[str], rename: Callable[[str], str | None], parameters: Iterable[str]
) -> Names:
    """Names in files against parameters; ``rename`` gives None for what is left out on purpose.

    Fused projections fill the parameters of their parts.
    """
    wanted, filled, left = set(parameters), set[str](), []
    for name in names:
        inside = rename(name)
        if inside is None:
            continue
        given = set(parts_of(inside))
        if given <= wanted:
            filled |= given
        else:
            left.append(name)
    return Names(tuple(sorted(left)), tuple(sorted(wanted - filled)))


def parts_of(name: str) -> list[str]:
    """The plain parameters that a (perhaps fused) name fills."""
    match = re.fullmatch(r"(.*\.)(qkv_proj|gate_up_proj)\.(weight|bias)", name)
    return [f"{match[1]}{part}.{match[3]}" for part in _FUSED[match[2]]] if match else [name]


def layer_parameters(number: int, norms: Iterable[str], attention: Iterable[str]) -> list[str]:
    """The weights of one decoder layer: its norms, its attention's, and a gated MLP."""
    stem = f"layers.{number}."
    return [
        *(f"{stem}{norm}.weight" for norm in norms),
        *(f"{stem}self_attn.{part}.weight" for part in attention),
        *(f"{stem}mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    ]


def pre_fc_norm(whole: bool, per_tap: bool) -> str | None:
    """The wire's value under two flags; None where both norms are applied, which none can hold."""
    if whole and per_tap:
        return None
    return "whole" if whole else "per_tap" if per_tap else "none"


def norm_flags(folder: Folder, whole: bool, per_tap: bool, rule: Rule) -> list[Effect]:
    """Norms in front of fc whose flag is set although no tensor comes: they stay at ones."""
    served = pre_fc_norm(whole, per_tap)
    return [
        folder.effect(
            "leaves at initial value",
            name,
            f"{folder.title} normalises in front of fc because {flag} is set, but the files hold "
            f"no {name}: its weights stay at ones",
            rule,
            "pre_fc_norm",
            served,
        )
        for name, flag, wanted in (
            ("input_norm.weight", "norm_before_fc", whole),
            ("fc_norm.0.weight", "fc_norm", per_tap),
        )
        if wanted and folder.holds(name) is None
    ]


def width(folder: Folder, slots: int, hidden: int | None, rule: Rule) -> list[Effect]:
    """Told where fc in the files has another width than the one that the engine builds."""
    found = folder.columns("fc.weight")
    if found is None or hidden is None or found == slots * hidden:
        return []
    return [
        folder.effect(
            "refuses",
            "fc.weight",
            f"{folder.title} builds fc for {slots} states of {hidden} = {slots * hidden} "
            f"columns, the file has {found}: loading fails",
            rule,
        )
    ]


def arrivals(folder: Folder, slots: int, readings: Iterable[Reading], rule: Rule) -> list[Effect]:
    """Told where another number of states arrives than fc is built for."""
    return [
        folder.effect(
            "refuses",
            KEY,
            f"{folder.title}{f' ({reading.variant} runner)' if reading.variant else ''} feeds "
            f"{taps_name(reading.taps)} (ids: {reading.found}), but builds fc for {slots} states: "
            "the first request fails",
            rule,
            "taps",
        )
        for reading in readings
        if reading.taps is not None and len(reading.taps) != slots
    ]


def unread_ids(folder: Folder, read: Iterable[str], rule: Rule, text: str) -> list[Effect]:
    """Ids that stand at a level which this engine does not read; ``text`` says what it reads."""
    config = folder.checkpoint.config
    written = {"top": (KEY, config.get(KEY)), "nested": (f"{NESTED}.{KEY}", nested_ids(config))}
    return [
        folder.effect(
            "ignores key",
            key,
            f"{key} = {ids!r} is not read: {text}",
            rule,
            "taps",
        )
        for level, (key, ids) in written.items()
        if ids is not None and level not in read
    ]


def nested_ids(config: Mapping[str, Any]) -> Any:
    """The value under the usual key inside ``eagle_config``, or None."""
    return nested_of(config).get(KEY)


def no_map(folder: Folder, text: str, rule: Rule) -> list[Effect]:
    """Told where the draft vocabulary is smaller than the target's and no ``d2t`` comes."""
    draft = folder.rows("lm_head.weight")
    if folder.holds("d2t") or draft is None or draft == folder.target.vocabulary:
        return []
    return [
        folder.effect(
            "defaults",
            "d2t",
            f"no d2t for {draft} of {folder.target.vocabulary} tokens: {text}",
            rule,
            "vocabulary",
            "identity",
        )
    ]
