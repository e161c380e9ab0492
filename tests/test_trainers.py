"""Whose folder, and what it meant: configs as the stacks ship or write them, wirings by hand.

Configs are cut down from the stacks' own files, named at each. Weights are holes of the true sizes.
"""

import json
from typing import Literal

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from synthetic import write_safetensors

from draftprobe.cli import main
from draftprobe.dialects.ids import KEY
from draftprobe.dialects.rope_keys import read_rope
from draftprobe.dialects.trainers import claims, doubts, parse, recognise
from draftprobe.drafter import golden
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.layout import layout_of
from draftprobe.drafter.wiring import Rope, difference, eagle3, from_json, to_json
from draftprobe.errors import InputError

TAPS = (2, 15, 27)


def llama(config, stem="midlayer", fc_norm=False, embedding=False, tables=True, dtype="BF16"):
    """Tensors of a Llama-like drafter: (dtype, shape) by name."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim", hidden // config["num_attention_heads"])
    width, narrow = (config[f"num_{k}_heads"] * size for k in ("attention", "key_value"))
    draft, vocabulary = config.get("draft_vocab_size", 32000), config["vocab_size"]
    shapes = {
        "fc.weight": (hidden, 3 * hidden), "norm.weight": (hidden,),
        "lm_head.weight": (draft, hidden), f"{stem}.input_layernorm.weight": (hidden,),
        f"{stem}.hidden_norm.weight": (hidden,),
        f"{stem}.post_attention_layernorm.weight": (hidden,),
        f"{stem}.self_attn.q_proj.weight": (width, 2 * hidden),
        f"{stem}.self_attn.k_proj.weight": (narrow, 2 * hidden),
        f"{stem}.self_attn.v_proj.weight": (narrow, 2 * hidden),
        f"{stem}.self_attn.o_proj.weight": (hidden, width),
        f"{stem}.mlp.gate_proj.weight": (inner, hidden),
        f"{stem}.mlp.up_proj.weight": (inner, hidden),
        f"{stem}.mlp.down_proj.weight": (hidden, inner),
    }  # fmt: skip
    if fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (hidden,) for i in range(3)}
    if embedding:
        shapes["embed_tokens.weight"] = (vocabulary, hidden)
    tensors = {name: (dtype, shape) for name, shape in shapes.items()}
    if tables:
        tensors |= {"d2t": ("I64", (draft,)), "t2d": ("BOOL", (vocabulary,))}
    return tensors


def latent(config, stem="midlayer"):
    """Tensors of an MLA drafter of the full vocabulary, as TorchSpec exports it."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    plain, rotary, value, low, rank = (
        config[key]
        for key in (
            "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank"
        )
    )  # fmt: skip
    shapes = {
        "q_a_proj": (low, 2 * hidden), "q_a_layernorm": (low,),
        "q_b_proj": (heads * (plain + rotary), low),
        "kv_a_proj_with_mqa": (rank + rotary, 2 * hidden), "kv_a_layernorm": (rank,),
        "kv_b_proj": (heads * (plain + value), rank), "o_proj": (hidden, heads * value),
    }  # fmt: skip
    shared = llama(config | {"num_key_value_heads": 1}, stem, embedding=True, tables=False)
    kept = {name: what for name, what in shared.items() if ".self_attn." not in name}
    return kept | {
        f"{stem}.self_attn.{name}.weight": ("BF16", shape) for name, shape in shapes.items()
    }


def folder(path, config, tensors):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    write_safetensors(path / "model.safetensors", tensors)
    return open_checkpoint(path)


def read(checkpoint, taps=TAPS, trainer=None):
    return parse(checkpoint, layout_of(checkpoint), taps, trainer)


def who(checkpoint):
    return recognise(checkpoint, layout_of(checkpoint))


