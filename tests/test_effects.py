"""What each engine does with a folder besides the taps: the smallest folder for each effect.

The cases are in effect_cases.py. The last tests load every one of these folders with the engines'
own classes: vLLM's in its own environment, SGLang's out of its wheel, over stand-ins for the layers
that it imports.
"""

import ast
import json
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from effect_cases import (
    CASES,
    FC_NORMS,
    GONE,
    INPUT_NORM,
    LATENT,
    LAYERS,
    MLP,
    QK_NORM,
    SIZE,
    TARGET,
    TENSORS,
    Case,
    D,
    H,
    V,
)
from engine_sources import lifted, vllm_python, wheel  # noqa: F401 - a fixture
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from draftprobe.dialects.engines import ENGINES, parse_engine
from draftprobe.dialects.ids import KEY
from draftprobe.dialects.reading import Target
from draftprobe.dialects.vllm_config import seen_by_loader
from draftprobe.drafter.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from draftprobe.drafter.layout import Layout, layout_of
from draftprobe.drafter.wiring import Rope, difference, eagle3


def found(engine: str, folder: Path, hidden: int = H):
    checkpoint = open_checkpoint(folder)
    target = Target("llama", LAYERS, hidden, V, TARGET, "target/config.json")
    return parse_engine(engine).effects(checkpoint, layout_of(checkpoint), target)


def expected_of(case: Case, engine: str):
    """An older SGLang does what 0.5.13 does, unless a case says otherwise."""
    if engine == "sglang@0.5.12.post1" and engine not in case.effects:
        return case.effects.get("sglang@0.5.13", set())
    return case.effects.get(engine, set())


@pytest.mark.parametrize("engine", [*ENGINES, "sglang@0.5.13", "sglang@0.5.12.post1"])
@pytest.mark.parametrize("name", CASES)
def test_effects(name, engine, tmp_path):
    case = CASES[name]
    expected = expected_of(case, engine)
    effects = found(engine, case.write(tmp_path / "draft"), case.hidden)
    for effect in effects:
        assert effect.text
        assert effect.rule.source
        assert str(parse_engine(engine)) == f"{effect.engine}@{effect.version}"
    if expected is GONE:
        assert any(effect.did == "refuses" for effect in effects)
        return
    assert {(e.did, e.subject, e.wire, e.value) for e in effects} == expected


def test_what_an_engine_runs_of_a_wiring(tmp_path):
    meant = eagle3((2, 4, 5), Rope(1e4))
    case = Case({"norm_before_residual": True}, {"embed_tokens.weight": (V, H), **INPUT_NORM})
    folder = case.write(tmp_path / "draft")
    meant = replace(meant, residual="normed", embedding="own", pre_fc_norm="whole")
    engine = parse_engine("sglang")
    served = engine.served(meant, found("sglang", folder))
    assert difference(served, meant) == {
        "residual": ("raw", "normed"),
        "embedding": ("target", "own"),
        "pre_fc_norm": ("none", "whole"),
    }
    vllm = parse_engine("vllm").served(meant, found("vllm", folder))
    assert difference(vllm, meant) == {"pre_fc_norm": ("none", "whole")}


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
INNER = (KEY, "norm_before_fc", "next_layer_regular", "model_type", "use_aux_hidden_state")
ODD = st.dictionaries(
    st.sampled_from(
        (
            *("architectures", "eagle_config", KEY, "draft_vocab_size", "target_hidden_size"),
            *("fc_norm", "norm_output", "norm_before_residual", "norm_before_fc", "bias"),
            *("num_hidden_layers", "hidden_size", "vocab_size", "speculators_config"),
            *("speculators_model_type", "transformer_layer_config", "attention_bias"),
            *("num_aux_hidden_states", "num_aux_layers", "kv_lora_rank", "tie_word_embeddings"),
        )
    ),
    JUNK | st.dictionaries(st.sampled_from(INNER), JUNK, max_size=3),
    max_size=6,
)


