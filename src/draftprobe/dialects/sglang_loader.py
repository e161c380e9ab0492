"""SGLang: what becomes of a drafter's folder: keys, tensors, embedding and head. No taps.

Two classes load drafters: ``LlamaForCausalLMEagle3`` skips unknown names without a word,
``Eagle3DeepseekV2ForCausalLM`` (latent attention) with a warning; neither looks whether a parameter
was filled. Read in wheels 0.5.12.post1 to 0.5.19 and 0.5.21 to 0.5.23: ``norm_before_fc`` came with
0.5.17, what the latent-attention class does is in sglang_latent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from draftprobe.dialects.ids import Rule, nested_of
from draftprobe.dialects.loading import (
    HEADS,
    Folder,
    arrivals,
    compare,
    layer_parameters,
    norm_flags,
    pre_fc_norm,
    unread_ids,
    width,
)
from draftprobe.dialects.odd_keys import refused_values
from draftprobe.dialects.reading import Effect, Target
from draftprobe.dialects.sglang import NAME, readings
from draftprobe.dialects.sglang_common import (
    LATENT_ATTENTION,
    LLAMA,
    POST,
    common,
    has,
    hidden_in,
    ids_rule,
    keys,
    leftovers,
    rule_of,
    sharing,
    slots_of,
    without_fc,
)
from draftprobe.dialects.sglang_latent import latent_effects
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout

_NORM_BEFORE_FC = "0.5.17"
_CHOICE = "the class is chosen by 'architectures'"
_FILES = {
    "LlamaForCausalLMEagle3": LLAMA,
    "Eagle3DeepseekV2ForCausalLM": LATENT_ATTENTION,
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
    found = _llama(folder) if file == LLAMA else latent_effects(folder)
    rule = rule_of(folder, file)
    read = readings(checkpoint.config, target.family, target.layers, version, {})
    return (
        *unread_ids(folder, ("nested",), ids_rule(version), "SGLang takes ids from eagle_config"),
        *arrivals(folder, slots_of(folder, file), read, rule),
        *found,
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


def _llama(folder: Folder) -> Iterator[Effect]:
    rule, tied = rule_of(folder, LLAMA, executed=True), folder.flag("tie_word_embeddings")
    since = has(folder, _NORM_BEFORE_FC)
    top = folder.config.get("norm_before_fc", False)
    asked = bool(nested_of(folder.config).get("norm_before_fc", top))
    whole, per_tap = asked and since, folder.flag("fc_norm") or folder.flag("use_aux_norm")
    slots = slots_of(folder, LLAMA)
    parameters = [
        *common(folder, whole, slots if per_tap else 0),
        *(f"layers.0.{norm}.weight" for norm in ("input_layernorm", "hidden_norm")),
        *([] if tied else ["lm_head.weight"]),
    ]
    for number in range(folder.layers()):
        norms = ("post_attention_layernorm",) if number == 0 else ("hidden_norm", POST)
        parameters += layer_parameters(number, norms, HEADS)
        if folder.flag("attention_bias") or folder.flag("bias"):
            parameters.append(f"layers.{number}.self_attn.o_proj.bias")
    names = compare(folder.checkpoint.tensors, _rename_llama, parameters)
    yield from keys(folder, rule)
    yield from refused_values(folder, rule, ("num_aux_hidden_states",))
    yield from without_fc(folder, slots, rule)
    yield from leftovers(folder, names, pre_fc_norm(whole, per_tap), rule)
    yield from norm_flags(folder, whole, per_tap, rule)
    yield from width(folder, slots, hidden_in(folder), rule)
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
    yield from sharing(folder, tied, rule, refused)


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