# SpecForge configs/deepseek-v3-671b-eagle3.json (c02a09a6): no rope keys at all.
DEEPSEEK = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "eagle_config": {KEY: [1, 29, 57], "use_aux_hidden_state": True},
    "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 40960, "model_type": "llama",
    "max_position_embeddings": 163840, "num_attention_heads": 56, "num_key_value_heads": 8,
    "num_hidden_layers": 1, "rms_norm_eps": 1e-05, "tie_word_embeddings": False,
    "torch_dtype": "float16", "vocab_size": 129280, "draft_vocab_size": 32000,
}  # fmt: skip
# SpecForge configs/qwen3-30B-A3B-eagle3.1.json (581664ac).
QWEN_31 = {
    "architectures": ["LlamaForCausalLMEagle3"], "attention_bias": False, "fc_norm": True,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 12288,
    "max_position_embeddings": 2048, "model_type": "llama", "norm_output": True,
    "num_attention_heads": 32, "num_hidden_layers": 1, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
    "tie_word_embeddings": False, "vocab_size": 151936, "draft_vocab_size": 32000,
}  # fmt: skip
# SpecForge configs/qwen3-vl-8b-eagle3.json (cc26bedc): a scaling of the kind default.
QWEN_VL = QWEN_31 | {
    "hidden_size": 4096, "num_key_value_heads": 8, "rope_theta": 5000000,
    "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20],
                     "mrope_interleaved": True},
}  # fmt: skip
del QWEN_VL["fc_norm"], QWEN_VL["norm_output"]
# EAGLE eagle/traineagle3/config.json (9666a818): rope_theta is not in it, training takes 10000.
EAGLE = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 2048, "model_type": "llama",
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1,
    "rms_norm_eps": 1e-05, "tie_word_embeddings": False, "torch_dtype": "float16",
    "vocab_size": 128256, "draft_vocab_size": 32000,
}  # fmt: skip
# AngelSlim train/configs/qwen3-4b-eagle3.json (7674abdb): the tied flag copied from its target, and
# a theta that the training code (llama_eagle3.py, b99215f8) never reads.
ANGELSLIM = {
    "architectures": ["Eagle3LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 9728,
    "num_attention_heads": 32, "num_hidden_layers": 1, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
    "tie_word_embeddings": True, "vocab_size": 151936, "draft_vocab_size": 32000,
}  # fmt: skip
# TorchSpec configs/ci/qwen3_8_27b_eagle3_draft.json (d9069939), full vocabulary.
TORCHSPEC = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "attention_bias": False,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 8192,
    "num_attention_heads": 40, "num_aux_hidden_states": 3, "num_hidden_layers": 1,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 10000000.0,
    "target_hidden_size": 5120, "tie_word_embeddings": False, "vocab_size": 248320,
    "draft_vocab_size": 248320,
}  # fmt: skip
# TorchSpec configs/draft_models/kimi_k25_eagle3_mla.json, as conventions.md section 8 has it.
YARN = {
    "type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
KIMI = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2",
    "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 1,
    "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "hidden_act": "silu", "rms_norm_eps": 1e-05, "vocab_size": 163840, "draft_vocab_size": 163840,
    "rope_theta": 50000.0, "rope_scaling": YARN,
    "eagle_config": {KEY: [1, 29, 57], "use_aux_hidden_state": True,
                     "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True,
                     "use_mtp_layernorm": False},
}  # fmt: skip
# ModelOpt hf_spec_export.py (03713649): llama_eagle_template_config, filled for Qwen3-8B.
MODELOPT = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 1, "head_dim": 128, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "vocab_size": 151936, "draft_vocab_size": 32000,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048},
    "eagle_config": {KEY: [1, 17, 32], "use_aux_hidden_state": True,
                     "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True,
                     "use_mtp_layernorm": False, "next_layer_regular": True,
                     "parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1},
}  # fmt: skip


def rope(theta, scaling=None, style: Literal["half", "interleaved"] = "half", partial=1.0):
    return Rope(theta, style, partial, tuple(sorted((scaling or {}).items())))