@settings(deadline=None, max_examples=200)
@given(
    ODD,
    st.sampled_from([*ENGINES, "sglang@0.5.13"]),
    st.sampled_from([None, "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"]),
    st.dictionaries(
        st.sampled_from([*TENSORS, *LATENT, *FC_NORMS, *QK_NORM, "midlayer.x", "x", "model.d2t"]),
        st.lists(st.integers(0, 70), max_size=3).map(tuple),
    ),
)
def test_fuzz_no_folder_makes_effects_raise(config, engine, architecture, shapes):
    if architecture:
        config = config | {"architectures": [architecture]}
    tensors = {
        name: TensorInfo(name, "F32", shape, Path("x"), 0, 0) for name, shape in shapes.items()
    }
    checkpoint = Checkpoint(Path("draft"), config, tensors)
    layout = Layout({}, (), (), frozenset(), 1, "heads")
    target = Target("llama", LAYERS, H, V, TARGET, "target/config.json")
    for effect in parse_engine(engine).effects(checkpoint, layout, target):
        assert effect.text


# The same folders, loaded by the engines' own classes.


@pytest.fixture(scope="module")
def by_vllm(tmp_path_factory):
    """What vLLM's class made of each case: one process for all, some 15 seconds."""
    python, _ = vllm_python()
    root = tmp_path_factory.mktemp("vllm")
    for hidden in {case.hidden for case in CASES.values()}:
        folder = root / f"target{hidden}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(TARGET | {"hidden_size": hidden}))
    answers = {}
    for hidden in {case.hidden for case in CASES.values()}:
        names = [name for name, case in CASES.items() if case.hidden == hidden]
        folders = [CASES[name].write(root / str(hidden) / str(i)) for i, name in enumerate(names)]
        script = Path(__file__).parent / "engines" / "vllm_load.py"
        command = [python, str(script), str(root / f"target{hidden}"), *map(str, folders)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=240)
        lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
        assert len(lines) == len(names), run.stderr[-2000:]
        answers |= dict(zip(names, map(json.loads, lines), strict=True))
    return answers


FUSED = {
    **dict.fromkeys((".q_proj.", ".k_proj.", ".v_proj."), ".qkv_proj."),
    **dict.fromkeys((".gate_proj.", ".up_proj."), ".gate_up_proj."),
}


def parameters(names: set[str], case: Case) -> set[str]:
    """Our names for parameters as engines fuse them, one norm per tap for all."""
    if any(name.startswith("fc_norm") for name in names):
        names = names | set(FC_NORMS)
    for part, whole in FUSED.items():
        names = {name.replace(part, whole) for name in names}
    return names


def of(effects: Any, *did: str) -> set[str]:
    return {effect.subject for effect in effects if effect.did in did}


def unused(name: str) -> bool:
    """vLLM's and SGLang's later layers each hold a norm that is loaded and never applied."""
    return name in ("layers.1.hidden_norm.weight", "layers.1.input_layernorm.weight")


FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@pytest.mark.parametrize("name", CASES)
def test_vllms_own_class_does_the_same(by_vllm, name, tmp_path):
    case, answer = CASES[name], by_vllm[name]
    folder = case.write(tmp_path / "draft")
    effects = found("vllm", folder, case.hidden)
    later = {KEY, "embed_tokens.weight"}  # fails after loading, where states and tables meet
    assert bool(answer["error"]) == bool(of(effects, "refuses") - later), answer["error"]
    if answer["config"]:
        seen = seen_by_loader(json.loads((folder / "config.json").read_text()))
        got = answer["config"]
        assert [bool(got[flag]) for flag in FLAGS] == [bool(seen.get(flag)) for flag in FLAGS]
        read = parse_engine("vllm").readings(
            open_checkpoint(folder).config, Target("llama", LAYERS, H, V, TARGET, "x")
        )
        for reading in read:
            assert tuple(answer["ids"][reading.variant] or (2, 4, 5)) == reading.taps
    if answer["error"]:
        return
    names = open_checkpoint(folder).tensors
    shared = {n for n in ("embed_tokens.weight", "lm_head.weight", "d2t") if n not in names}
    expected = parameters(of(effects, "leaves at initial value") | shared, case)
    unfilled = {
        name.removeprefix("model.").replace("draft_id_to_target_id", "d2t")
        for name in answer["unfilled"]
    }
    size = case.config.get("draft_vocab_size", D) or V
    absent = {"d2t"} if size == V else set()
    applied = {name for name in unfilled if name != "layers.1.hidden_norm.weight"}
    assert applied == expected - absent
    dropped = {name for name in of(effects, "ignores tensor") if not unused(name)}
    assert set(answer["dropped"]) - {"t2d"} == dropped


