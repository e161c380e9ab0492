"""Writes tests/cases: for each static finding the smallest folder that raises it, one change each.

``healthy`` is the twin of nearly all of them: the same sizes, nothing wrong; what cannot be said in
its layout has a twin of its own. ``target`` is what they were made for. Run as a script after a
change; a test holds the folders to it.
"""

import json
import shutil
from copy import deepcopy
from pathlib import Path

import numpy as np
from synthetic import write_safetensors

from draftprobe.drafter.wiring import Rope, eagle3, to_json

FOLDER = Path(__file__).parent / "cases"

HIDDEN, HEADS, INNER, DRAFT, VOCABULARY, LAYERS = 8, 2, 8, 20, 40, 12
IDS = "eagle_aux_hidden_state_layer_ids"
KEPT = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39])

TARGET = {
    "model_type": "llama", "num_hidden_layers": LAYERS, "hidden_size": HIDDEN,
    "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rope_theta": 500000.0,
    "partial_rotary_factor": 1.0, "tie_word_embeddings": False,
}  # fmt: skip
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": HIDDEN, "target_hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": 4,
    "rms_norm_eps": 1e-05, "vocab_size": VOCABULARY, "draft_vocab_size": DRAFT,
    "max_position_embeddings": 4096, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "eagle_config": {IDS: [1, 5, 8], "use_aux_hidden_state": True},
}  # fmt: skip


def weights(seed=0):
    """A drafter of random numbers, as float16 arrays and tables of integers."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float16)

    layer = {
        "self_attn.q_proj": (8, 2 * HIDDEN), "self_attn.k_proj": (4, 2 * HIDDEN),
        "self_attn.v_proj": (4, 2 * HIDDEN), "self_attn.o_proj": (HIDDEN, 8),
        "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER), "hidden_norm": (HIDDEN,), "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }  # fmt: skip
    t2d = np.zeros(VOCABULARY, dtype=bool)
    t2d[KEPT] = True
    return {
        "fc.weight": normal(HIDDEN, 3 * HIDDEN),
        **{f"midlayer.{name}.weight": normal(*shape) for name, shape in layer.items()},
        "norm.weight": normal(HIDDEN),
        "lm_head.weight": normal(DRAFT, HIDDEN),
        "d2t": KEPT - np.arange(DRAFT),
        "t2d": t2d,
    }


def table(seed):
    return np.random.default_rng(seed).standard_normal((VOCABULARY, HIDDEN)).astype(np.float16)


TARGET_TENSORS = {"model.embed_tokens.weight": table(100), "lm_head.weight": table(101)}
TOKENIZER = {"model": {"type": "BPE", "vocab": {f"t{i}": i for i in range(VOCABULARY)}}}

CASES = {}
"""id -> (change of config and tensors in place, options of inspect)."""


def case(identifier, *options):
    def keep(change):
        CASES[identifier] = (change, options)
        return change

    return keep


def config(identifier, *options, **keys):
    """A case that sets keys of the config; None removes one."""

    def change(config, tensors):
        for key, value in keys.items():
            config[key] = value
            if value is None:
                del config[key]

    CASES[identifier] = (change, options)


def ids(identifier, numbers, *options):
    """A case of other nested layer ids."""
    config(identifier, *options, eagle_config={IDS: numbers, "use_aux_hidden_state": True})


@case("W106", "--engine", "sglang")
def at_the_top(config, tensors):
    config[IDS] = [1, 6, 9]
    del config["eagle_config"]


ids("W107", [2, 6, 9])
ids("W108", [1, 8, 5])
ids("W109", [1, 5, 5])
ids("W110", [1, 5, 13])
ids("W111", [1, 5])
ids("W112", [1, 5, 11], "--engine", "sglang")
config("W113", "--engine", "tensorrt_llm", "--wanted", "0,6,9")
config("W114", "--engine", "vllm")


@case("W121")
def two_lists(config, tensors):
    config[IDS] = [2, 6, 10]


@case("W201")
def norm_without_a_flag(config, tensors):
    tensors["input_norm.weight"] = np.ones(3 * HIDDEN, dtype=np.float16)


config("W202", fc_norm=True)


@case("W205")
def two_norms_for_three_slots(config, tensors):
    config["fc_norm"] = True
    for slot in (0, 1):
        tensors[f"fc_norm.{slot}.weight"] = np.ones(HIDDEN, dtype=np.float16)


config("W203", "--engine", "sglang", "--trainer", "speculators", norm_before_residual=True)
config("W204", "--engine", "llamacpp", "--trainer", "speculators", norm_output=True)


@case("W206", "--engine", "sglang@0.5.13")
def a_norm_that_came_later(config, tensors):
    config["norm_before_fc"] = True
    tensors["input_norm.weight"] = np.ones(3 * HIDDEN, dtype=np.float16)


config("W207", norm_before_residual=True)


@case("W301")
def no_table(config, tensors):
    del tensors["d2t"], tensors["t2d"]


@case("W302")
def a_table_never_filled(config, tensors):
    tensors["d2t"] = np.zeros(DRAFT, dtype=np.int64)
    tensors["t2d"] = np.ones(VOCABULARY, dtype=bool)


@case("W303")
def absolute(config, tensors):
    tensors["d2t"] = KEPT.copy()


@case("W304")
def of_a_larger_target(config, tensors):
    tensors["d2t"][-1] += 30


@case("W305")
def two_to_one(config, tensors):
    tensors["d2t"][7] -= 1


@case("W306")
def of_another_run(config, tensors):
    tensors["t2d"][[39, 38]] = tensors["t2d"][[38, 39]]


@case("W307", "--histogram", "histogram.json")
def histogram(config, tensors):
    """The counts lie in the folder: most are of a token that is not drafted."""


config("W308", tie_word_embeddings=True)


@case("W309", "--deep", "--engine", "sglang")
def a_trained_embedding(config, tensors):
    tensors["embed_tokens.weight"] = (table(100) + 0.1 * table(7)).astype(np.float16)


@case("W310", "--deep")
def another_embedding(config, tensors):
    tensors["embed_tokens.weight"] = table(7)


@case("W311", "--engine", "sglang")
def a_bias(config, tensors):
    tensors["midlayer.self_attn.q_proj.bias"] = np.ones(8, dtype=np.float16)


@case("W312", "--engine", "sglang")
def no_hidden_norm(config, tensors):
    del tensors["midlayer.hidden_norm.weight"]


@case("W313")
def strange_names(config, tensors):
    tensors["midlayer.self_attn.gate.weight"] = np.ones(4, dtype=np.float16)


@case("W314")
def no_final_norm(config, tensors):
    del tensors["norm.weight"]


config("W315", num_attention_heads=4)


@case("W317")
def a_table_cast_with_the_weights(config, tensors):
    tensors["d2t"] = tensors["d2t"].astype(np.float32)


config("W401", "--trainer", "unknown", rope_theta=10000.0)
config("W402", "--trainer", "unknown", rope_scaling={"type": "linear", "factor": 4.0})
config("W403", "--trainer", "unknown", partial_rotary_factor=0.5)
config("W404", "--engine", "tensorrt_llm", max_position_embeddings=2048)
config("W405", architectures=["Eagle3LlamaForCausalLM"])


@case("W501", "--deep")
def not_a_number(config, tensors):
    tensors["fc.weight"][0, 0] = np.nan


@case("W502", "--deep")
def beyond_half(config, tensors):
    wide = tensors["fc.weight"].astype(np.float32)
    wide[0, 0] = 70000.0
    tensors["fc.weight"] = wide


@case("W506", "--deep")
def a_dead_slot(config, tensors):
    tensors["fc.weight"][:, HIDDEN : 2 * HIDDEN] = 0


config("S101", target_hidden_size=4)
config("S102", vocab_size=48)


@case("S103")
def other_tokenizer(config, tensors):
    """Its tokenizer lies in the folder: two tokens have changed places."""


config("S104", "--engine", "sglang", architectures=["Eagle3DraftModel"])


@case("S105", "--engine", "vllm")
def rope_outside_the_layer(config, tensors):
    nested_like_speculators(config)
    config["rope_theta"] = 10000.0


config("S106", eagle_config={IDS: [1, 5, 8], "use_aux_hidden_state": False})


@case("S108")
def an_edited_config(config, tensors):
    """Its golden file lies in the folder: it was trained on h[2], h[6], h[10]."""


TWINS = {"S105": "healthy-speculators", "S108": "healthy-golden", "W114": "healthy-at-top"}
"""id -> twin, where ``healthy`` cannot be it."""

TWIN_OPTIONS = {"W113": ("--engine", "tensorrt_llm", "--wanted", "2,6,9")}
"""Where the finding is about what is asked for: what can be had."""


def nested_like_speculators(config):
    """The layer's sizes under a key of their own, ids as boundaries at top level."""
    config |= {"speculators_model_type": "eagle3", "speculators_config": {"algorithm": "eagle3"}}
    config["norm_before_residual"] = False
    config[IDS] = [2, 6, 9]
    layer = {key: config.pop(key) for key in list(config) if key in _OF_THE_LAYER}
    config["transformer_layer_config"] = layer | {"model_type": config.pop("model_type")}
    del config["eagle_config"]


