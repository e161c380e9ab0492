"""A drafter's config in each training stack's spelling: sizes, rope, flags, ids, and a mark.

Knows no wire's meaning: what a layout holds is in ``holds``. The mark notes the boundaries in our
own terms, so that a converted folder can be read without a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftprobe.dialects.holds import Case, Format
from draftprobe.dialects.ids import KEY, NESTED
from draftprobe.dialects.keys import layer_config, part
from draftprobe.dialects.recognise import MARK
from draftprobe.dialects.rope_keys import rope_members
from draftprobe.drafter.checkpoint import Checkpoint

_KEPT = (
    "max_position_embeddings", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id",
    "attention_dropout", "pretraining_tp", "use_cache", "n_routed_experts", "target_model_type",
)  # fmt: skip
"""Keys that decide no wire and no size, and are taken along as they are."""

_READ = frozenset({
    "architectures", "model_type", "hidden_size", "target_hidden_size", "intermediate_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
    "hidden_act", "vocab_size", "draft_vocab_size", "rope_theta", "rope_scaling",
    "rope_parameters", "partial_rotary_factor", "attention_bias", "mlp_bias", "bias",
    "torch_dtype", "dtype", "tie_word_embeddings", "norm_before_residual", "norm_before_fc",
    "fc_norm", "norm_output", "use_aux_norm", KEY, NESTED, MARK, "speculators_model_type",
    "speculators_config", "speculators_version", "transformer_layer_config", "embed_requires_grad",
    "num_aux_hidden_states", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "_torchspec_version", "transformers_version",
})  # fmt: skip
"""Keys whose content is read and written anew in the other layout's spelling."""

_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def dropped_keys(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Keys of the source's config that no layout takes along, sorted."""
    config = layer_config(checkpoint.config, checkpoint.folder / "config.json")
    return tuple(sorted(set(config) - _READ - set(_KEPT)))


def write_config(
    checkpoint: Checkpoint,
    case: Case,
    to: Format,
    ids: tuple[int, ...],
    source: str,
    verifier: Mapping[str, Any],
) -> dict[str, Any]:
    """The new config: sizes and rope, the stack's own keys, and where it comes from.

    Args:
        checkpoint: the source.
        case: the drafter.
        to: the layout; it holds the drafter.
        ids: layer ids as the layout means them.
        source: whose folder the source is.
        verifier: what is known of the target for speculators' config: ``name_or_path``,
            ``architectures``.
    """
    where = checkpoint.folder / "config.json"
    old = layer_config(checkpoint.config, where)
    sizes = _sizes(old, case, where)
    mark = {"to": to, "from": source, KEY: list(case.wiring.taps)}
    dtype = old.get("torch_dtype") or old.get("dtype")
    dtype = dtype or _DTYPES.get(checkpoint.info(case.layout.sources["fc.weight"].name).dtype)
    common = {"torch_dtype": dtype, "tie_word_embeddings": False, MARK: mark}
    if to == "speculators":
        return _speculators(checkpoint, case, sizes, ids, verifier) | common
    if to == "specforge" and case.wiring.feedback == "post_norm":
        mark["norm_output"] = "feedback"
    return _flat(case, to, sizes, ids) | common


def _sizes(old: Mapping[str, Any], case: Case, where: Any) -> dict[str, Any]:
    """The decoder layer's keys, as the weights say, and its rope."""
    shape = case.shape
    sizes: dict[str, Any] = {key: old[key] for key in _KEPT if key in old}
    sizes |= {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "hidden_act": old.get("hidden_act") or "silu",
        "rms_norm_eps": shape.epsilon,
        "attention_bias": "q_proj" in shape.biases,
        "mlp_bias": "gate_proj" in shape.biases,
    }
    if latent := shape.latent:
        sizes |= {
            "q_lora_rank": latent.query_rank or None,
            "kv_lora_rank": latent.rank,
            "qk_nope_head_dim": latent.plain,
            "qk_rope_head_dim": latent.rotary,
            "v_head_dim": latent.value,
        }
    else:
        sizes["head_dim"] = shape.head_dim
    return sizes | rope_members(case.wiring.rope, old, where)


def _flat(case: Case, to: Format, sizes: dict[str, Any], ids: tuple[int, ...]) -> dict[str, Any]:
    """A config whose sizes stand at top level, with that stack's flags."""
    shape, wiring = case.shape, case.wiring
    latent = shape.latent is not None
    name = "Eagle3DeepseekV2ForCausalLM" if latent else "LlamaForCausalLMEagle3"
    config = {
        "architectures": ["LlamaForCausalLM" if to == "eagle" else name],
        "model_type": "kimi_k2" if latent else "llama",
        **sizes,
        "draft_vocab_size": shape.draft_vocabulary,
    }
    if shape.hidden != shape.target_hidden or to in ("specforge", "torchspec"):
        config["target_hidden_size"] = shape.target_hidden
    if wiring.pre_fc_norm == "per_tap":
        config["fc_norm"] = True
    if wiring.feedback == "post_norm":
        config["norm_output"] = True
    if ids:
        config[NESTED] = {KEY: list(ids), "use_aux_hidden_state": True}
    if to == "torchspec":
        config["num_aux_hidden_states"] = shape.taps
    if to == "modelopt":
        config[NESTED] |= {
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": wiring.head_norm,
            "use_mtp_layernorm": False,
            "next_layer_regular": True,
            "parallel_draft_step": 1,
            "parallel_draft_heads_num_layers": None,
        }
    return config


def _speculators(
    checkpoint: Checkpoint,
    case: Case,
    sizes: dict[str, Any],
    ids: tuple[int, ...],
    verifier: Mapping[str, Any],
) -> dict[str, Any]:
    """The nested config; its proposal and verifier are kept where the source has them."""
    shape, wiring = case.shape, case.wiring
    old = part(checkpoint.config, "speculators_config", checkpoint.folder / "config.json")
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3}
    serving = old or {
        "algorithm": "eagle3",
        "proposal_methods": [proposal],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": None, "architectures": []},
    }
    verifier = (part(serving, "verifier", "speculators_config") or {}) | dict(verifier)
    layer = {"model_type": "qwen3" if shape.qk_norm else "llama", **sizes}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": serving | {"verifier": verifier},
        "transformer_layer_config": layer | {"tie_word_embeddings": False},
        "draft_vocab_size": shape.draft_vocabulary,
        "target_hidden_size": None,
        "norm_before_residual": wiring.residual == "normed",
        "norm_before_fc": wiring.pre_fc_norm == "whole",
        "fc_norm": wiring.pre_fc_norm == "per_tap",
        "norm_output": wiring.feedback == "post_norm",
        KEY: list(ids),
        "embed_requires_grad": False,
    }
