"""For each effect of an engine on a folder the smallest folder that has it, and one that has none.

Expected effects are counted by hand from each loader's source.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draftprobe.dialects.engines import ENGINES
from draftprobe.dialects.ids import KEY

H, V, D, HEADS, KV, SIZE, MLP, LAYERS = 32, 64, 16, 4, 2, 8, 48, 8
GONE = object()

TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": H,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": SIZE,
    "hidden_act": "silu",
    "intermediate_size": MLP,
    "vocab_size": V,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
CONFIG = TARGET | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": D,
}


def layer(stem: str, width: int, norms: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """A decoder layer whose attention reads ``width`` columns."""
    return {
        **{f"{stem}.{norm}.weight": (H,) for norm in norms},
        f"{stem}.self_attn.q_proj.weight": (HEADS * SIZE, width),
        f"{stem}.self_attn.k_proj.weight": (KV * SIZE, width),
        f"{stem}.self_attn.v_proj.weight": (KV * SIZE, width),
        f"{stem}.self_attn.o_proj.weight": (H, HEADS * SIZE),
        f"{stem}.mlp.gate_proj.weight": (MLP, H),
        f"{stem}.mlp.up_proj.weight": (MLP, H),
        f"{stem}.mlp.down_proj.weight": (H, MLP),
    }


POST = "post_attention_layernorm"
FIRST = ("input_layernorm", "hidden_norm", POST)
OUTSIDE: dict[str, tuple[int, ...]] = {
    "fc.weight": (H, 3 * H),
    "norm.weight": (H,),
    "lm_head.weight": (D, H),
    "d2t": (D,),
    "t2d": (V,),
}
TENSORS = OUTSIDE | layer("midlayer", 2 * H, FIRST)
TWO = OUTSIDE | layer("layers.0", 2 * H, FIRST)
INPUT_NORM = {"input_norm.weight": (3 * H,)}
FC_NORMS = {f"fc_norm.{tap}.weight": (H,) for tap in range(3)}
QKV_BIAS = {
    f"midlayer.self_attn.{part}_proj.bias": (rows * SIZE,)
    for part, rows in (("q", HEADS), ("k", KV), ("v", KV))
}
QK_NORM = {f"midlayer.self_attn.{part}_norm.weight": (SIZE,) for part in "qk"}
SPECULATORS = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "speculators_config": {
        "algorithm": "eagle3",
        "proposal_methods": [{"speculative_tokens": 1}],
        "verifier": {"name_or_path": "x"},
    },
    "transformer_layer_config": TARGET | {"num_hidden_layers": 1},
    "draft_vocab_size": D,
    "norm_before_residual": False,
}
SPOKEN = OUTSIDE | layer("layers.0", 2 * H, FIRST)
LATENT_CONFIG = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "num_key_value_heads": HEADS,
    "head_dim": GONE,
}
LATENT = OUTSIDE | {
    "layers.0.self_attn.q_a_proj.weight": (24, 2 * H),
    "layers.0.self_attn.q_a_layernorm.weight": (24,),
    "layers.0.self_attn.q_b_proj.weight": (HEADS * 12, 24),
    "layers.0.self_attn.kv_a_proj_with_mqa.weight": (20, 2 * H),
    "layers.0.self_attn.kv_a_layernorm.weight": (16,),
    "layers.0.self_attn.kv_b_proj.weight": (HEADS * 16, 16),
    "layers.0.self_attn.o_proj.weight": (H, HEADS * 8),
    **{f"layers.0.{norm}.weight": (H,) for norm in FIRST},
    **{f"layers.0.mlp.{part}_proj.weight": (MLP, H) for part in ("gate", "up")},
    "layers.0.mlp.down_proj.weight": (H, MLP),
}


@dataclass(frozen=True)
class Case:
    """A folder, and the effects that it must have: did, subject, wire, value, by engine."""

    config: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    effects: dict[str, set[tuple[Any, ...]]] = field(default_factory=dict)
    base: dict[str, tuple[int, ...]] = field(default_factory=lambda: TENSORS)
    whole_config: bool = False
    hidden: int = H

    def write(self, folder: Path) -> Path:
        """The folder, each tensor full of a number of its own."""
        folder.mkdir(parents=True)
        config = self.config if self.whole_config else CONFIG | self.config
        config = {key: value for key, value in config.items() if value is not GONE}
        (folder / "config.json").write_text(json.dumps(config))
        shapes = {k: v for k, v in (self.base | self.tensors).items() if v is not GONE}
        tensors = {
            name: torch.full(shape, 100.0 + number)
            for number, (name, shape) in enumerate(sorted(shapes.items()))
        }
        for name in tensors:
            if name.endswith("d2t"):
                tensors[name] = torch.arange(tensors[name].shape[0]) * 3
            if name.endswith("t2d"):
                tensors[name] = torch.zeros(tensors[name].shape, dtype=torch.bool)
        save_file(tensors, folder / "model.safetensors")
        return folder


def ignored(*names: str, wire: str | None = None, value: Any = None) -> set[tuple[Any, ...]]:
    return {("ignores tensor", name, wire, value) for name in names}


def key(name: str, wire: str | None = None, value: Any = None) -> set[tuple[Any, ...]]:
    return {("ignores key", name, wire, value)}


def refused(*names: str, wire: str | None = None) -> set[tuple[Any, ...]]:
    return {("refuses", name, wire, None) for name in names}


def left(*names: str, wire: str | None = None, value: Any = None) -> set[tuple[Any, ...]]:
    return {("leaves at initial value", name, wire, value) for name in names}


def replaced(name: str, wire: str, value: str) -> set[tuple[Any, ...]]:
    return {("replaces", name, wire, value)}


def default(name: str, wire: str, value: str) -> set[tuple[Any, ...]]:
    return {("defaults", name, wire, value)}


SGLANG = ("sglang", "sglang@0.5.13")
NESTED_KEY = f"eagle_config.{KEY}"
NO_NORM = {"wire": "pre_fc_norm", "value": "none"}
ID = ("vocabulary", "identity")
OTHER_FORM = {("is not known", "transformer_layer_config", None, None)}
"""What TensorRT-LLM makes of speculators' form was not read."""

