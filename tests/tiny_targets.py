"""Random-weight targets of many families, small enough to build in a moment."""

import torch
import transformers as tf
from transformers import GenerationConfig, PreTrainedModel

VOCABULARY, HIDDEN, LAYERS = 64, 32, 4
TEXT = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.3,  # wide, so that greedy text is not one token for ever
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LATENT = TEXT | {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def _llama():
    return tf.LlamaForCausalLM(tf.LlamaConfig(**TEXT))


def _qwen3():
    return tf.Qwen3ForCausalLM(tf.Qwen3Config(**TEXT))


def _gpt_oss():
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6}
    return tf.GptOssForCausalLM(tf.GptOssConfig(**TEXT | experts))


def _gemma3():
    extra = {"sliding_window": 6, "query_pre_attn_scalar": 8}
    return tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**TEXT, **extra))


def _gemma4():
    extra = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY}
    layers = ["sliding_attention"] * 3 + ["full_attention"]
    return tf.Gemma4ForCausalLM(
        tf.Gemma4TextConfig(**TEXT, **extra, sliding_window=6, layer_types=layers)
    )


def _qwen3_next():
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
               "shared_expert_intermediate_size": 16}  # fmt: skip
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
              "linear_value_head_dim": 8}  # fmt: skip
    return tf.Qwen3NextForCausalLM(tf.Qwen3NextConfig(**TEXT, **experts, **linear))


def _deepseek_v3():
    return tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(**LATENT))


def _kimi_k25():
    text = LATENT | {"model_type": "deepseek_v3"}
    return tf.Kimi_K25ForConditionalGeneration(
        tf.Kimi_K25Config(text_config=text, vision_config=VISION, projection_hidden_size=16)
    )


def _gemma3_wrapper():
    text = TEXT | {"sliding_window": 6, "query_pre_attn_scalar": 8}
    vision = VISION | {"image_size": 28, "patch_size": 14}
    return tf.Gemma3ForConditionalGeneration(
        tf.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    )


def _qwen2_5_vl():
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    vision = {"hidden_size": 16, "intermediate_size": 32, "depth": 1, "num_heads": 2,
              "out_hidden_size": HIDDEN}  # fmt: skip
    return tf.Qwen2_5_VLForConditionalGeneration(
        tf.Qwen2_5_VLConfig(text_config=TEXT | {"rope_parameters": rope}, vision_config=vision)
    )


def _llama4():
    text = TEXT | {"num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": 8}
    vision = VISION | {"image_size": 28, "patch_size": 14, "vision_output_dim": 16,
                       "projector_input_dim": 16, "projector_output_dim": 16}  # fmt: skip
    return tf.Llama4ForConditionalGeneration(
        tf.Llama4Config(text_config=text, vision_config=vision)
    )


BUILDERS = {
    "llama": _llama,
    "qwen3": _qwen3,
    "gpt_oss": _gpt_oss,
    "gemma3_text": _gemma3,
    "gemma4_text": _gemma4,
    "deepseek_v3": _deepseek_v3,
    "kimi_k25": _kimi_k25,
    "gemma3": _gemma3_wrapper,
    "qwen2_5_vl": _qwen2_5_vl,
    "llama4": _llama4,
    "qwen3_next": _qwen3_next,
}


def build(family: str) -> PreTrainedModel:
    """A model of that family in evaluation mode; always the same weights; no end token."""
    torch.manual_seed(0)
    model = BUILDERS[family]().float().eval()
    model.generation_config = GenerationConfig()
    return model
