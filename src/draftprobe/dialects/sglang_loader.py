"""SGLang: what becomes of a drafter's folder: keys, tensors, embedding and head. No taps.

Two classes load drafters: ``LlamaForCausalLMEagle3`` skips unknown names without a word,
``Eagle3DeepseekV2ForCausalLM`` (latent attention) with a warning; neither looks whether a parameter
was filled. Read in wheels 0.5.12.post1 to 0.5.19 and 0.5.21 to 0.5.23: ``norm_before_fc`` came with
0.5.17, and ``fc_norm`` and ``norm_output`` of the latent-attention class with 0.5.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from draftprobe.dialects.ids import Rule, nested_of
from draftprobe.dialects.loading import (
    HEADS,
    LATENT,
    LATENT_NORMS,
    Folder,
    Names,
    arrivals,
    compare,
    layer_parameters,
    nested_ids,
    no_map,
    norm_flags,
    pre_fc_norm,
    unread_ids,
    width,
)
from draftprobe.dialects.reading import Effect, Target
from draftprobe.dialects.sglang import EXECUTED, NAME, readings
from draftprobe.dialects.version import version_key
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout

_OPENED = EXECUTED | {f"0.5.{number}" for number in (14, 15, 16, 17, 18, 19, 21, 22)}
_NORM_BEFORE_FC, _LATENT_NORMS = "0.5.17", "0.5.13"

_CHOICE = "the class is chosen by 'architectures'"
_FILES = {
    "LlamaForCausalLMEagle3": "llama_eagle3",
    "Eagle3DeepseekV2ForCausalLM": "kimi_k25_eagle3",
}


def effects(
    checkpoint: Checkpoint, layout: Layout, target: Target, version: str
) -> tuple[Effect, ...]:
    """What SGLang ignores, drops, defaults, replaces or refuses of this folder."""
    folder = Folder(NAME, version, checkpoint.config, checkpoint, target)
    names = checkpoint.config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    file = _FILES.get(name) if isinstance(name, str) else None
    if file is None:
        return (_no_class(folder, name),)
    found = _llama(folder) if file == "llama_eagle3" else _latent(folder)
    rule = _rule(folder, file)
    read = readings(checkpoint.config, target.family, target.layers, version, {})
    return (
        *unread_ids(folder, ("nested",), rule, "SGLang takes ids from eagle_config alone"),
        *arrivals(folder, _slots(folder, file), read, rule),
        *found,
    )


def _rule(folder: Folder, file: str, executed: bool = False) -> Rule:
    version = folder.version
    known = "executed" if executed and version in EXECUTED else "read"
    return Rule(
        text="unknown names are skipped, unfilled parameters stay as they are",
        source=f"sglang srt/models/{file}.py",
        how=known if version in _OPENED else "inferred",
    )


def _no_class(folder: Folder, name: Any) -> Effect:
    if name == "LlamaForCausalLM":
        return folder.effect(
            "ignores tensor",
            "fc.weight",
            "SGLang loads LlamaForCausalLM as a plain Llama model: fc and hidden_norm are dropped "
            "and no target states are read; write LlamaForCausalLMEagle3 under 'architectures'",
            Rule(_CHOICE, "sglang srt/models/llama.py", "inferred"),
        )
    return folder.effect(
        "refuses",
        "architectures",
        f"SGLang has no drafter class for {name!r}: it knows {', '.join(_FILES)}",
        Rule(_CHOICE, "sglang srt/models, EntryClass", "read"),
    )


def _slots(folder: Folder, file: str) -> int:
    ids, top = nested_ids(folder.config), folder.config.get("eagle_aux_hidden_state_layer_ids")
    if file == "kimi_k25_eagle3":
        ids = top if ids is None else ids
    elif count := folder.count("num_aux_hidden_states"):
        return count
    return len(ids) if isinstance(ids, list) and ids else 3


def _llama(folder: Folder) -> Iterator[Effect]:
    rule, tied = _rule(folder, "llama_eagle3", executed=True), folder.flag("tie_word_embeddings")
    since = _has(folder, _NORM_BEFORE_FC)
    top = folder.config.get("norm_before_fc", False)
    asked = bool(nested_of(folder.config).get("norm_before_fc", top))
    whole, per_tap = asked and since, folder.flag("fc_norm") or folder.flag("use_aux_norm")
    slots = _slots(folder, "llama_eagle3")
    parameters = [
        *_common(folder, whole, slots if per_tap else 0),
        *(f"layers.0.{norm}.weight" for norm in ("input_layernorm", "hidden_norm")),
        *([] if tied else ["lm_head.weight"]),
    ]
    for number in range(folder.count("num_hidden_layers") or 1):
        norms = ("post_attention_layernorm",) if number == 0 else ("hidden_norm", _POST)
        parameters += layer_parameters(number, norms, HEADS)
        if folder.flag("attention_bias") or folder.flag("bias"):
            parameters.append(f"layers.{number}.self_attn.o_proj.bias")
    names = compare(folder.checkpoint.tensors, _rename_llama, parameters)
    yield from _keys(folder, rule)
    yield from _names(folder, names, pre_fc_norm(whole, per_tap), rule)
    yield from norm_flags(folder, whole, per_tap, rule)
    yield from width(folder, slots, _hidden_in(folder), rule)
    if asked and not since:
        text = (
            f"SGLang {folder.version} does not know norm_before_fc: it came with {_NORM_BEFORE_FC}"
        )
        yield folder.effect("ignores key", "norm_before_fc", text, rule, "pre_fc_norm", "none")
    refused = not tied and "draft_vocab_size" not in folder.config
    if refused:
        text = (
            "SGLang reads config.draft_vocab_size without a default: an AttributeError where the "
            "key is missing (write null for the target's head)"
        )
        yield folder.effect("refuses", "draft_vocab_size", text, rule)
    yield from _sharing(folder, tied, rule, refused)


_POST = "post_attention_layernorm"


def _latent(folder: Folder) -> Iterator[Effect]:
    rule, tied = _rule(folder, "kimi_k25_eagle3", executed=True), folder.flag("tie_word_embeddings")
    asked, since = (
        folder.flag("fc_norm") or folder.flag("use_aux_norm"),
        _has(folder, _LATENT_NORMS),
    )
    per_tap, slots = asked and since, _slots(folder, "kimi_k25_eagle3")
    layers = folder.count("num_hidden_layers")
    if layers is not None and layers != 1:
        text = f"SGLang's latent-attention drafter has one layer, the config says {layers}"
        yield folder.effect("refuses", "num_hidden_layers", text, rule)
    parameters = [
        *_common(folder, False, slots if per_tap else 0),
        *layer_parameters(0, ("input_layernorm", "hidden_norm", _POST), (*LATENT, *LATENT_NORMS)),
        *([] if tied else ["lm_head.weight"]),
    ]
    names = compare(folder.checkpoint.tensors, _rename_latent, parameters)
    yield from _keys(folder, rule)
    if nested_of(folder.config).get("norm_before_fc", folder.config.get("norm_before_fc")):
        text = "SGLang's latent-attention drafter has no norm in front of fc but fc_norm"
        served = pre_fc_norm(False, per_tap)
        yield folder.effect("ignores key", "norm_before_fc", text, rule, "pre_fc_norm", served)
    yield from _names(folder, names, pre_fc_norm(False, per_tap), rule)
    yield from norm_flags(folder, False, per_tap, rule)
    for key, wire, value in () if since else _LATER:
        if folder.flag(key):
            text = f"SGLang {folder.version} does not know {key} here: it came with {_LATENT_NORMS}"
            yield folder.effect("ignores key", key, text, rule, wire, value)
    yield from width(folder, slots, _hidden_in(folder), rule)
    yield from _sharing(folder, tied, rule)


_LATER = (("fc_norm", "pre_fc_norm", "none"), ("norm_output", "feedback", "pre_norm"))


def _has(folder: Folder, since: str) -> bool:
    return version_key(folder.version) >= version_key(since)


def _common(folder: Folder, whole: bool, per_tap: int) -> list[str]:
    """Parameters outside the layers; the target fills the embedding unless widths differ."""
    return [
        "fc.weight",
        "norm.weight",
        *(["embed_tokens.weight"] if _keeps_embedding(folder) else []),
        *(["fc.bias"] if folder.flag("bias") else []),
        *(["input_norm.weight"] if whole else []),
        *(f"fc_norm.{tap}.weight" for tap in range(per_tap)),
    ]


def _hidden_in(folder: Folder) -> int | None:
    return folder.count("target_hidden_size") or folder.count("hidden_size")


def _keeps_embedding(folder: Folder) -> bool:
    """``set_embed`` leaves the drafter's own table where the widths differ."""
    wide = folder.count("target_hidden_size")
    return wide is not None and wide != folder.count("hidden_size")