FOLDERS = {
    "specforge deepseek": (DEEPSEEK, llama(DEEPSEEK), "specforge", {"rope": rope(10000.0)}),
    "specforge qwen3-vl": (QWEN_VL, llama(QWEN_VL), "specforge", {"rope": rope(5e6)}),
    "eagle": (EAGLE, llama(EAGLE), "eagle", {"rope": rope(10000.0)}),
    "angelslim": (
        ANGELSLIM,
        llama(ANGELSLIM, embedding=True),
        "angelslim",
        {"rope": rope(10000.0), "embedding": "own"},
    ),
    "torchspec": (
        TORCHSPEC,
        llama(TORCHSPEC, embedding=True, tables=False),
        "torchspec",
        {"rope": rope(1e7), "embedding": "own", "vocabulary": "identity"},
    ),
    "torchspec mla": (
        KIMI,
        latent(KIMI),
        "torchspec",
        {
            "rope": rope(50000.0, YARN, "interleaved"),
            "embedding": "own",
            "vocabulary": "identity",
        },
    ),
    "modelopt": (
        MODELOPT,
        {n: w for n, w in llama(MODELOPT, "layers.0").items() if n != "t2d"},
        "modelopt",
        {"rope": rope(10000.0, MODELOPT["rope_scaling"])},
    ),
}


@pytest.mark.parametrize(("config", "tensors", "name", "wires"), FOLDERS.values(), ids=FOLDERS)
def test_shipped_configs(tmp_path, config, tensors, name, wires):
    """Each differs from the paper's wiring in the wires that are named, and in no other."""
    checkpoint = folder(tmp_path / "draft", config, tensors)
    assert who(checkpoint).name == name
    assert who(checkpoint).why
    found = difference(eagle3(TAPS, rope(-1.0)), read(checkpoint))
    assert {wire: pair[1] for wire, pair in found.items()} == wires


def test_specforge_norm_output_is_told_not_guessed(tmp_path):
    """Before pull request 879 the key meant the norm before the head, since then the feedback."""
    checkpoint = folder(tmp_path / "draft", QWEN_31, llama(QWEN_31, fc_norm=True))
    assert who(checkpoint).name == "specforge"
    with pytest.raises(InputError, match=r"norm_output.*specforge@before-879"):
        read(checkpoint)
    before = read(checkpoint, trainer="specforge@before-879")
    since = read(checkpoint, trainer="specforge@since-879")
    assert (before.feedback, before.head_norm, before.pre_fc_norm) == ("pre_norm", True, "per_tap")
    assert (since.feedback, since.head_norm, since.pre_fc_norm) == ("post_norm", True, "per_tap")
    off = folder(tmp_path / "off", QWEN_31 | {"norm_output": False}, llama(QWEN_31, fc_norm=True))
    assert not read(off, trainer="specforge@before-879").head_norm
    assert read(off, trainer="specforge@since-879").head_norm


IGNORED = {
    "specforge": (DEEPSEEK, llama(DEEPSEEK), "raw"),
    "eagle": (EAGLE, llama(EAGLE), "raw"),
    "torchspec": (TORCHSPEC, llama(TORCHSPEC, embedding=True, tables=False), "raw"),
    "angelslim": (ANGELSLIM, llama(ANGELSLIM, embedding=True), "raw"),
    "modelopt": (MODELOPT, llama(MODELOPT, "layers.0"), "raw"),
    "unknown": ({**EAGLE, "architectures": ["Other"]}, llama(EAGLE, "layers.0"), "normed"),
}


@pytest.mark.parametrize(("config", "tensors", "residual"), IGNORED.values(), ids=IGNORED)
def test_norm_before_residual_by_trainer(tmp_path, config, tensors, residual):
    """conventions.md 2.2: EAGLE, SpecForge, ModelOpt and TorchSpec do not read it."""
    checkpoint = folder(tmp_path / "draft", config | {"norm_before_residual": True}, tensors)
    assert read(checkpoint).residual == residual
    told = {d.wire: (d.taken, d.other) for d in doubts(checkpoint, layout_of(checkpoint))}
    assert told.get("residual") == (("raw", "normed") if residual == "raw" else None)


def test_angelslims_theta_is_a_doubt(tmp_path):
    checkpoint = folder(tmp_path / "draft", ANGELSLIM, llama(ANGELSLIM, embedding=True))
    told = {d.wire: (d.taken, d.other) for d in doubts(checkpoint, layout_of(checkpoint))}
    assert told == {"rope": (10000.0, 1e6)}
    assert read(checkpoint, trainer="unknown").rope == rope(1e6)