# SGLang's drafter classes, out of the wheel's source, over stand-ins for what they import.


class Weight(torch.nn.Module):
    """A layer that is nothing but its parameters; a part of a fused one is loaded by its name."""

    def __init__(self, rows: int, columns: int = 0, bias: bool = False, parts: Any = None):
        super().__init__()
        shape = (rows, columns) if columns else (rows,)
        self.weight = torch.nn.Parameter(torch.full(shape, MARKER), requires_grad=False)
        self.bias = None
        if bias:
            self.bias = torch.nn.Parameter(torch.full((rows,), MARKER), requires_grad=False)
        if parts:
            self.weight.weight_loader = self._loader(parts)

    def _loader(self, parts: dict[Any, tuple[int, int]]):
        def load(parameter: Any, tensor: torch.Tensor, part: Any = None) -> None:
            first, last = parts[part] if part is not None else (0, parameter.shape[0])
            assert tensor.shape == parameter[first:last].shape
            parameter.data[first:last] = tensor

        return load


MARKER = -77.0


def qkv(columns, size, heads, kv, bias=False, **_):
    ends = [0, heads * size, (heads + kv) * size, (heads + 2 * kv) * size]
    parts = {"q": (0, ends[1]), "k": (ends[1], ends[2]), "v": (ends[2], ends[3])}
    return Weight(ends[3], columns, bias, parts)


class StandInMLP(torch.nn.Module):
    def __init__(self, *given, **named):
        super().__init__()
        hidden, inner = (named.get("hidden_size"), named.get("intermediate_size"))
        hidden, inner = given[:2] if given else (hidden, inner)
        self.gate_up_proj = Weight(2 * inner, hidden, parts={0: (0, inner), 1: (inner, 2 * inner)})
        self.down_proj = Weight(hidden, inner)


class StandInLayer(torch.nn.Module):
    """The part of SGLang's Llama layer that its drafter keeps: o_proj and two norms."""

    def __init__(self, config, layer_id=0, *_, **__):
        super().__init__()
        self.hidden_size = config.hidden_size
        bias = getattr(config, "attention_bias", False) or getattr(config, "bias", False)
        heads, size = config.num_attention_heads, config.head_dim
        self.self_attn = torch.nn.Module()
        self.self_attn.head_dim, self.self_attn.total_num_heads = size, heads
        self.self_attn.total_num_kv_heads = config.num_key_value_heads
        self.self_attn.o_proj = Weight(config.hidden_size, heads * size, bias)
        self.input_layernorm = Weight(config.hidden_size)
        self.post_attention_layernorm = Weight(config.hidden_size)