CASES = {
    "clean": Case(),
    "clean, full vocabulary": Case(
        {"draft_vocab_size": V}, {"lm_head.weight": (V, H), "d2t": GONE, "t2d": GONE}
    ),
    "residual": Case(
        {"norm_before_residual": True},
        effects={
            name: key("norm_before_residual", "residual", "raw")
            for name in ("sglang", "sglang@0.5.13", "tensorrt_llm")
        },
    ),
    "feedback": Case(
        {"norm_output": True}, effects={"llamacpp": key("norm_output", "feedback", "pre_norm")}
    ),
    "whole norm, flag at top level": Case(
        {"norm_before_fc": True},
        INPUT_NORM,
        {
            "sglang@0.5.13": key("norm_before_fc", **NO_NORM) | ignored(*INPUT_NORM, **NO_NORM),
            "tensorrt_llm": key("norm_before_fc", **NO_NORM) | ignored(*INPUT_NORM, **NO_NORM),
            "llamacpp": refused(*INPUT_NORM),
        },
    ),
    "whole norm, flag nested": Case(
        {"eagle_config": {"norm_before_fc": True}},
        INPUT_NORM,
        {
            "sglang@0.5.13": key("norm_before_fc", **NO_NORM) | ignored(*INPUT_NORM, **NO_NORM),
            "llamacpp": refused(*INPUT_NORM),
        },
    ),
    "whole norm without a flag": Case(
        {},
        INPUT_NORM,
        {
            **{
                name: ignored(*INPUT_NORM, **NO_NORM)
                for name in ("sglang", "sglang@0.5.13", "vllm", "tensorrt_llm")
            },
            "llamacpp": refused(*INPUT_NORM),
        },
    ),
    "flag without the whole norm": Case(
        {"norm_before_fc": True},
        effects={
            "sglang": left(*INPUT_NORM, wire="pre_fc_norm", value="whole"),
            "vllm": left(*INPUT_NORM, wire="pre_fc_norm", value="whole"),
            "sglang@0.5.13": key("norm_before_fc", **NO_NORM),
            "tensorrt_llm": key("norm_before_fc", **NO_NORM),
        },
    ),
    "norms per tap": Case({"fc_norm": True}, FC_NORMS, {"llamacpp": refused(*FC_NORMS)}),
    "norms per tap without a flag": Case(
        {},
        FC_NORMS,
        {
            **{
                name: ignored(*FC_NORMS, **NO_NORM)
                for name in ("sglang", "sglang@0.5.13", "tensorrt_llm")
            },
            "vllm": refused(*FC_NORMS),
            "llamacpp": refused(*FC_NORMS),
        },
    ),
    "flag without norms per tap": Case(
        {"fc_norm": True},
        effects={
            **{
                name: left("fc_norm.0.weight", wire="pre_fc_norm", value="per_tap")
                for name in ("sglang", "sglang@0.5.13", "vllm")
            },
            "tensorrt_llm": refused(*FC_NORMS),
        },
    ),
    "biases": Case(
        {},
        QKV_BIAS,
        {
            **{
                name: ignored(*QKV_BIAS)
                for name in ("sglang", "sglang@0.5.13", "vllm", "tensorrt_llm")
            },
            "llamacpp": refused(*QKV_BIAS),
        },
    ),
    "biases with their flag": Case(
        {"attention_bias": True},
        QKV_BIAS,
        {
            **{
                name: ignored(*QKV_BIAS) | left("layers.0.self_attn.o_proj.bias")
                for name in ("sglang", "sglang@0.5.13")
            },
            "vllm": left("layers.0.self_attn.o_proj.bias"),
            "tensorrt_llm": refused("layers.0.self_attn.o_proj.bias"),
            "llamacpp": refused(*QKV_BIAS),
        },
    ),
    "bias of fc": Case(
        {},
        {"fc.bias": (H,)},
        {
            **{
                name: ignored("fc.bias")
                for name in ("sglang", "sglang@0.5.13", "vllm", "tensorrt_llm")
            },
            "llamacpp": refused("fc.bias"),
        },
    ),
    "an unknown name": Case(
        {},
        {"extra.weight": (H,)},
        {
            **{
                name: ignored("extra.weight")
                for name in ("sglang", "sglang@0.5.13", "tensorrt_llm")
            },
            "vllm": refused("extra.weight"),
            "llamacpp": refused("extra.weight"),
        },
    ),
    "norms of queries and keys": Case(
        {},
        QK_NORM,
        {
            **{name: ignored(*QK_NORM) for name in ("sglang", "sglang@0.5.13", "tensorrt_llm")},
            "vllm": refused(*QK_NORM),
            "llamacpp": refused(*QK_NORM),
        },
    ),
    "a norm is missing": Case(
        {},
        {"midlayer.hidden_norm.weight": GONE},
        {
            **{
                name: left("layers.0.hidden_norm.weight")
                for name in ("sglang", "sglang@0.5.13", "vllm")
            },
            "tensorrt_llm": refused("layers.0.hidden_norm.weight"),
            "llamacpp": refused("layers.0.hidden_norm.weight"),
        },
    ),
    "a prefix": Case(
        {},
        {"norm.weight": GONE, "model.norm.weight": (H,)},
        {
            "vllm": refused("model.norm.weight") | left("norm.weight"),
            "tensorrt_llm": ignored("model.norm.weight") | refused("norm.weight"),
        },
    ),
    "own embedding": Case(
        {},
        {"embed_tokens.weight": (V, H)},
        {
            name: replaced("embed_tokens.weight", "embedding", "target")
            for name in ("sglang", "sglang@0.5.13", "tensorrt_llm", "openvino")
        },
    ),
    "another width": Case(
        {"target_hidden_size": 48},
        {"embed_tokens.weight": (V, H), "fc.weight": (H, 144)},
        hidden=48,
    ),
    "another width, no embedding": Case(
        {"target_hidden_size": 48},
        {"fc.weight": (H, 144)},
        {
            "sglang": left("embed_tokens.weight"),
            "sglang@0.5.13": left("embed_tokens.weight"),
            "vllm": refused("embed_tokens.weight"),
            "tensorrt_llm": refused("embed_tokens.weight"),
            "llamacpp": refused("embed_tokens.weight"),
        },
        hidden=48,
    ),
    "fc of another width": Case(
        {},
        {"fc.weight": (H, 4 * H)},
        {name: refused("fc.weight") for name in (*ENGINES, "sglang@0.5.13")},
    ),
    "a width of null": Case(
        {"target_hidden_size": None},
        effects={name: refused("target_hidden_size") for name in (*SGLANG, "vllm")},
    ),
    "another activation": Case(
        {"hidden_act": "gelu"}, effects={name: refused("hidden_act") for name in (*SGLANG, "vllm")}
    ),
    "no states": Case(
        {"num_aux_hidden_states": 0},
        effects={name: refused("num_aux_hidden_states") for name in (*SGLANG, "vllm")},
    ),
    "a window": Case(
        {"layer_types": ["sliding_attention"], "sliding_window": 8},
        effects={name: key("layer_types") for name in SGLANG},
    ),
    "one tap": Case(
        {KEY: [2], "eagle_config": {KEY: [1]}},
        {"fc.weight": (H, H)},
        {
            **{name: key(KEY, "taps") | ignored("fc.weight") for name in SGLANG},
            "vllm": key(NESTED_KEY, "taps"),
            "tensorrt_llm": key(KEY, "taps") | key(NESTED_KEY, "taps") | ignored("fc.weight"),
            **{
                name: key(KEY, "taps") | key(NESTED_KEY, "taps") | refused("fc.weight")
                for name in ("openvino", "llamacpp")
            },
        },
    ),
    "one tap with a norm": Case(
        {"eagle_config": {KEY: [1]}, "fc_norm": True, KEY: [2]},
        {"fc.weight": (H, H), "fc_norm.0.weight": (H,)},
        {
            **{
                name: key(KEY, "taps")
                | ignored("fc.weight")
                | ignored("fc_norm.0.weight", **NO_NORM)
                for name in SGLANG
            },
            "vllm": key(NESTED_KEY, "taps"),
            "tensorrt_llm": key(KEY, "taps")
            | key(NESTED_KEY, "taps")
            | ignored("fc.weight")
            | refused("fc_norm.1.weight", "fc_norm.2.weight"),
            "openvino": key(KEY, "taps") | key(NESTED_KEY, "taps") | refused("fc.weight"),
            "llamacpp": key(KEY, "taps")
            | key(NESTED_KEY, "taps")
            | refused("fc.weight", "fc_norm.0.weight"),
        },
    ),
    "no draft_vocab_size": Case(
        {"draft_vocab_size": GONE},
        effects={
            "sglang": refused("draft_vocab_size"),
            "sglang@0.5.13": refused("draft_vocab_size"),
            "vllm": refused("lm_head.weight", "d2t"),
            "tensorrt_llm": refused("draft_vocab_size") | {("ignores tensor", "d2t", *ID)},
            "llamacpp": refused("draft_vocab_size"),
        },
    ),
    "draft_vocab_size is null": Case(
        {"draft_vocab_size": None},
        effects={
            "sglang": refused("lm_head.weight"),
            "sglang@0.5.13": refused("lm_head.weight"),
            "vllm": refused("lm_head.weight", "d2t"),
            "tensorrt_llm": refused("draft_vocab_size") | {("ignores tensor", "d2t", *ID)},
        },
    ),
    "draft_vocab_size is null, full head": Case(
        {"draft_vocab_size": None},
        {"lm_head.weight": (V, H), "d2t": GONE, "t2d": GONE},
        {
            "sglang": replaced("lm_head.weight", "head", "target"),
            "sglang@0.5.13": replaced("lm_head.weight", "head", "target"),
        },
    ),
    "another draft_vocab_size": Case(
        {"draft_vocab_size": 24},
        effects={
            "sglang": refused("lm_head.weight"),
            "sglang@0.5.13": refused("lm_head.weight"),
            "vllm": refused("lm_head.weight"),
            "tensorrt_llm": refused("lm_head.weight"),
        },
    ),
    "tied": Case(
        {"tie_word_embeddings": True},
        effects={
            "sglang": replaced("lm_head.weight", "head", "tied"),
            "sglang@0.5.13": replaced("lm_head.weight", "head", "tied"),
        },
    ),
    "no map": Case(
        {},
        {"d2t": GONE},
        {
            "sglang": default("d2t", *ID),
            "sglang@0.5.13": default("d2t", *ID),
            "vllm": default("d2t", *ID),
            "tensorrt_llm": refused("d2t"),
            "llamacpp": refused("lm_head.weight"),
        },
    ),
    "a map of the full vocabulary": Case(
        {"draft_vocab_size": V},
        {"lm_head.weight": (V, H), "d2t": (V,)},
        {"vllm": refused("d2t"), "tensorrt_llm": {("ignores tensor", "d2t", *ID)}},
    ),
    "no head": Case(
        {},
        {"lm_head.weight": GONE},
        {
            "sglang": left("lm_head.weight"),
            "sglang@0.5.13": left("lm_head.weight"),
            **{
                name: default("lm_head.weight", "head", "target")
                for name in ("vllm", "tensorrt_llm", "llamacpp")
            },
        },
    ),
    "ids at top level": Case(
        {KEY: [2, 4, 5]},
        effects={
            name: key(KEY, "taps")
            for name in ("sglang", "sglang@0.5.13", "tensorrt_llm", "openvino", "llamacpp")
        },
    ),
    "ids nested": Case(
        {"eagle_config": {KEY: [2, 4, 5]}},
        effects={
            name: key(NESTED_KEY, "taps")
            for name in ("vllm", "tensorrt_llm", "openvino", "llamacpp")
        },
    ),
    "four ids nested": Case(
        {"eagle_config": {KEY: [1, 2, 4, 5]}},
        {"fc.weight": (H, 4 * H)},
        {
            "vllm": key(NESTED_KEY, "taps") | refused(KEY, wire="taps"),
            **{
                name: key(NESTED_KEY, "taps") | refused("fc.weight")
                for name in ("tensorrt_llm", "openvino", "llamacpp")
            },
        },
    ),
    "four ids at top level": Case(
        {KEY: [1, 2, 4, 5]},
        {"fc.weight": (H, 4 * H)},
        {
            "vllm": refused("fc.weight") | refused(KEY, wire="taps"),
            **{
                name: key(KEY, "taps") | refused("fc.weight")
                for name in ("sglang", "sglang@0.5.13", "tensorrt_llm", "openvino", "llamacpp")
            },
        },
    ),
    "two layers, hidden_norm": Case(
        {"num_hidden_layers": 2},
        layer("layers.1", H, ("hidden_norm", POST)),
        {
            "vllm": left("layers.1.input_layernorm.weight")
            | ignored("layers.1.hidden_norm.weight"),
            "llamacpp": refused("num_hidden_layers", *layer("layers.1", H, ("hidden_norm", POST))),
        },
        base=TWO,
    ),
    "two layers, input_layernorm": Case(
        {"num_hidden_layers": 2},
        layer("layers.1", H, ("input_layernorm", POST)),
        {
            **{
                name: left("layers.1.hidden_norm.weight")
                | ignored("layers.1.input_layernorm.weight")
                for name in ("sglang", "sglang@0.5.13")
            },
            "tensorrt_llm": refused("layers.1.hidden_norm.weight")
            | ignored("layers.1.input_layernorm.weight"),
            "llamacpp": refused(
                "num_hidden_layers", *layer("layers.1", H, ("input_layernorm", POST))
            ),
        },
        base=TWO,
    ),
    "a plain architecture": Case(
        {"architectures": ["LlamaForCausalLM"]},
        effects={"sglang": ignored("fc.weight"), "sglang@0.5.13": ignored("fc.weight")},
    ),
    "an unknown architecture": Case(
        {"architectures": ["LlamaForCausalLMEagle4"]},
        effects={
            name: refused("architectures")
            for name in ("sglang", "sglang@0.5.13", "vllm", "llamacpp")
        },
    ),
    "Qwen3": Case(
        {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"},
        QK_NORM,
        {
            "sglang": refused("architectures"),
            "sglang@0.5.13": refused("architectures"),
            "tensorrt_llm": ignored(*QK_NORM),
            "llamacpp": refused("architectures", *QK_NORM),
        },
    ),
    "speculators": Case(
        SPECULATORS,
        effects={
            "sglang": refused("architectures"),
            "sglang@0.5.13": refused("architectures"),
            "tensorrt_llm": OTHER_FORM,
        },
        base=SPOKEN,
        whole_config=True,
    ),
    "speculators, no word of the residual": Case(
        {k: v for k, v in SPECULATORS.items() if k != "norm_before_residual"}
        | {"rope_theta": 5e5, "eagle_config": {KEY: [1, 2, 4]}},
        effects={
            "sglang": refused("architectures"),
            "sglang@0.5.13": refused("architectures"),
            "vllm": default("norm_before_residual", "residual", "normed")
            | key("rope_theta")
            | key(NESTED_KEY, "taps"),
            **{name: key(NESTED_KEY, "taps") for name in ("openvino", "llamacpp")},
            "tensorrt_llm": key(NESTED_KEY, "taps") | OTHER_FORM,
        },
        base=SPOKEN,
        whole_config=True,
    ),
    "P-EAGLE": Case(
        SPECULATORS
        | {"speculators_model_type": "peagle", "mask_token_id": 1}
        | {"fc_norm": True, "norm_output": True},
        FC_NORMS,
        effects={
            "sglang": refused("architectures"),
            "sglang@0.5.13": refused("architectures"),
            "vllm": key("fc_norm", **NO_NORM)
            | key("norm_output", "feedback", "pre_norm")
            | refused(*FC_NORMS),
            "llamacpp": key("norm_output", "feedback", "pre_norm") | refused(*FC_NORMS),
            "tensorrt_llm": OTHER_FORM,
        },
        base=SPOKEN,
        whole_config=True,
    ),
    "P-EAGLE without a mask": Case(
        SPECULATORS | {"speculators_model_type": "peagle"},
        effects={
            "sglang": refused("architectures"),
            "sglang@0.5.13": refused("architectures"),
            "vllm": refused("mask_token_id"),
            "tensorrt_llm": OTHER_FORM,
        },
        base=SPOKEN,
        whole_config=True,
    ),
    "latent attention": Case(
        LATENT_CONFIG,
        effects={"llamacpp": GONE},
        base=LATENT,  # told elsewhere: many names
    ),
    "latent attention, a type of MTP heads": Case(
        LATENT_CONFIG | {"model_type": "deepseek_v3"},
        effects={"vllm": refused("model_type"), "llamacpp": GONE},
        base=LATENT,
    ),
    "latent attention, EAGLE-3.1": Case(
        LATENT_CONFIG | {"fc_norm": True, "norm_output": True},
        FC_NORMS,
        {
            "sglang@0.5.12.post1": key("fc_norm", **NO_NORM)
            | key("norm_output", "feedback", "pre_norm")
            | ignored(*FC_NORMS, **NO_NORM),
            "llamacpp": GONE,
        },
        base=LATENT,
    ),
    "latent attention, whole norm": Case(
        LATENT_CONFIG | {"norm_before_fc": True},
        INPUT_NORM,
        {
            "sglang": key("norm_before_fc", **NO_NORM) | ignored(*INPUT_NORM, **NO_NORM),
            "sglang@0.5.13": key("norm_before_fc", **NO_NORM) | ignored(*INPUT_NORM, **NO_NORM),
            "vllm": key("norm_before_fc", **NO_NORM) | refused(*INPUT_NORM),
            "tensorrt_llm": key("norm_before_fc", **NO_NORM) | ignored(*INPUT_NORM, **NO_NORM),
            "llamacpp": GONE,
        },
        base=LATENT,
    ),
}
