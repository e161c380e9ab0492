"""vLLM: of which target families it captures states, and which boundaries their loops reach.

A target is served if its class in the registry has ``SupportsEagle3``; else the server stops at
start. The class follows the architecture, here the one that transformers writes for a model type;
another architecture, or vLLM's transformers backend, is not known. Read at 0.32.0; a test holds
these tables to the engine's source, and runs each loop over stand-ins for its layers.
"""

from __future__ import annotations

from draftprobe.dialects.reading import NoBoundary, Unknown

_MODELS = "model_executor/models"

LOOPS: dict[str, dict[str, str]] = {
    f"{_MODELS}/afmoe.py": {"afmoe": "AfmoeForCausalLM"},
    f"{_MODELS}/apertus.py": {"apertus": "ApertusForCausalLM"},
    f"{_MODELS}/deepseek_v2.py": {
        "deepseek_v2": "DeepseekV2ForCausalLM",
        "deepseek_v3": "DeepseekV3ForCausalLM",
        "kimi_k2": "DeepseekV3ForCausalLM",
        "kimi_k25": "KimiK25ForConditionalGeneration",
    },
    "models/deepseek_v32/nvidia/model.py": {
        "deepseek_v32": "DeepseekV32ForCausalLM",
        "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    },
    f"{_MODELS}/gemma4.py": {"gemma4_text": "Gemma4ForCausalLM"},
    f"{_MODELS}/gpt_oss.py": {"gpt_oss": "GptOssForCausalLM"},
    f"{_MODELS}/granite.py": {"granite": "GraniteForCausalLM"},
    f"{_MODELS}/laguna.py": {"laguna": "LagunaForCausalLM"},
    f"{_MODELS}/llama.py": {
        "ernie4_5": "Ernie4_5ForCausalLM",
        "internlm3": "InternLM3ForCausalLM",
        "llama": "LlamaForCausalLM",
        "llama4_text": "Llama4ForCausalLM",
        "ministral3": "Ministral3ForCausalLM",
        "mistral": "MistralForCausalLM",
        "phi3": "Phi3ForCausalLM",
    },
    f"{_MODELS}/mimo_v2.py": {"mimo_v2_flash": "MiMoV2FlashForCausalLM"},
    f"{_MODELS}/minicpm.py": {"minicpm": "MiniCPMForCausalLM", "minicpm3": "MiniCPM3ForCausalLM"},
    f"{_MODELS}/minimax_m2.py": {"minimax_m2": "MiniMaxM2ForCausalLM"},
    f"{_MODELS}/nemotron_h.py": {"nemotron_h": "NemotronHForCausalLM"},
    f"{_MODELS}/qwen2.py": {
        "qwen2": "Qwen2ForCausalLM",
        "qwen2_5_vl_text": "Qwen2_5_VLForConditionalGeneration",
        "qwen3": "Qwen3ForCausalLM",
    },
    f"{_MODELS}/qwen3_moe.py": {"qwen3_moe": "Qwen3MoeForCausalLM"},
    f"{_MODELS}/qwen3_next.py": {
        "qwen3_5_moe_text": "Qwen3_5MoeForConditionalGeneration",
        "qwen3_5_text": "Qwen3_5ForConditionalGeneration",
        "qwen3_next": "Qwen3NextForCausalLM",
    },
    f"{_MODELS}/qwen3_vl.py": {"qwen3_vl_text": "Qwen3VLForConditionalGeneration"},
    f"{_MODELS}/qwen3_vl_moe.py": {"qwen3_vl_moe_text": "Qwen3VLMoeForConditionalGeneration"},
}
"""File with the loop over the layers -> families, and the architecture that leads there."""

SERVED = {family: file for file, families in LOOPS.items() for family in families}

REFUSED = {
    "axk1": "AXK1ForCausalLM",
    "bailing_moe": "BailingMoeForCausalLM",
    "bloom": "BloomForCausalLM",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "dbrx": "DbrxForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "exaone_moe": "ExaoneMoeForCausalLM",
    "falcon": "FalconForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n": "Gemma3nForConditionalGeneration",
    "gemma3n_text": "Gemma3nForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "glm4v": "Glm4vForConditionalGeneration",
    "glm4v_moe": "Glm4vMoeForConditionalGeneration",
    "gpt2": "GPT2LMHeadModel",
    "granitemoe": "GraniteMoeForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "granitemoeshared": "GraniteMoeSharedForCausalLM",
    "hy_v3": "HYV3ForCausalLM",
    "internvl": "InternVLForConditionalGeneration",
    "jamba": "JambaForCausalLM",
    "kimi_vl": "KimiVLForConditionalGeneration",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "llava_next": "LlavaNextForConditionalGeneration",
    "llava_onevision": "LlavaOnevisionForConditionalGeneration",
    "longcat_flash": "LongcatFlashForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "opt": "OPTForCausalLM",
    "phimoe": "PhiMoEForCausalLM",
    "qwen2_5_omni": "Qwen2_5OmniForConditionalGeneration",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "stablelm": "StableLmForCausalLM",
    "zamba2": "Zamba2ForCausalLM",
}
"""Families whose class has no ``SupportsEagle3``, and the architecture."""

_OTHER_STATES = {
    "deepseek_v4": "the mean over its parallel streams (models/deepseek_v4)",
    "kimi_k3": "one of two streams, by VLLM_KIMI_K3_AUX_ATTN_RES_STREAM (models/kimi_k3)",
    "kimi_linear": "one of two streams, by VLLM_KIMI_K3_AUX_ATTN_RES_STREAM (models/kimi_k3)",
}
_SPARSE = frozenset(LOOPS["models/deepseek_v32/nvidia/model.py"])
_DEEPSEEK = frozenset(LOOPS[f"{_MODELS}/deepseek_v2.py"])


def unserved(family: str) -> str:
    """Why no boundary of this family's targets arrives, or that it is not known; else empty."""
    if family in SERVED:
        return ""
    if family in REFUSED:
        return (
            f"vLLM refuses {family} targets at start: their class {REFUSED[family]} does not "
            "support EAGLE-3, a RuntimeError (models/registry.py, read; its transformers backend "
            "is not known here)"
        )
    if family in _OTHER_STATES:
        return NoBoundary(
            f"of {family} targets vLLM captures {_OTHER_STATES[family]}, which is no boundary"
        )
    known = ", ".join(sorted(SERVED))
    return Unknown(f"vLLM's rule for target family {family!r} is not known here (known: {known})")


def unreached(boundary: int, family: str, layers: int) -> str:
    """Why a boundary in 0..L does not arrive from this family's loop, or may not; else empty."""
    if boundary == 0 and family in _DEEPSEEK:
        return (
            f"vLLM cannot capture h[0], the embedding output, of {family} targets: its loop adds a "
            "residual that is None there, a TypeError (deepseek_v2.py)"
        )
    if boundary == 0 and family in _SPARSE:
        return Unknown(
            f"h[0] of {family} targets arrives on CUDA alone; on other platforms vLLM's loop adds "
            "a residual that is None there, a TypeError (models/deepseek_v32)"
        )
    if boundary == layers and family in _SPARSE:
        return Unknown(
            f"h[{layers}] of {family} targets, the state before the final norm, arrives on CPU and "
            "XPU alone; on CUDA and ROCm the loop ends before it, and a slot is missing "
            "(models/deepseek_v32)"
        )
    return ""