def test_a_converted_folder_names_itself(tmp_path):
    marked = DEEPSEEK | {"draftprobe_convert": {"to": "torchspec", KEY: [2, 30, 58]}}
    checkpoint = folder(tmp_path / "draft", marked, llama(DEEPSEEK))
    assert who(checkpoint).name == "torchspec"
    assert [(c.level, c.meant) for c in claims(checkpoint, 61)] == [
        ("nested", (2, 30, 58)),
        ("mark", (2, 30, 58)),
    ]


SPECULATORS_WIRES = {
    "plain": {},
    "normed residual": {"norm_before_residual": True},
    "whole": {"norm_before_fc": True},
    "per tap": {"fc_norm": True},
    "post norm": {"norm_output": True},
    "full vocabulary": {"draft_vocab_size": 96},
}


@pytest.mark.parametrize("wires", SPECULATORS_WIRES.values(), ids=SPECULATORS_WIRES)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_folders_that_speculators_itself_saved(tmp_path, wires, kind):
    """Executed: its own save_pretrained writes the folder; flags mean what its module does."""
    pytest.importorskip("speculators", reason="speculators is not installed; see `make test`")
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config

    layer = {"llama": LlamaConfig, "qwen3": Qwen3Config}[kind](
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=96, pad_token_id=None,
        rope_parameters={"rope_theta": 500.0, "rope_type": "linear", "factor": 4.0},
    )  # fmt: skip
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        **{"draft_vocab_size": 40, "eagle_aux_hidden_state_layer_ids": [2, 15, 27]} | wires,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    Eagle3DraftModel(config).save_pretrained(tmp_path / "draft")
    checkpoint = open_checkpoint(tmp_path / "draft")
    assert who(checkpoint).name == "speculators"
    found = difference(eagle3(TAPS, rope(-1.0)), read(checkpoint))
    wanted = {"rope": rope(500.0, {"rope_type": "linear", "factor": 4.0}), "embedding": "own"} | {
        "norm_before_residual": {"residual": "normed"}, "norm_before_fc": {"pre_fc_norm": "whole"},
        "fc_norm": {"pre_fc_norm": "per_tap"}, "norm_output": {"feedback": "post_norm"},
        "draft_vocab_size": {"vocabulary": "identity"},
    }.get(next(iter(wires), ""), {})  # fmt: skip
    assert {wire: pair[1] for wire, pair in found.items()} == wanted
    assert [(c.level, c.ids, c.meant) for c in claims(checkpoint, 30)] == [("top", TAPS, TAPS)]


CLAIMS = {  # conventions.md 5.5: config, tensors, L, and what its trainer meant
    "specforge deepseek": (DEEPSEEK, llama(DEEPSEEK), 61, (2, 30, 58)),
    "torchspec kimi": (KIMI, latent(KIMI), 61, (2, 30, 58)),
    "modelopt qwen3-8b": (MODELOPT, llama(MODELOPT, "layers.0"), 36, (2, 18, 33)),
}


@pytest.mark.parametrize(("config", "tensors", "layers", "meant"), CLAIMS.values(), ids=CLAIMS)
def test_claims(tmp_path, config, tensors, layers, meant):
    (claim,) = claims(folder(tmp_path / "draft", config, tensors), layers)
    ids = tuple(config["eagle_config"][KEY])
    assert (claim.level, claim.ids, claim.meant) == ("nested", ids, meant)
    assert claim.as_output == tuple(i + 1 for i in ids)
    assert claim.as_boundary == ids


def test_a_claim_without_a_rule_has_no_meaning(tmp_path):
    """The Kimi-K2.5 story: [2, 30, 58] may be h[2], h[30], h[58] or h[3], h[31], h[59]."""
    config = {**EAGLE, "architectures": ["Other"], "eagle_config": {KEY: [2, 30, 58]}, KEY: [-1, 2]}
    top, nested = claims(folder(tmp_path / "draft", config, llama(EAGLE)), 61)
    assert (nested.meant, nested.as_boundary, nested.as_output) == (None, (2, 30, 58), (3, 31, 59))
    assert (top.meant, top.as_boundary, top.as_output) == (None, None, (0, 3))
    exported = KIMI | {"_torchspec_version": "0.1"}
    (claim,) = claims(folder(tmp_path / "kimi", exported, latent(KIMI, "layers.0")), 61)
    assert claim.meant is None  # its export for vLLM adds 1, or does not