class StandInLatent(torch.nn.Module):
    """The part of SGLang's latent attention that its drafter keeps."""

    def __init__(self, config, hidden_size, num_heads, q_lora_rank, kv_lora_rank, **named):
        super().__init__()
        nope, rope, value = (
            named[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        self.q_lora_rank, self.kv_lora_rank, self.qk_rope_head_dim = q_lora_rank, kv_lora_rank, rope
        self.qk_nope_head_dim, self.v_head_dim = nope, value
        self.q_a_layernorm, self.kv_a_layernorm = Weight(q_lora_rank), Weight(kv_lora_rank)
        self.q_b_proj = Weight(num_heads * (nope + rope), q_lora_rank)
        self.kv_b_proj = Weight(num_heads * (nope + value), kv_lora_rank)
        self.o_proj = Weight(hidden_size, num_heads * value)


def sglang_class(source: str, name: str) -> Any:
    """A class of SGLang's source whose imports of SGLang are stand-ins."""
    tree = ast.parse(source)
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.ImportFrom) and str(node.module).startswith("sglang"))
    ]
    anything = MagicMock()
    group = SimpleNamespace(pp_group=None)

    def linear(columns, rows, bias=False, **_):
        return Weight(rows, columns, bias)

    scope = {
        **dict.fromkeys(
            (
                *("ForwardBatch", "PPProxyTensors", "QuantizationConfig", "DraftTPExecution"),
                *("DraftParallelSpec", "LogitsProcessor", "triton_symm_mem_ag", "BumpAllocator"),
                *("AttentionInputs", "get_attn_tp_context"),
            ),
            anything,
        ),
        "LlamaForCausalLM": torch.nn.Module,
        "LlamaDecoderLayer": StandInLayer,
        "LlamaMLP": StandInMLP,
        "DeepseekV2MLP": StandInMLP,
        "DeepseekV2AttentionMLA": StandInLatent,
        "RMSNorm": lambda size, eps: Weight(size),
        "QKVParallelLinear": qkv,
        "ReplicatedLinear": linear,
        "ColumnParallelLinear": linear,
        "VocabParallelEmbedding": lambda rows, columns, **_: Weight(rows, columns),
        "ParallelLMHead": lambda rows, columns, **_: Weight(rows, columns),
        "get_embedding_tp_kwargs": dict,
        "default_weight_loader": load_whole,
        "add_prefix": lambda *_: "",
        "layer_stack": nullcontext,
        "get_pp_group": lambda: None,
        "get_parallel": lambda: group,
        "get_spec": lambda: SimpleNamespace(speculative_draft_window_size=None),
        "get_global_server_args": lambda: SimpleNamespace(speculative_draft_window_size=None),
    }
    exec(compile(tree, name, "exec"), scope)  # the test's own purpose
    return scope[name]


def load_whole(parameter, tensor):
    assert parameter.shape == tensor.shape
    parameter.data.copy_(tensor)


SGLANG_FILES = {
    "LlamaForCausalLMEagle3": "models/llama_eagle3",
    "Eagle3DeepseekV2ForCausalLM": "models/kimi_k25_eagle3",
}


@pytest.mark.parametrize("version", ["0.5.12.post1", "0.5.13", "0.5.23"])
@pytest.mark.parametrize("name", CASES)
def test_sglangs_own_class_does_the_same(wheel, name, version, tmp_path):  # noqa: F811
    case = CASES[name]
    folder = case.write(tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text())
    kind = config["architectures"][0]
    if kind not in SGLANG_FILES:
        pytest.skip(f"no class of SGLang's is named {kind}")
    cls = sglang_class(wheel(version, SGLANG_FILES[kind]), kind)
    engine = f"sglang@{version}"
    effects = found(engine, folder, case.hidden)
    defaults = {"head_dim": SIZE, "rope_theta": 1e4, "rope_scaling": None}
    tensors = load_file(folder / "model.safetensors")
    later = {KEY, "hidden_act"}  # the first request fails; the stand-in MLP takes any
    try:
        model = cls(SimpleNamespace(**(defaults | config)))
        for parameter in model.parameters():
            parameter.data.fill_(MARKER)
        model.load_weights(iter(tensors.items()))
    except (AssertionError, AttributeError, TypeError):
        assert of(effects, "refuses") - later
        return
    assert not of(effects, "refuses") - later
    unfilled = {
        part
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if (parameter == MARKER).any()
        for part in [name.removeprefix("model.").replace("midlayer.", "layers.0.")]
    }
    replaced_later = {"embed_tokens.weight", "lm_head.weight"} - of(
        effects, "leaves at initial value"
    )
    expected = parameters(of(effects, "leaves at initial value"), case)
    one_layer_more = {"layers.1.input_layernorm.weight"}  # there, and never applied
    assert unfilled - replaced_later - one_layer_more == expected
    held = {float(v) for p in model.parameters() for v in p.detach().flatten().unique()}
    dropped = {
        n for n, t in tensors.items() if t.is_floating_point() and float(t.flatten()[0]) not in held
    }
    told = of(effects, "ignores tensor") | {"embed_tokens.weight", "lm_head.weight"}
    assert dropped <= told
    loaded = {effect.subject for effect in effects if "never applies" in effect.text}
    assert {n for n in of(effects, "ignores tensor") - loaded if not unused(n)} <= dropped
    whole = getattr(model.model, "input_norm", None) is not None
    per_tap = getattr(model.model, "fc_norm", None) is not None
    applied = {e.value for e in effects if e.wire == "pre_fc_norm" and e.subject not in loaded}
    if applied:
        assert applied == {"whole" if whole else "per_tap" if per_tap else "none"}
    if config.get("norm_output"):
        silent = any(e.subject == "norm_output" for e in effects)
        assert bool(getattr(model.model, "norm_output", False)) != silent
    if "d2t" in tensors:
        assert torch.equal(model.hot_token_id, tensors["d2t"] + torch.arange(len(tensors["d2t"])))
    else:
        assert model.hot_token_id is None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("key", ["num_hidden_layers", "num_aux_hidden_states"])