_OF_THE_LAYER = {
    "hidden_act", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "rms_norm_eps", "vocab_size", "max_position_embeddings",
    "rope_theta",
}  # fmt: skip


def at_top(config):
    config[IDS] = [2, 6, 9]
    del config["eagle_config"]


def write_folder(folder, config, tensors):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_safetensors(folder / "model.safetensors", tensors)


def write_golden(folder, taps):
    """The header of a golden file, which is all that an inspection reads."""
    facts = {"wiring": to_json(eagle3(taps, Rope(500000.0))), "vocabulary": VOCABULARY}
    header = json.dumps({"__metadata__": {"draftprobe-golden": json.dumps(facts)}}).encode()
    (folder / "golden.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def write_all(root):
    """All folders under ``root``, which must not hold them yet."""
    write_folder(root / "healthy", CONFIG, weights())
    write_folder(root / "target", TARGET, TARGET_TENSORS)
    for name in ("healthy", "target"):
        (root / name / "tokenizer.json").write_text(json.dumps(TOKENIZER) + "\n")
    counts = {"0": 10, "9": 5, "39": 1}
    (root / "healthy" / "histogram.json").write_text(json.dumps(counts) + "\n")
    for name, build in (("speculators", nested_like_speculators), ("at-top", at_top)):
        config = deepcopy(CONFIG)
        build(config)
        write_folder(root / f"healthy-{name}", config, weights())
    for identifier, (change, _) in CASES.items():
        config, tensors = deepcopy(CONFIG), weights()
        change(config, tensors)
        write_folder(root / identifier, config, tensors)
    write_folder(root / "healthy-golden", CONFIG, weights())
    write_golden(root / "healthy-golden", (2, 6, 9))
    write_golden(root / "S108", (2, 6, 10))
    (root / "W307" / "histogram.json").write_text(json.dumps(counts | {"10": 84}) + "\n")
    swapped = deepcopy(TOKENIZER)
    swapped["model"]["vocab"] |= {"t5": 6, "t6": 5}
    (root / "S103" / "tokenizer.json").write_text(json.dumps(swapped) + "\n")


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    write_all(FOLDER)
