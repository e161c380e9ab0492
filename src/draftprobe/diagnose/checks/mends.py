"""What to write so that engines feed what is wanted, or load the folder at all; from files alone.

Nothing here is proved by replay. Knows the few keys whose absence makes an engine refuse a folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from draftprobe.diagnose.checks.engines import refusals
from draftprobe.diagnose.mend import Wanted, diff_of, feeds, mend
from draftprobe.diagnose.verdict import Mend
from draftprobe.dialects.reading import Target
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.json_text import set_member
from draftprobe.drafter.layout import layer_config, layout_of
from draftprobe.errors import InputError

if TYPE_CHECKING:
    from draftprobe.diagnose.checks.subject import Subject
    from draftprobe.dialects.engines import Engine
    from draftprobe.dialects.reading import Effect

_CONVERT = {"sglang": "specforge", "vllm": "speculators"}
"""Engine -> the layout that its drafter classes load, as ``convert --to`` names it."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be mended.

    Attributes:
        subject: the drafter; text: its config.json.
        wanted: the taps; None where they are not known, so that only loading can be mended.
        effects: what each engine does with the folder.
    """

    subject: Subject
    text: str
    wanted: Wanted | None
    effects: Mapping[Engine, Sequence[Effect]]


def mends(order: Order, engines: Sequence[Engine]) -> list[Mend]:
    """What to do for each engine, in their order: one config for all where there is one."""
    text = order.text
    out: dict[Engine, Mend] = {}
    for engine in engines:
        text = _changed(order, engine, text)[1] or text
    for engine in engines:
        alone, mended = _changed(order, engine, order.text)
        if alone is None:
            continue
        out[engine] = alone
        if mended not in (None, order.text) and _good(order, engine, text):
            name = f"config.{engine.name}.json"
            out[engine] = replace(alone, diff=diff_of(order.text, text, name))
    return list(out.values())


def refusal(folder: Path, engine: Engine, family: str, layers: int) -> str:
    """Why an engine does not load a drafter's folder whatever its taps; empty where it does, and
    where the folder cannot be opened.
    """
    try:
        checkpoint = open_checkpoint(folder)
        layout = layout_of(checkpoint)
    except InputError:
        return ""
    config = layer_config(checkpoint.config)
    sizes = [config.get(key) for key in ("target_hidden_size", "hidden_size", "vocab_size")]
    wide, hidden, vocabulary = (n if type(n) is int and n > 0 else 0 for n in sizes)
    target = Target(family, layers, wide or hidden, vocabulary, {}, "")
    found = [
        effect.text
        for effect in refusals(engine.effects(checkpoint, layout, target))
        if effect.subject in _BY_KEY
    ]
    return found[0] if found and engine.age != "older" else ""


_BY_KEY = ("architectures", "draft_vocab_size", "fc.weight", "model_type")
"""Subjects of refusals that no size of the target decides."""


def _changed(order: Order, engine: Engine, text: str) -> tuple[Mend | None, str | None]:
    """The mend for one engine on a config, and that config mended; None for none."""
    who, note = (engine.name, engine.version), ""
    if refusals(order.effects[engine]) and engine.age != "older":
        loading = _loadable(order, engine, text)
        if loading is None:
            return Mend(*who, False, "", _convert(order, engine)), None
        text, note = loading, "makes it load"
    if order.wanted is None:
        diff = diff_of(order.text, text, f"config.{engine.name}.json")
        return (Mend(*who, False, diff, note), text) if note else (None, None)
    found = mend(text, order.wanted, engine, order.text)
    told = f"{note}; {found.mend.note}" if note else found.mend.note
    diff = found.mend.diff
    if found.text is None and note:
        diff = diff_of(order.text, text, f"config.{engine.name}.json")
    return replace(found.mend, note=told, diff=diff), found.text or (text if note else None)


def _good(order: Order, engine: Engine, text: str) -> bool:
    """Whether an engine loads the folder under this config, and feeds what is wanted."""
    if _refused(order, engine, text):
        return False
    return order.wanted is None or feeds(json.loads(text), order.wanted, engine)


def _refused(order: Order, engine: Engine, text: str) -> bool:
    subject = order.subject
    assert subject.target is not None
    checkpoint = replace(subject.checkpoint, config=json.loads(text))
    return bool(refusals(engine.effects(checkpoint, subject.layout, subject.target)))


def _loadable(order: Order, engine: Engine, text: str) -> str | None:
    """The config with what SGLang and vLLM look for, where that is all they miss."""
    head = order.subject.shape("lm_head.weight")
    config = json.loads(text)
    if "transformer_layer_config" in config:  # another form altogether
        return None
    if "draft_vocab_size" not in config:
        text = set_member(text, ("draft_vocab_size",), head[0] if head else None)
    if not _refused(order, engine, text):
        return text
    if order.subject.layout.attention == "heads":
        text = set_member(text, ("architectures",), ["LlamaForCausalLMEagle3"])
    return None if _refused(order, engine, text) else text


def _convert(order: Order, engine: Engine) -> str:
    """What is said where no change of the config makes the engine load the folder."""
    to = _CONVERT.get(engine.name)
    if to is None or order.subject.trainer == to:
        return "refused: no change of config.json alone makes it load (see the finding)"
    folder, target = order.subject.checkpoint.folder, order.subject.target
    where = f" --target {target.where}" if target else ""
    return f"convert first: draftprobe convert {folder} --to {to}{where} --out {folder.name}-{to}"