HUGE = 10**400
MALFORMED = {
    "theta is true": {"rope_theta": True},
    "theta is text": {"rope_theta": "1e6"},
    "theta is NaN": {"rope_theta": float("nan")},
    "theta is infinite": {"rope_theta": float("inf")},
    "theta is huge": {"rope_theta": HUGE},
    "theta is one": {"rope_theta": 1},
    "parameters are a list": {"rope_parameters": [1]},
    "nested theta is true": {"rope_parameters": {"rope_theta": True}},
    "scaling is text": {"rope_scaling": "linear"},
    "factor is NaN": {"rope_scaling": {"rope_type": "linear", "factor": float("nan")}},
    "factor is huge": {"rope_scaling": {"rope_type": "linear", "factor": HUGE}},
    "factor is an object": {"rope_scaling": {"rope_type": "linear", "factor": {}}},
    "type is a list": {"rope_scaling": {"rope_type": ["linear"]}},
    "partial is above 1": {"partial_rotary_factor": 1.5},
    "partial is zero": {"rope_parameters": {"partial_rotary_factor": 0}},
    "no rotation": {"mla_use_nope": True},
    "residual is 1": {"norm_before_residual": 1},
    "norm_output is text": {"norm_output": "yes"},
    "norm_output is a list": {"norm_output": []},
    "fc_norm is 1.0": {"fc_norm": 1.0},
    "two norms": {"fc_norm": True, "norm_before_fc": True},
    "eagle_config is a list": {"eagle_config": [1, 2, 3]},
    "another first layer": {"eagle_config": {"use_input_layernorm_in_first_layer": False}},
    "tied is text": {"tie_word_embeddings": "false"},
    "layer config is a list": {"transformer_layer_config": []},
    "a foreign mark": {"draftprobe_convert": {"to": "elsewhere"}},
    "a mark that is text": {"draftprobe_convert": "specforge"},
}


@pytest.mark.parametrize("wrong", MALFORMED.values(), ids=MALFORMED)
def test_malformed_values_are_input_errors(tmp_path, wrong):
    config = {**EAGLE, "architectures": ["Other"]} | wrong
    checkpoint = folder(tmp_path / "draft", config, llama(EAGLE))
    with pytest.raises(InputError, match=r"config\.json: .{10}"):
        read(checkpoint)


def test_an_empty_list_claims_nothing(tmp_path):
    """ModelOpt's templates carry one; training then takes its default."""
    for n, config in enumerate(({KEY: []}, {"eagle_config": {KEY: []}})):
        checkpoint = folder(tmp_path / f"draft{n}", EAGLE | config, llama(EAGLE))
        assert claims(checkpoint, 30) == ()


@pytest.mark.parametrize("ids", ["1,2", [1.0], [True], {"a": 1}, [None]])
def test_malformed_ids_are_input_errors(tmp_path, ids):
    for config in ({KEY: ids}, {"eagle_config": {KEY: ids}}):
        checkpoint = folder(tmp_path / "draft", EAGLE | config, llama(EAGLE))
        with pytest.raises(InputError, match="list of integers"):
            claims(checkpoint, 32)


def test_rope_spellings():
    """conventions.md 2.4; transformers 5 keeps all in rope_parameters."""
    linear = {"rope_type": "linear", "factor": 4.0}
    assert read_rope({}, "") == rope(10000.0)
    assert read_rope({"rope_theta": 5}, "") == rope(5.0)
    assert read_rope({"rope_theta": 5.0, "rope_scaling": linear}, "") == rope(5.0, linear)
    new = {"rope_parameters": linear | {"rope_theta": 7.0, "partial_rotary_factor": 0.5}}
    assert read_rope(new | {"rope_theta": 5.0}, "") == rope(7.0, linear, partial=0.5)
    assert read_rope({"partial_rotary_factor": 0.25}, "") == rope(10000.0, partial=0.25)
    assert read_rope({"rope_scaling": {"type": "default"}}, "") == rope(10000.0)