def _keys(folder: Folder, rule: Rule) -> Iterator[Effect]:
    if folder.flag("norm_before_residual"):
        yield folder.effect(
            "ignores key",
            "norm_before_residual",
            "SGLang does not read norm_before_residual: the residual stream starts from fc's raw "
            "output",
            rule,
            "residual",
            "raw",
        )


def _names(folder: Folder, names: Names, pre_fc: str | None, rule: Rule) -> Iterator[Effect]:
    for name in names.left:
        norm = re.search(r"(^|\.)(input_norm|fc_norm|aux_norm_\w+)\.", name)
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            continue  # told with what takes their place
        text = f"SGLang has no parameter for {name} under this config and skips it"
        if re.search(r"layers\.[1-9]\d*\.input_layernorm", name):
            text = f"no later layer of SGLang's uses {name}: what it applies there is hidden_norm"
        wired = ("pre_fc_norm", pre_fc) if norm else ()
        yield folder.effect("ignores tensor", name, text, rule, *wired)
    for name in names.unfilled:
        if name.startswith(("input_norm", "fc_norm")) or name == "lm_head.weight":
            continue  # told with the flags, and with the head
        what = "ones" if "norm" in name else "what the memory held"
        text = f"no tensor fills SGLang's {name}: it stays at {what}, and nothing is said"
        yield folder.effect("leaves at initial value", name, text, rule)


