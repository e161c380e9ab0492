"""Conversion: tensors bit for bit, the wiring kept or refused by name, nothing overwritten.

Expected tensors are the bytes that went in, expected ids are counted by hand from conventions.md
section 1, and a folder in speculators' layout is loaded and run by speculators itself.
"""

import hashlib
import itertools
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from synthetic import write_safetensors
from tiny import SHAPE

from draftprobe.cli import main
from draftprobe.dialects.convert import convert
from draftprobe.dialects.holds import FORMATS
from draftprobe.dialects.ids import KEY
from draftprobe.dialects.meant import Wish
from draftprobe.dialects.trainers import claims, parse
from draftprobe.drafter import golden
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.layout import layout_of
from draftprobe.drafter.model import load_drafter, unroll
from draftprobe.drafter.shape import shape_of
from draftprobe.drafter.wiring import Rope, Wiring, eagle3
from draftprobe.errors import InputError

H, V, D, LAYERS = 32, 96, 40, 12
TAPS = (2, 6, 9)  # EAGLE's own choice at 12 layers: 2, L // 2, L - 3
PLAIN = eagle3(TAPS, Rope(500.0))
PAIRS = list(itertools.permutations(FORMATS, 2))


def target(path, layers=LAYERS, family="llama"):
    path.write_text(
        json.dumps({
            "model_type": family, "num_hidden_layers": layers, "hidden_size": H,
            "architectures": ["LlamaForCausalLM"],
        })
    )  # fmt: skip
    return path