def test_a_partial_factor_is_read_as_the_trainer_does(tmp_path):
    """Code of the trainers' own turns all of a head; that of speculators is run in test_convert."""
    for name, config, tensors, partial in (
        ("eagle", EAGLE, llama(EAGLE), 1.0),
        ("specforge", DEEPSEEK, llama(DEEPSEEK), 1.0),
        ("unknown", EAGLE | {"architectures": ["Other"]}, llama(EAGLE), 0.5),
    ):
        config = config | {"partial_rotary_factor": 0.5}
        checkpoint = folder(tmp_path / name, config, tensors)
        assert read(checkpoint).rope.partial == partial
        told = [(d.wire, d.taken, d.other) for d in doubts(checkpoint, layout_of(checkpoint))]
        assert told == ([("rope", 1.0, 0.5)] if partial == 1 else [])


def test_a_head_in_the_file_wins_over_a_copied_flag(tmp_path):
    tied = EAGLE | {"tie_word_embeddings": True}
    tensors = llama(EAGLE, embedding=True)
    headless = {name: what for name, what in tensors.items() if name != "lm_head.weight"}
    assert read(folder(tmp_path / "a", tied, tensors)).head == "own"
    assert read(folder(tmp_path / "b", tied, headless)).head == "tied"
    assert read(folder(tmp_path / "c", EAGLE, headless)).head == "target"


WRONG_WIRES = {
    "head": "elsewhere", "pre_fc_norm": 3, "residual": None, "feedback": "PRE_NORM",
    "half_order": [], "vocabulary": "relative", "embedding": True, "embedding_norm": 1,
    "head_norm": "true", "token_shift": True, "position_start": 0.5, "position_advance": "1",
    "embedding_scale": float("nan"), "taps": [1, -2],
}  # fmt: skip


@pytest.mark.parametrize(("wire", "value"), WRONG_WIRES.items(), ids=WRONG_WIRES)
def test_a_written_wiring_is_validated(wire, value):
    good = to_json(eagle3(TAPS, rope(500.0)))
    assert from_json(good, "here") == eagle3(TAPS, rope(500.0))
    with pytest.raises(InputError, match=r"here|taps"):
        from_json(good | {wire: value}, "here")


@pytest.mark.parametrize(
    "wrong",
    [
        {"theta": float("nan")}, {"theta": float("inf")}, {"theta": 0.0}, {"style": "other"},
        {"partial": 2.0}, {"partial": float("nan")}, {"scaling": {"factor": float("inf")}},
        {"scaling": {"factor": {}}}, {"scaling": 3}, {"theta": HUGE},
    ],
)  # fmt: skip
def test_a_written_rope_is_validated(wrong):
    good = to_json(eagle3(TAPS, rope(500.0)))
    with pytest.raises(InputError, match="here"):
        from_json(good | {"rope": good["rope"] | wrong}, "here")