def _sharing(folder: Folder, tied: bool, rule: Rule, refused: bool = False) -> Iterator[Effect]:
    own = folder.holds("embed_tokens.weight")
    if own and not _keeps_embedding(folder):
        text = (
            "SGLang replaces the drafter's own embedding by the target's (set_embed), whether or "
            "not they differ"
        )
        yield folder.effect("replaces", own, text, rule, "embedding", "target")
    head, rows = folder.holds("lm_head.weight"), folder.rows("lm_head.weight")
    size = folder.count("draft_vocab_size") or folder.count("vocab_size")
    if tied:
        text = (
            "tie_word_embeddings is true: the embedding table is the head, cut to the draft "
            "vocabulary, and the drafter's own lm_head is dropped"
        )
        yield folder.effect("replaces", head or "lm_head.weight", text, rule, "head", "tied")
    elif refused:
        pass
    elif size is not None and rows not in (None, size):
        text = f"SGLang builds a head of {size} rows, the file has {rows}: loading fails"
        yield folder.effect("refuses", "lm_head.weight", text, rule)
    elif folder.config.get("draft_vocab_size") is None:
        if head:
            text = "without a draft_vocab_size the target's head replaces the drafter's own"
            yield folder.effect("replaces", head, text, rule, "head", "target")
    elif head is None:
        text = "draft_vocab_size is set but no lm_head comes: the head stays uninitialised"
        yield folder.effect("leaves at initial value", "lm_head.weight", text, rule)
    yield from no_map(folder, "SGLang takes draft ids for target ids", rule)


def _rename_llama(name: str) -> str | None:
    for old, new in {
        "midlayer": "layers.0",
        "aux_norm_low": "fc_norm.0",
        "aux_norm_mid": "fc_norm.1",
        "aux_norm_high": "fc_norm.2",
    }.items():
        name = name.replace(old, new)
    if "d2t" in name or "t2d" in name:
        return None
    return name if name.startswith("model.lm_head") else name.removeprefix("model.")


def _rename_latent(name: str) -> str | None:
    if re.search(r"(^|\.)(d2t|t2d)$", name):
        return None
    return re.sub(r"^midlayer\.", "layers.0.", name)