def weights(
    wiring,
    layers=1,
    qk_norm=False,
    bias=False,
    width=H,
    seed=0,
):
    """Random tensors under the inside names, every one different, d2t a true table."""
    taps = len(wiring.taps)
    shapes = {"fc.weight": (H, taps * width), "norm.weight": (H,), "lm_head.weight": (D, H)}
    if wiring.vocabulary == "identity":
        shapes["lm_head.weight"] = (V, H)
    for i in range(layers):
        stem, reads = f"layers.{i}.", 2 * H if i == 0 else H
        shapes |= {
            stem + "self_attn.q_proj.weight": (32, reads),
            stem + "self_attn.k_proj.weight": (16, reads),
            stem + "self_attn.v_proj.weight": (16, reads),
            stem + "self_attn.o_proj.weight": (H, 32),
            stem + "mlp.gate_proj.weight": (48, H), stem + "mlp.up_proj.weight": (48, H),
            stem + "mlp.down_proj.weight": (H, 48), stem + "input_layernorm.weight": (H,),
            stem + "post_attention_layernorm.weight": (H,),
        }  # fmt: skip
        if i == 0:
            shapes[stem + "hidden_norm.weight"] = (H,)
        if qk_norm:
            shapes |= {stem + f"self_attn.{n}_norm.weight": (8,) for n in "qk"}
        if bias:
            rows = {"q": 32, "k": 16, "v": 16, "o": H}
            shapes |= {stem + f"self_attn.{n}_proj.bias": (rows[n],) for n in rows}
    if wiring.rope.style == "interleaved":
        shapes = latent(shapes)
    if wiring.pre_fc_norm == "whole":
        shapes["input_norm.weight"] = (taps * width,)
    elif wiring.pre_fc_norm == "per_tap":
        shapes |= {f"fc_norm.{i}.weight": (width,) for i in range(taps)}
    if wiring.embedding == "own":
        shapes["embed_tokens.weight"] = (V, H)
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        scale = 0.3 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5
        start = 1.0 if len(shape) == 1 else 0.0
        made[name] = (start + scale * torch.randn(shape, generator=generator)).bfloat16()
    if wiring.vocabulary != "identity":
        kept = torch.randperm(V, generator=generator)[:D].sort().values
        made["d2t"] = kept - torch.arange(D)
        made["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill(0, kept, True)
    return made


def latent(shapes):
    """The attention's tensors of MLA: 4 heads of 8 + 4 channels, values of 8, ranks 16 and 12."""
    kept = {name: shape for name, shape in shapes.items() if ".self_attn." not in name}
    stem = "layers.0.self_attn."
    return kept | {
        stem + "q_a_proj.weight": (16, 2 * H), stem + "q_a_layernorm.weight": (16,),
        stem + "q_b_proj.weight": (48, 16), stem + "kv_a_proj_with_mqa.weight": (16, 2 * H),
        stem + "kv_a_layernorm.weight": (12,), stem + "kv_b_proj.weight": (64, 12),
        stem + "o_proj.weight": (H, 32),
    }  # fmt: skip


def source(path, wiring=PLAIN, tensors=None, **anatomy):
    """A folder of no stack in particular: each key says what its name says."""
    path.mkdir()
    scaling = dict(wiring.rope.scaling)
    config = {
        "architectures": ["SomethingElse"], "hidden_size": H, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "vocab_size": V,
        "rope_theta": wiring.rope.theta, "rope_scaling": scaling or None,
        "partial_rotary_factor": wiring.rope.partial, "max_position_embeddings": 256,
        "norm_before_residual": wiring.residual == "normed",
        "norm_output": wiring.feedback == "post_norm", "attention_bias": bool(anatomy.get("bias")),
    }  # fmt: skip
    if wiring.rope.style == "interleaved":
        del config["num_key_value_heads"]
    (path / "config.json").write_text(json.dumps(config))
    made = weights(wiring, **anatomy) if tensors is None else tensors
    save_file(made, path / "model.safetensors")
    return path


def contents(folder):
    """Every tensor as (inside name, dtype, shape, bytes)."""
    checkpoint = open_checkpoint(folder)
    layout = layout_of(checkpoint)
    return {
        name: (tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(-1).view(torch.uint8))
        for name in layout.sources
        for tensor in [layout.read(checkpoint, name)]
    }


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(
        a[:2] == b[:2] and torch.equal(a[2], b[2])
        for a, b in ((ours[name], theirs[name]) for name in ours)
    )


def read_back(folder):
    """The wiring of a folder by what stands in it alone, the taps by its noted boundaries."""
    checkpoint = open_checkpoint(folder)
    (taps,) = {claim.meant for claim in claims(checkpoint, None) if claim.level == "mark"}
    assert taps is not None
    return parse(checkpoint, layout_of(checkpoint), taps)


def wish(path, taps=TAPS):
    return Wish(taps=taps, target=target(path / "target.json"))


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize("vocabulary", ["offset", "identity"])
def test_there_and_back_bit_for_bit(tmp_path, a, b, vocabulary):
    """Each ordered pair: from a to b and back to a, equal tensors and an equal wiring."""
    wiring = replace(PLAIN, vocabulary=vocabulary)
    asked = wish(tmp_path)
    draft = source(tmp_path / "draft", wiring)
    convert(draft, a, tmp_path / "a", asked)
    convert(tmp_path / "a", b, tmp_path / "b", Wish(target=asked.target))
    convert(tmp_path / "b", a, tmp_path / "again", Wish(target=asked.target))
    for name in ("a", "b", "again"):
        assert read_back(tmp_path / name) == wiring
    assert same(contents(tmp_path / "a"), contents(tmp_path / "again"))
    first, again = (load_file(tmp_path / n / "model.safetensors") for n in ("a", "again"))
    assert first.keys() == again.keys()
    kept = contents(draft)
    for name, what in contents(tmp_path / "b").items():
        assert same({name: what}, {name: kept[name]})
    missing = kept.keys() - contents(tmp_path / "b").keys()
    assert missing == ({"t2d"} if b == "modelopt" and vocabulary == "offset" else set())


NAMES = {  # conventions.md 5.3
    "specforge": "midlayer.self_attn.q_proj.weight", "eagle": "midlayer.self_attn.q_proj.weight",
    "torchspec": "midlayer.self_attn.q_proj.weight",
    "speculators": "layers.0.self_attn.q_proj.weight",
    "modelopt": "layers.0.self_attn.q_proj.weight",
}  # fmt: skip
SPELLED = {  # conventions.md 1.1: output ids are boundaries less one, speculators' are boundaries
    "specforge": ("nested", [1, 5, 8]), "modelopt": ("nested", [1, 5, 8]),
    "torchspec": ("nested", [1, 5, 8]), "speculators": ("top", [2, 6, 9]), "eagle": ("", []),
}  # fmt: skip


@pytest.mark.parametrize("to", FORMATS)
def test_names_and_ids_as_the_stack_means_them(tmp_path, to):
    done = convert(source(tmp_path / "draft"), to, tmp_path / "out", wish(tmp_path))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    nested = config.get("eagle_config", {}).get(KEY)
    level, ids = SPELLED[to]
    assert (done.level, list(done.ids)) == (level, ids)
    assert config.get(KEY) == (ids if level == "top" else None)
    assert nested == (ids if level == "nested" else None)
    assert NAMES[to] in load_file(tmp_path / "out" / "model.safetensors")
    layer = config.get("transformer_layer_config", config)
    assert layer["rope_theta"] == 500.0
    assert config["draft_vocab_size"] == D
    assert config["tie_word_embeddings"] is False


def test_specforges_ids_follow_the_targets_family(tmp_path):
    """SGLang on DeepSeek's family: [0, 3, 31] are h[0], h[3], h[31] (conventions.md 1.2, 8)."""
    wiring = replace(PLAIN, taps=(0, 3, 31))
    draft = source(tmp_path / "draft", wiring)
    deepseek = target(tmp_path / "deepseek.json", 61, "kimi_k25")
    done = convert(draft, "specforge", tmp_path / "out", Wish(taps=(0, 3, 31), target=deepseek))
    assert done.ids == (0, 3, 31)
    assert read_back(tmp_path / "out").taps == (0, 3, 31)
    llama = target(tmp_path / "llama.json", 61)
    with pytest.raises(InputError, match="h\\[0\\] would be id -1"):
        convert(draft, "specforge", tmp_path / "no", Wish(taps=(0, 3, 31), target=llama))


REFUSED = {  # what it is, the layouts that hold it, and the word that the others' refusals name
    "normed residual": ({"residual": "normed"}, {}, {"speculators"}, "residual"),
    "whole norm": ({"pre_fc_norm": "whole"}, {}, {"speculators"}, "pre_fc_norm"),
    "norm per tap": (
        {"pre_fc_norm": "per_tap"}, {}, {"specforge", "speculators", "torchspec"}, "pre_fc_norm",
    ),
    "normed feedback": (
        {"feedback": "post_norm"}, {}, {"specforge", "speculators", "torchspec"}, "feedback",
    ),
    "own embedding": (
        {"embedding": "own"}, {}, {"eagle", "speculators", "torchspec"}, "embedding",
    ),
    "embedding output": ({"taps": (0, 3, 9)}, {}, {"speculators"}, "taps"),
    "last layer": ({"taps": (2, 6, 12)}, {}, {"speculators", "modelopt"}, "taps"),
    "final norm": ({"taps": (2, 6, "N")}, {}, set(), "taps"),
    "another order": ({"taps": (6, 2, 9)}, {}, set(), "taps"),
    "two taps": ({"taps": (2, 9)}, {}, {"speculators", "torchspec"}, "taps"),
    "not EAGLE's choice": (
        {"taps": (2, 5, 9)}, {}, {"specforge", "speculators", "modelopt", "torchspec"}, "taps",
    ),
    "partial rotation": ({"rope": Rope(500.0, partial=0.5)}, {}, set(), "rope"),
    "llama3 rope": (
        {"rope": Rope(500.0, scaling=(
            ("factor", 8.0), ("high_freq_factor", 4.0), ("low_freq_factor", 1.0),
            ("original_max_position_embeddings", 64), ("rope_type", "llama3"),
        ))}, {}, {"specforge", "speculators", "modelopt", "torchspec"}, "rope",
    ),
    "two layers": ({}, {"layers": 2}, {"speculators", "modelopt"}, "2 decoder layers"),
    "qk norm": ({}, {"qk_norm": True}, {"speculators"}, "norms of queries"),
    "biases": ({}, {"bias": True}, {"speculators", "modelopt"}, "biases"),
    "a narrow drafter": (
        {}, {"width": 64}, {"specforge", "eagle", "torchspec"}, "hidden size of 32 on taps of 64",
    ),
    "latent attention": (
        {"rope": Rope(500.0, "interleaved")}, {}, {"modelopt", "torchspec"}, "latent attention",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wires", "anatomy", "held", "word"), REFUSED.values(), ids=REFUSED)
def test_what_a_layout_cannot_hold_is_refused_by_name(tmp_path, wires, anatomy, held, word):
    wiring = replace(PLAIN, **wires)
    draft, asked = source(tmp_path / "draft", wiring, **anatomy), wish(tmp_path, wiring.taps)
    for to in FORMATS:
        if to in held:
            convert(draft, to, tmp_path / to, asked)
            assert read_back(tmp_path / to) == wiring
            kept = contents(draft)
            assert all(same({n: w}, {n: kept[n]}) for n, w in contents(tmp_path / to).items())
        else:
            with pytest.raises(InputError) as caught:
                convert(draft, to, tmp_path / to, asked)
            assert to in str(caught.value)
            assert word in str(caught.value)
            assert not (tmp_path / to).exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


LINEAR = Rope(500.0, scaling=(("factor", 4.0), ("type", "linear")))
LOADED = {
    "plain": {},
    "all flags": {"residual": "normed", "pre_fc_norm": "whole", "feedback": "post_norm"},
    "per tap": {"pre_fc_norm": "per_tap", "rope": LINEAR, "embedding": "own"},
    "full vocabulary": {"vocabulary": "identity"},
}


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    """A real target, whose embedding speculators reads where the drafter has none."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        hidden_size=H, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=V, tie_word_embeddings=False,
    )  # fmt: skip
    where = tmp_path_factory.mktemp("verifier")
    LlamaForCausalLM(config).save_pretrained(where)
    return where


@pytest.mark.parametrize("wires", LOADED.values(), ids=LOADED)
@pytest.mark.parametrize("qk_norm", [False, True])
def test_speculators_loads_and_runs_what_was_written(tmp_path, verifier, wires, qk_norm):
    """Its own from_pretrained, then its own module: the same logits at every step."""
    pytest.importorskip("speculators", reason="speculators is not installed; see `make test`")
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    wiring, out = replace(PLAIN, taps=(0, 6, 12), **wires), tmp_path / "out"
    draft = source(tmp_path / "draft", wiring, qk_norm=qk_norm)
    asked = Wish(taps=wiring.taps, target=verifier, verifier=str(verifier))
    notes = convert(draft, "speculators", out, asked).notes
    assert ["no embedding" in note for note in notes] == [True] * (wiring.embedding == "target")
    config = Eagle3SpeculatorConfig.from_pretrained(out)
    config.transformer_layer_config._attn_implementation = "eager"  # its other one needs CUDA
    peer = Eagle3DraftModel.from_pretrained(out, config=config, dtype=torch.float32)
    held, stored = peer.state_dict(), load_file(out / "model.safetensors")
    assert all(torch.equal(held[name].double(), stored[name].double()) for name in stored)
    table = load_file(verifier / "model.safetensors")["model.embed_tokens.weight"]
    unsaved = {"verifier_norm.weight", "verifier_lm_head.weight"}
    if wiring.embedding == "target":
        unsaved.add("embed_tokens.weight")  # what the note says: eight loads, two of them random
        peer.load_state_dict({"embed_tokens.weight": table}, strict=False)
    assert held.keys() - stored.keys() == unsaved
    compare_steps(load_drafter(open_checkpoint(out), read_back(out), table), peer.eval())


def compare_steps(ours, peer):
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(20, 3 * H, generator=generator)
    tokens = torch.randint(V, (21,), generator=generator)
    seen = []
    peer.lm_head.register_forward_hook(lambda _module, _args, output: seen.append(output[0]))
    with torch.no_grad():
        peer(
            hidden_states=states[None], input_ids=tokens[None, 1:],
            document_ids=torch.zeros(1, 20, dtype=torch.long), ttt_steps=3,
        )  # fmt: skip
    with torch.inference_mode():
        found = [ours.logits(o)[0] for o in unroll(ours, states[None], tokens[None], 3)]
    for step, (a, b) in enumerate(zip(found, seen, strict=True)):
        torch.testing.assert_close(a[: 20 - step], b[: 20 - step], rtol=1e-4, atol=1e-4)
    assert found[1].sub(found[0]).abs().max() > 0.01


def test_all_ways_of_lying_in_files(tmp_path):
    """Sharded, fused, prefixed and pickled sources give the same bytes as the plain one."""
    asked, tensors = wish(tmp_path), weights(PLAIN)
    wanted = contents(source(tmp_path / "plain", tensors=tensors))
    stem = "layers.0."
    fused = {name: tensor for name, tensor in tensors.items() if "q_proj" not in name}
    for name in ("k_proj", "v_proj"):
        del fused[f"{stem}self_attn.{name}.weight"]
    for name in ("gate_proj", "up_proj"):
        del fused[f"{stem}mlp.{name}.weight"]
    fused[f"{stem}self_attn.qkv_proj.weight"] = torch.cat(
        [tensors[f"{stem}self_attn.{n}_proj.weight"] for n in "qkv"]
    )
    fused[f"{stem}mlp.gate_up_proj.weight"] = torch.cat(
        [tensors[f"{stem}mlp.{n}_proj.weight"] for n in ("gate", "up")]
    )
    for name, some in (
        ("fused", fused), ("prefixed", {"model." + n: t for n, t in tensors.items()}),
    ):  # fmt: skip
        source(tmp_path / name, tensors=some)
    sharded, pickled = source(tmp_path / "sharded"), source(tmp_path / "pickled")
    halves = [dict(list(tensors.items())[i::2]) for i in range(2)]
    files = {f"model-{i}.safetensors": half for i, half in enumerate(halves)}
    for name, half in files.items():
        save_file(half, sharded / name)
    weight_map = {tensor: name for name, half in files.items() for tensor in half}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (sharded / "model.safetensors").unlink()
    torch.save(tensors | fused, pickled / "pytorch_model.bin")
    torch.save(tensors, pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    for name in ("plain", "sharded", "fused", "prefixed", "pickled"):
        convert(tmp_path / name, "speculators", tmp_path / f"{name}-out", asked)
        assert same(contents(tmp_path / f"{name}-out"), wanted), name


def test_a_fused_pickle(tmp_path):
    tensors = weights(PLAIN)
    draft = source(tmp_path / "draft", tensors=tensors)
    parts = [tensors.pop(f"layers.0.mlp.{n}_proj.weight") for n in ("gate", "up")]
    torch.save(tensors | {"layers.0.mlp.gate_up_proj.weight": torch.cat(parts)},
               draft / "pytorch_model.bin")  # fmt: skip
    (draft / "model.safetensors").unlink()
    convert(draft, "specforge", tmp_path / "out", wish(tmp_path))
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(written["midlayer.mlp.gate_proj.weight"], parts[0])
    assert torch.equal(written["midlayer.mlp.up_proj.weight"], parts[1])


def test_nothing_is_overwritten(tmp_path):
    draft, asked = source(tmp_path / "draft"), wish(tmp_path)
    before = {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in draft.iterdir()}
    for make in (
        lambda p: p.mkdir(),
        lambda p: p.write_text("mine"),
        lambda p: p.symlink_to(tmp_path / "nowhere"),
    ):
        out = tmp_path / "out"
        make(out)
        with pytest.raises(InputError, match="exists already"):
            convert(draft, "specforge", out, asked)
        with pytest.raises(InputError, match="exists already"):
            convert(draft, "specforge", draft, asked)
        out.rmdir() if out.is_dir() else out.unlink()
    with pytest.raises(InputError, match="cannot be written"):
        convert(draft, "specforge", tmp_path / "no" / "out", asked)
    assert before == {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in draft.iterdir()}


def test_a_disagreeing_table_is_not_lost(tmp_path):
    """ModelOpt keeps d2t alone: a t2d that says otherwise cannot come back, so it is refused."""
    tensors = weights(PLAIN)
    tensors["t2d"] = ~tensors["t2d"]
    draft = source(tmp_path / "draft", tensors=tensors)
    with pytest.raises(InputError, match="t2d and d2t disagree"):
        convert(draft, "modelopt", tmp_path / "out", wish(tmp_path))
    tensors["d2t"] = tensors.pop("d2t") + V
    del tensors["t2d"]
    broken = source(tmp_path / "broken", tensors=tensors)
    with pytest.raises(InputError, match=r"outside 0\.\.95"):
        convert(broken, "specforge", tmp_path / "out", wish(tmp_path))


@pytest.mark.parametrize("change", [lambda table: table.float(), lambda table: table[:, None]])
@pytest.mark.parametrize("to", FORMATS)
def test_a_table_of_another_kind_is_refused(tmp_path, change, to):
    tensors = weights(PLAIN)
    tensors["d2t"] = change(tensors["d2t"])
    draft = source(tmp_path / "draft", tensors=tensors)
    with pytest.raises(InputError, match="expected d2t as one row of integers"):
        convert(draft, to, tmp_path / "out", wish(tmp_path))
    assert not (tmp_path / "out").exists()


def test_taps_must_be_certain(tmp_path):
    draft, aim = source(tmp_path / "draft"), target(tmp_path / "target.json")
    config = json.loads((draft / "config.json").read_text())
    with pytest.raises(InputError, match="names no layers"):
        convert(draft, "specforge", tmp_path / "out", Wish(target=aim))
    (draft / "config.json").write_text(json.dumps(config | {"eagle_config": {KEY: [1, 5, 8]}}))
    with pytest.raises(InputError, match=r"not certain.*--read-ids"):
        convert(draft, "specforge", tmp_path / "out", Wish(target=aim))
    done = convert(draft, "speculators", tmp_path / "o", Wish(read_ids="output", target=aim))
    assert done.wiring.taps == (2, 6, 9)
    done = convert(draft, "speculators", tmp_path / "b", Wish(read_ids="boundary", target=aim))
    assert done.wiring.taps == (1, 5, 8)
    with pytest.raises(InputError, match="--read-ids"):
        convert(draft, "specforge", tmp_path / "out", Wish(read_ids="raw", target=aim))
    with pytest.raises(InputError, match="does not exist"):
        convert(draft, "specforge", tmp_path / "out", Wish(taps=(2, 6, 40), target=aim))
    with pytest.raises(InputError, match="--to"):
        convert(draft, "sglang", tmp_path / "out", Wish(taps=TAPS, target=aim))


def test_memory_stays_small(tmp_path):
    """A table of 512 MB goes through in a process that never holds it."""
    draft = source(tmp_path / "draft", replace(PLAIN, embedding="own", vocabulary="offset"))
    config = json.loads((draft / "config.json").read_text())
    rows = 2**23
    (draft / "config.json").write_text(json.dumps(config | {"vocab_size": rows}))
    holes = {
        name: ("BF16" if tensor.is_floating_point() else "I64", tuple(tensor.shape))
        for name, tensor in weights(PLAIN).items()
        if name != "t2d"
    }
    write_safetensors(draft / "model.safetensors",
                      holes | {"embed_tokens.weight": ("BF16", (rows, H))})  # fmt: skip
    code = (
        "import sys; from pathlib import Path\n"
        "from draftprobe.dialects.convert import convert\n"
        "from draftprobe.dialects.meant import Wish\n"
        "convert(Path(sys.argv[1]), 'speculators', Path(sys.argv[2]), Wish(taps=(2, 6, 9)))\n"
        "assert 'torch' not in sys.modules\n"
        "peak = [x for x in open('/proc/self/status') if x.startswith('VmHWM')]\n"
        "print(int(peak[0].split()[1]) // 1024)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, draft, tmp_path / "out"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(run.stdout) < 150
    assert (tmp_path / "out" / "model.safetensors").stat().st_size > rows * H * 2
    shutil.rmtree(tmp_path / "out")


def test_command_line(tmp_path, capsys, monkeypatch):
    draft, aim = source(tmp_path / "draft"), target(tmp_path / "target.json")
    words = ["convert", str(draft), "--to", "torchspec", "--out", str(tmp_path / "out"),
             "--target", str(aim), "--taps", "2,6,9"]  # fmt: skip

    def run(*more):
        monkeypatch.setattr(sys, "argv", ["draftprobe", *words, *more])
        try:
            main()
        except SystemExit as end:
            return end.code or 0
        return 0

    assert run("--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["to"], told["ids"], told["wiring"]["taps"]) == ("torchspec", [1, 5, 8], [2, 6, 9])
    assert told["source"]["name"] == "unknown"
    assert run() == 2
    assert "exists already" in capsys.readouterr().err
    words[5] = str(tmp_path / "again")
    assert run() == 0
    out = capsys.readouterr().out
    assert "h[2], h[6], h[9], as nested ids [1, 5, 8]" in out
    assert "give --target" in out  # this target's config has no vocab_size
    draft = source(tmp_path / "own", replace(PLAIN, embedding="own"))
    words[1], words[3], words[5] = str(draft), "specforge", str(tmp_path / "none")
    assert run() == 2
    assert "an embedding table of its own (wire embedding)" in capsys.readouterr().err
    words[7] = str(full_target(tmp_path / "t", load_file(draft / "model.safetensors")[
        "embed_tokens.weight"]))  # fmt: skip
    assert run() == 0
    out = capsys.readouterr().out
    assert "ok   sglang" in out
    assert "BUT  vllm" in out


def full_target(path, table, name="model.embed_tokens.weight"):
    """A target's folder with nothing in it but its config and its embedding table."""
    path.mkdir()
    target(path / "config.json")
    config = json.loads((path / "config.json").read_text()) | {"vocab_size": V}
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: table}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("to", ["specforge", "modelopt"])
def test_an_embedding_that_is_the_targets_is_left_out(tmp_path, to):
    """Equal once cast to the drafter's bfloat16: what is read then is the target's, the same."""
    own = replace(PLAIN, embedding="own")
    draft = with_golden(source(tmp_path / "draft", own), own)
    table = contents(draft)["embed_tokens.weight"][2].view(torch.bfloat16).view(V, H).float()
    table += table * 2.0**-12  # less than half a step of bfloat16
    done = convert(draft, to, tmp_path / "out", Wish(target=full_target(tmp_path / "t", table)))
    assert "embed_tokens.weight" not in contents(tmp_path / "out")
    assert read_back(tmp_path / "out") == PLAIN
    assert golden.read(tmp_path / "out").wiring == PLAIN
    assert f"the embedding table is left out: its {V} rows are the target's" in done.notes


@pytest.mark.parametrize(("change", "because"), [
    (lambda table: table.index_fill(0, torch.tensor([V - 1]), 3.0), f"1 of {V} rows differ"),
    (lambda table: table[:-1], f"its table is [{V}, {H}], the target's [{V - 1}, {H}]"),
    (lambda table: table.index_fill(0, torch.tensor([2]), torch.nan), f"1 of {V} rows differ"),
])  # fmt: skip
def test_an_embedding_of_its_own_is_not_left_out(tmp_path, change, because):
    draft = source(tmp_path / "draft", replace(PLAIN, embedding="own"))
    table = contents(draft)["embed_tokens.weight"][2].view(torch.bfloat16).view(V, H)
    aim = full_target(tmp_path / "t", change(table))
    for asked, told in ((aim, because), (aim / "config.json", "give --target with the target's")):
        with pytest.raises(InputError) as caught:
            convert(draft, "specforge", tmp_path / "out", Wish(taps=TAPS, target=asked))
        assert told in str(caught.value)
        assert not (tmp_path / "out").exists()


def test_what_each_engine_does_with_it_is_told(tmp_path):
    """By conventions.md section 1: SGLang reads nested outputs, vLLM's V1 takes them for boundaries
    and its V2 adds one; SGLang has no class for speculators' architecture."""
    draft, aim = source(tmp_path / "draft"), full_target(tmp_path / "t", torch.zeros(V, H))
    said = {}
    for to in ("specforge", "speculators", "eagle"):
        done = convert(draft, to, tmp_path / to, Wish(taps=TAPS, target=aim))
        said[to] = {served.engine.split(" ", 2)[0]: [] for served in done.served}
        for served in done.served:
            said[to][served.engine.split(" ", 2)[0]].append(served)
    (sglang,) = said["specforge"]["sglang"]
    assert (sglang.taps, sglang.as_meant) == (TAPS, True)
    assert [(s.taps, s.as_meant) for s in said["specforge"]["vllm"]] == [
        ((1, 5, 8), False), (TAPS, True),
    ]  # fmt: skip
    assert "it would read top ids [2, 6, 9]" in said["specforge"]["vllm"][0].told
    (sglang,) = said["speculators"]["sglang"]
    assert (sglang.taps, sglang.as_meant) == (None, False)
    assert sglang.told.startswith("refuses it: ")
    assert [(s.taps, s.as_meant) for s in said["speculators"]["vllm"]] == [(TAPS, True)]
    assert "plain Llama model" in said["eagle"]["sglang"][0].told


def with_golden(folder, wiring):
    """A golden file that says ``wiring``, whatever the config says; its drafts are of no matter."""
    tokens = torch.arange(9)
    golden.write(
        golden.Golden(
            wiring, tokens, torch.zeros(8, len(wiring.taps) * H), torch.zeros(9, H),
            torch.zeros(2, 8, dtype=torch.long), V,
        ),
        folder,
    )  # fmt: skip
    return folder


def test_a_config_that_was_changed_beside_a_golden_file_is_told(tmp_path):
    draft = with_golden(source(tmp_path / "draft"), PLAIN)
    config = json.loads((draft / "config.json").read_text())
    changed = config | {KEY: [0, 3, 9], "norm_before_residual": True}
    (draft / "config.json").write_text(json.dumps(changed))
    aim = target(tmp_path / "target.json")
    done = convert(draft, "speculators", tmp_path / "out", Wish(target=aim))
    assert done.wiring == PLAIN
    told = "; ".join(done.notes)
    assert f"{KEY} [0, 3, 9] means h[0], h[3], h[9]; the golden file decides" in told
    assert "config.json says residual normed; the golden file decides, which says raw" in told
    assert not any("golden" in note for note in convert(
        with_golden(source(tmp_path / "same"), PLAIN), "speculators", tmp_path / "o",
        Wish(target=aim)).notes)  # fmt: skip


SPECFORGE = {  # target's family, ids, what SGLang's setters in the wheel's source feed under them
    "llama": ("llama", [1, 5, 8], (2, 6, 9)),
    "deepseek, first id 1": ("deepseek_v3", [1, 5, 8], (2, 6, 9)),
    "deepseek, both rules": ("deepseek_v3", [2, 5, 8], None),  # + 1 before 0.5.13, as is since
    "deepseek, in the order of the layers": ("deepseek_v3", [4, 1, 7], None),
    "qwen3, in the order of the layers": ("qwen3", [5, 1, 8], (2, 6, 9)),
    "a family that is not known": ("mamba", [1, 5, 8], None),
}


@pytest.mark.parametrize(("family", "ids", "meant"), SPECFORGE.values(), ids=SPECFORGE)
def test_ids_of_specforge_mean_what_sglang_makes_of_them(tmp_path, family, ids, meant):
    draft = specforge_folder(tmp_path / "draft", ids)
    aim = target(tmp_path / "target.json", family=family)
    out = tmp_path / "out"
    with pytest.raises(InputError, match="hangs on the target's family"):
        convert(draft, "speculators", tmp_path / "no", Wish())
    if meant is None:
        with pytest.raises(InputError, match=r"not certain.*--read-ids"):
            convert(draft, "speculators", out, Wish(target=aim))
    else:
        assert convert(draft, "speculators", out, Wish(target=aim)).wiring.taps == meant
    done = convert(draft, "specforge", tmp_path / "s", Wish(taps=TAPS, target=aim))
    assert any("is not known" in note for note in done.notes) == (family == "mamba")
    if ids == sorted(ids):
        chosen = Wish(read_ids="boundary", target=aim)
        assert convert(draft, "speculators", tmp_path / "b", chosen).wiring.taps == tuple(ids)


def specforge_folder(path, ids):
    """As its export writes it: midlayer, d2t and t2d, no embedding."""
    tensors = {n.replace("layers.0.", "midlayer."): w for n, w in weights(PLAIN).items()}
    source(path, tensors=tensors)
    config = json.loads((path / "config.json").read_text())
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {KEY: ids}}
    (path / "config.json").write_text(json.dumps(config | {"norm_output": None}))
    return path


def test_a_golden_file_goes_along_and_decides(tmp_path):
    draft = with_golden(source(tmp_path / "draft"), PLAIN)
    aim = target(tmp_path / "target.json")
    convert(draft, "speculators", tmp_path / "out", Wish(target=aim))
    assert golden.read(tmp_path / "out").wiring == PLAIN
    assert read_back(tmp_path / "out") == PLAIN
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(load_file(tmp_path / "out" / "model.safetensors"))
    with pytest.raises(InputError, match="golden file says otherwise about taps"):
        convert(draft, "speculators", tmp_path / "no", Wish(taps=(2, 6, 8), target=aim))


ORDERS = st.one_of(
    st.sampled_from([TAPS, (0, 3, 9), (2, 6, 12), (1, 2, 3), (6, 2, 9), (2, 9), (2, 6, "N")]),
    st.lists(st.integers(0, LAYERS), min_size=1, max_size=4).map(tuple),
)
SCALINGS = st.sampled_from([
    (), (("factor", 4.0), ("rope_type", "linear")), (("factor", 4.0), ("type", "linear")),
    (("factor", 2.0), ("rope_type", "yarn"), ("original_max_position_embeddings", 64)),
])  # fmt: skip
ROPES = st.builds(
    Rope,
    st.floats(1.5, 1e9),
    st.sampled_from(["half", "half", "interleaved"]),
    st.sampled_from([1.0, 1.0, 1.0, 0.5]),
    SCALINGS.map(lambda items: tuple(sorted(items))),
)


def mostly(usual, *others):
    return st.sampled_from([usual] * (3 * len(others)) + list(others))


ANY = st.builds(
    Wiring,
    taps=ORDERS,
    state_shift=mostly(0, 1),
    tap_norm=mostly("none", "last"),
    pre_fc_norm=st.sampled_from(["none", "none", "whole", "per_tap"]),
    half_order=mostly("embedding_first", "hidden_first"),
    embedding_norm=mostly(True, False),
    hidden_norm=mostly(True, False),
    residual=st.sampled_from(["raw", "raw", "raw", "normed", "embedding"]),
    head_norm=mostly(True, False),
    feedback=st.sampled_from(["pre_norm", "pre_norm", "post_norm", "stale"]),
    token_shift=mostly(1, 0, 2),
    token_advance=mostly(1, 0),
    position_start=mostly(0, 1),
    position_limit=mostly(None, 64),
    window=mostly(None, 16),
    position_advance=mostly(1, 0),
    rope=ROPES,
    vocabulary=mostly("offset", "identity", "absolute"),
    embedding=st.sampled_from(["own", "target"]),
    embedding_scale=mostly(1.0, 5.65),
    head=mostly("own", "target", "tied"),
    initial=mostly(frozenset(), frozenset({"norm.weight"})),
)
CHANGED = st.sets(st.sampled_from(sorted(Wiring.__dataclass_fields__)), max_size=3)
WIRINGS = st.one_of(
    ANY,
    *[
        st.builds(lambda other, names: replace(
            PLAIN, **{name: getattr(other, name) for name in names}
        ), ANY, CHANGED)
    ] * 4,
)  # fmt: skip
"""The paper's wiring with up to three wires of another, four times in five; else any at all."""

NAMED = [f"wire {name}" for name in Wiring.__dataclass_fields__] + ["no place for"]


SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
@given(wiring=WIRINGS, to=st.sampled_from(list(FORMATS)), other=st.sampled_from(list(FORMATS)))
def test_property_any_wiring_is_kept_or_refused_by_name(tmp_path_factory, wiring, to, other):
    """Written in any layout and read back it is the same wiring, or a wire of it is named."""
    place = tmp_path_factory.mktemp("p")
    draft = with_golden(source(place / "draft", wiring, weights(wiring)), wiring)
    tables = {"t2d", "d2t"} if wiring.vocabulary == "identity" else set()
    assert not tables & contents(draft).keys()
    aim = Wish(target=target(place / "target.json"))
    folder = draft
    for index, form in enumerate((to, other)):
        out = place / str(index)
        try:
            convert(folder, form, out, aim)
        except InputError as refusal:
            reason = str(refusal)
        else:
            reason = ""
        assert not [path for path in place.iterdir() if path.name.startswith(".")]
        if reason:
            assert any(name in reason for name in NAMED), reason
            assert not out.exists()
            break
        assert read_back(out) == wiring
        assert golden.read(out).wiring == wiring
        kept = contents(draft)
        assert all(same({n: w}, {n: kept[n]}) for n, w in contents(out).items())
        shape = [asdict(shape_of(open_checkpoint(f), wiring)) for f in (draft, out)]
        assert shape[0] == shape[1]
        folder = out
    shutil.rmtree(place)


KEYS = [
    "architectures", "hidden_size", "target_hidden_size", "intermediate_size", "vocab_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
    "hidden_act", "draft_vocab_size", "rope_theta", "rope_scaling", "rope_parameters",
    "partial_rotary_factor", "attention_bias", "torch_dtype", "tie_word_embeddings",
    "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", KEY, "eagle_config",
    "draftprobe_convert", "speculators_model_type", "speculators_config", "model_type",
    "transformer_layer_config", "layer_types", "max_position_embeddings", "_torchspec_version",
]  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.text(max_size=4),
    st.sampled_from([0, 1, 2, 3, 32, 96, 40, "llama", "linear", "silu", "greedy"]),
)  # fmt: skip
INNER = st.sampled_from([
    *KEYS, "verifier", "rope_type", "type", "factor", "to", "norm_output", "name_or_path",
    "use_aux_hidden_state", "next_layer_regular", "use_last_layernorm", "proposal_methods",
])  # fmt: skip
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.dictionaries(INNER, st.one_of(SCALARS, st.lists(SCALARS, max_size=3)), max_size=4),
)


@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
@given(
    strange=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3),
    to=st.sampled_from(list(FORMATS)),
)
def test_property_fuzz_odd_configs_are_input_errors(tmp_path_factory, strange, to):
    """Whatever stands in a config: a folder is written whole, or the error is one of input."""
    place = tmp_path_factory.mktemp("f")
    draft, out = source(place / "draft"), place / "out"
    config = json.loads((draft / "config.json").read_text()) | strange
    (draft / "config.json").write_text(json.dumps(config))
    aim = Wish(taps=TAPS, target=target(place / "target.json"))
    try:
        convert(draft, to, out, aim)
    except InputError:
        assert not out.exists()
    else:
        assert read_back(out).taps == TAPS
    assert not [path for path in place.iterdir() if path.name.startswith(".")]
    shutil.rmtree(place)


def test_the_tiny_drafter_is_what_these_tests_think(tmp_path: Path):
    """The folder of no stack in particular loads, so that refusals are not its own faults."""
    draft = source(tmp_path / "draft", replace(PLAIN, embedding="own"))
    checkpoint = open_checkpoint(draft)
    load_drafter(checkpoint, parse(checkpoint, layout_of(checkpoint), TAPS), torch.empty(0))
    assert SHAPE.taps == 3