def test_no_tensor_is_read(tmp_path, monkeypatch):
    """DeepSeek's 1.9 GB are a hole here: parsing, recognising and claims touch headers alone."""

    def refuse(*_):
        raise AssertionError("a tensor was read")

    checkpoint = folder(tmp_path / "draft", DEEPSEEK, llama(DEEPSEEK))
    monkeypatch.setattr("draftprobe.drafter.layout.read_tensor", refuse)
    monkeypatch.setattr("draftprobe.drafter.checkpoint.read_tensor", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    read(checkpoint)
    claims(checkpoint, 61)
    doubts(checkpoint, layout_of(checkpoint))


def test_replay_asks_whose_folder_it_is(tmp_path, monkeypatch, capsys):
    """Step 2 hangs on what norm_output meant: neither meaning is taken before it is given."""
    made = tiny.drafter(embedding="own")
    tiny.planted_states(tmp_path / "states.safetensors", made)
    draft = tiny.save_drafter(tmp_path / "draft", made)
    config = json.loads((draft / "config.json").read_text()) | {
        "architectures": ["LlamaForCausalLMEagle3"], "norm_output": True,
    }  # fmt: skip
    (draft / "config.json").write_text(json.dumps(config))
    tensors = load_file(draft / "model.safetensors")
    tensors["t2d"] = torch.ones(tiny.SHAPE.vocabulary, dtype=torch.bool)
    save_file({n: t for n, t in tensors.items() if n != "embed_tokens.weight"},
              draft / "model.safetensors")  # fmt: skip
    words = ["draftprobe", "replay", str(draft), "--states", str(tmp_path / "states.safetensors"),
             "--taps", "0,2,N", "--steps", "3", "--json", "--target",
             str(tiny.save_target(tmp_path / "target", made.embedding))]  # fmt: skip

    def run(*more):
        monkeypatch.setattr("sys.argv", [*words, *more])
        try:
            main()
        except SystemExit as end:
            return end.code or 0
        return 0

    assert run() == 2
    assert "specforge@since-879" in capsys.readouterr().err
    told = {}
    for version in ("before-879", "since-879"):
        assert run("--trainer", f"specforge@{version}") == 0
        told[version] = json.loads(capsys.readouterr().out)["steps"]
    assert told["before-879"][0] == told["since-879"][0]
    assert told["before-879"][1] != told["since-879"][1]


def test_replay_takes_the_ids_of_speculators_and_asks_for_others(tmp_path, monkeypatch, capsys):
    """At top level speculators' ids are boundaries; nested ones of nobody's may be either."""
    taps = (0, 2, 3)
    monkeypatch.setattr(tiny, "TAPS", taps)
    made = tiny.drafter(taps=taps, embedding="own")
    tokens = torch.arange(12) % tiny.SHAPE.vocabulary
    h = {tap: torch.randn(11, tiny.SHAPE.target_hidden) for tap in taps}
    tiny.save_states(tmp_path / "states", [(tokens, torch.ones(12, dtype=torch.bool), h)] * 2)
    draft = tiny.save_drafter(tmp_path / "draft", made)
    config = json.loads((draft / "config.json").read_text())

    def run(change, *more):
        (draft / "config.json").write_text(json.dumps(config | change))
        words = ["draftprobe", "replay", str(draft), "--states", str(tmp_path / "states"), *more]
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capsys.readouterr()

    code, given, _ = run({}, "--taps", "0,2,3")
    assert code == 0
    assert "taps by --taps; every token counts, prompts too" in given
    ours = {"speculators_model_type": "eagle3", KEY: list(taps)}
    code, out, _ = run(ours)
    assert code == 0
    assert f"taps by {KEY} in config.json (speculators: boundaries)" in out
    assert out.splitlines()[:-1] == given.splitlines()[:-1]
    mark = {"draftprobe_convert": {"to": "specforge", KEY: list(taps)}}
    code, out, _ = run(mark | {"norm_output": None})
    assert (code, "taps by draftprobe_convert" in out) == (0, True)
    for change, because in (
        ({"eagle_config": {KEY: [0, 1, 2]}}, "not certain (eagle_config."),
        (ours | {"draftprobe_convert": {"to": "speculators", KEY: [1, 2, 3]}}, "several choices"),
        (mark | {"norm_output": None, "eagle_config": {KEY: [1, 2, 3]}}, "several choices"),
        ({}, "config.json names none"),
    ):
        code, out, error = run(change)
        assert (code, out) == (2, "")
        assert because in error
        assert "give --taps" in error
        assert f"draftprobe inspect {draft}" in error


def test_replay_tells_of_a_config_that_says_otherwise_than_the_golden_file(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(tiny, "TAPS", (0, 2, 3))
    made = tiny.drafter(taps=(0, 2, 3), embedding="own")
    h = {tap: torch.randn(11, tiny.SHAPE.target_hidden) for tap in (0, 2, 3)}
    tokens = torch.arange(12)
    tiny.save_states(tmp_path / "states", [(tokens, torch.ones(12, dtype=torch.bool), h)] * 2)
    draft = tiny.save_drafter(tmp_path / "draft", made)
    states = torch.cat([h[tap] for tap in (0, 2, 3)], -1)
    golden.write(golden.make(made, tokens, states, 2), draft)
    words = ["draftprobe", "replay", str(draft), "--states", str(tmp_path / "states")]
    for changed, told in (({}, ""), ({KEY: [1, 2, 3], "norm_before_residual": True}, "means h[1]")):
        config = json.loads((draft / "config.json").read_text()) | changed
        (draft / "config.json").write_text(json.dumps(config))
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as end:
            main()
        out, error = capsys.readouterr()
        assert (end.value.code or 0, "taps by golden.safetensors" in out) == (0, True)
        assert told in error
        assert bool(error) == bool(told)
        assert ("residual normed" in error) == bool(told)