def test_a_count_beyond_any_drafter_costs_no_memory(engine, key, tmp_path):
    folder = Case({key: 10**30, "fc_norm": True}).write(tmp_path / "draft")
    assert len(found(engine, folder)) < 20_000


@pytest.mark.parametrize("version", ["0.5.12.post1", "0.5.13", "0.5.23"])
@pytest.mark.parametrize("file", SGLANG_FILES.values())
@pytest.mark.parametrize("slots", [1, 3])
def test_sglangs_own_forward_skips_fc_of_one_state(wheel, file, version, slots):  # noqa: F811
    source = wheel(version, file)
    [forward] = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and node.name == "forward"
        and "self.fc(" in ast.unparse(node)
    ]
    applied, paired = [], "hidden_states, _ = self.fc(" in source

    def applies(name):
        def run(states):
            applied.append(name)
            return (states[:, :H], None) if name == "fc" and paired else states[:, :H]

        return run

    model = MagicMock(is_mrope_enabled=False, num_aux_hidden_states=slots)
    model.fc, model.input_norm = applies("fc"), None
    model.fc_norm = [applies("norm")] * slots
    model._fc_gatherer = lambda states: states
    model.layers, model.norm = [], lambda states, _: (states, states)
    model.midlayer = lambda *given, **named: (torch.zeros(3, H), None)
    scope = lifted(ast.unparse(forward), "forward", torch=torch, BumpAllocator=MagicMock())
    batch = MagicMock()
    batch.spec_info.hidden_states = torch.zeros(3, slots * H)
    scope(model, torch.arange(3), torch.arange(3), batch, input_embeds=torch.zeros(3, H))
    norms = ["norm"] * slots if "self.fc_norm" in source else []
    assert applied == ([] if slots == 1 else [*norms, "fc"])


@pytest.mark.parametrize("version", ["0.5.12.post1", "0.5.13", "0.5.23"])
@pytest.mark.parametrize(
    ("file", "name"), [("models/llama", "LlamaMLP"), ("models/deepseek_v2", "DeepseekV2MLP")]
)
def test_sglangs_own_mlp_refuses_another_activation(wheel, file, name, version):  # noqa: F811
    tree = ast.parse(wheel(version, file))
    [mlp] = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    init = next(n for n in mlp.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    names = {n.id: MagicMock() for n in ast.walk(init) if isinstance(n, ast.Name)}
    names |= {"super": MagicMock, "ValueError": ValueError}
    build = lifted(ast.unparse(init), "__init__", **names)
    build(MagicMock(), H, MLP, "silu")
    with pytest.raises(ValueError, match="Only silu"):
        build(MagicMock(), H, MLP, "gelu")
