"""One drafter in every spelling: the same logits from each folder, or a reason why not.

Spellings are made here by hand from one set of weights; the plain folder is what they are held to.
"""

import json
import os
import pickle
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from draftprobe.drafter.checkpoint import open_checkpoint, pieces, read_tensor
from draftprobe.drafter.kind import FAMILIES, family
from draftprobe.drafter.layout import layout_of
from draftprobe.drafter.model import Cache, Drafter, load_drafter, unroll
from draftprobe.drafter.shape import Latent, Shape, contradictions, shape_of
from draftprobe.drafter.vocabulary import tables
from draftprobe.drafter.wiring import Rope, eagle3
from draftprobe.errors import InputError

HIDDEN, TARGET, VOCABULARY, DRAFT = 16, 24, 40, 24
PLAIN = Shape(HIDDEN, TARGET, 3, 4, 2, 6, 20, DRAFT, VOCABULARY, 1e-5)
LATENT = replace(PLAIN, latent=Latent(12, 10, 6, 4, 5), kv_heads=4, head_dim=10)
WIRING = replace(eagle3((0, 2, 3), Rope(100.0)), pre_fc_norm="per_tap", embedding="own")


def drafter_of(shape=PLAIN, wiring=WIRING):
    generator = torch.Generator().manual_seed(0)
    made = Drafter(shape, wiring, torch.randn(VOCABULARY, HIDDEN, generator=generator))
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            vector, scale = parameter.dim() == 1, 1.5 * parameter.shape[-1] ** -0.5
            parameter.copy_(1 + 0.4 * noise if vector else scale * noise)
        kept = torch.randperm(VOCABULARY, generator=generator)[: shape.draft_vocabulary]
        made.d2t.copy_(tables(kept.sort().values, VOCABULARY)[0])
    return made.eval()


def config_of(shape):
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": shape.hidden,
        "target_hidden_size": shape.target_hidden, "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads, "num_hidden_layers": shape.layers,
        "vocab_size": shape.vocabulary, "draft_vocab_size": shape.draft_vocabulary,
        "rms_norm_eps": shape.epsilon, "rope_theta": 100.0,
    }  # fmt: skip
    if latent := shape.latent:
        return config | {
            "q_lora_rank": latent.query_rank or None, "kv_lora_rank": latent.rank,
            "qk_nope_head_dim": latent.plain, "qk_rope_head_dim": latent.rotary,
            "v_head_dim": latent.value,
        }  # fmt: skip
    return config | {"num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim}


def tensors_of(made):
    weights = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    return weights | {"embed_tokens.weight": made.embedding.clone()}


def renamed(pattern, new):
    return lambda tensors: {name.replace(pattern, new): x for name, x in tensors.items()}


def prefixed(prefix, *bare):
    return lambda tensors: {
        name if name in bare else prefix + name: x for name, x in tensors.items()
    }


def fused(tensors):
    """As engines hold them: q, k, v below each other, gate and up, q_a and kv_a."""
    out = dict(tensors)
    for new, parts in (
        ("self_attn.qkv_proj", ("q_proj", "k_proj", "v_proj")),
        ("mlp.gate_up_proj", ("gate_proj", "up_proj")),
        ("self_attn.fused_qkv_a_proj_with_mqa", ("q_a_proj", "kv_a_proj_with_mqa")),
    ):
        block = new.split(".")[0]
        for kind in ("weight", "bias"):
            names = [f"layers.0.{block}.{part}.{kind}" for part in parts]
            if all(name in out for name in names):
                out[f"layers.0.{new}.{kind}"] = torch.cat([out.pop(name) for name in names])
    return out


def aux_norms(tensors):
    words = ("low", "mid", "high")
    return {
        (f"aux_norm_{words[int(name[8])]}.weight" if name.startswith("fc_norm") else name): x
        for name, x in tensors.items()
    }


STYLES = {
    "layers": lambda tensors: tensors,
    "midlayer": renamed("layers.0.", "midlayer."),
    "midlayer.0": renamed("layers.0.", "midlayer.0."),
    "model.": prefixed("model.", "lm_head.weight"),
    "model.model.": prefixed("model.model."),
    "draft_model.": prefixed("draft_model."),
    "fused": fused,
    "aux_norm": aux_norms,
    "draft_id_to_target_id": renamed("d2t", "draft_id_to_target_id"),
    "everything": lambda t: prefixed("model.")(renamed("layers.0.", "midlayer.")(fused(t))),
}


def whole(folder, tensors):
    save_file(tensors, folder / "model.safetensors")


def sharded(folder, tensors, name="model.safetensors", save=save_file):
    names, (stem, _, ending) = sorted(tensors), name.rpartition(".")
    shards = {f"{stem}-0000{i + 1}-of-00003.{ending}": names[i::3] for i in range(3)}
    for file, some in shards.items():
        save({n: tensors[n] for n in some}, folder / file)
    weight_map = {n: file for file, some in shards.items() for n in some}
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": weight_map}))


def binary(folder, tensors):
    torch.save(tensors, folder / "pytorch_model.bin")


def binary_shards(folder, tensors):
    sharded(folder, tensors, "pytorch_model.bin", torch.save)


def cached(folder, tensors):
    """Links out of the folder, as a Hugging Face cache lays it out."""
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    save_file(tensors, blobs / "0a1b2c")
    (folder / "model.safetensors").symlink_to(os.path.relpath(blobs / "0a1b2c", folder))


STORES = [whole, sharded, binary, binary_shards, cached]


def write(folder, tensors, config, store=whole):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    store(folder, {name: tensor.contiguous() for name, tensor in tensors.items()})
    return open_checkpoint(folder)


@torch.inference_mode()
def logits(drafter):
    generator = torch.Generator().manual_seed(1)
    taps = torch.randn(1, 8, 3 * TARGET, generator=generator)
    tokens = torch.randint(VOCABULARY, (1, 9), generator=generator)
    return torch.stack([drafter.logits(o) for o in unroll(drafter, taps, tokens, 3)])


def same(checkpoint, made, **wires):
    loaded = load_drafter(checkpoint, replace(made.wiring, **wires), torch.empty(0))
    assert loaded.shape == made.shape
    assert torch.equal(loaded.target_ids(), made.target_ids())
    torch.testing.assert_close(logits(loaded), logits(made), rtol=0, atol=0)


FORMS = {
    "heads": PLAIN,
    "norms and biases": replace(
        PLAIN, qk_norm=True, biases=frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "fc"})
    ),
    "latent": LATENT,
}


@pytest.mark.parametrize("shape", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("style", STYLES)
def test_every_spelling_is_the_same_drafter(tmp_path, style, shape):
    made = drafter_of(shape)
    tensors = STYLES[style](tensors_of(made))
    assert style == "layers" or set(tensors) != set(tensors_of(made))
    same(write(tmp_path / "f", tensors, config_of(shape)), made)


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.__name__)
def test_every_store_is_the_same_drafter(tmp_path, store):
    made = drafter_of()
    same(write(tmp_path / "f", tensors_of(made), config_of(PLAIN), store), made)


@pytest.mark.parametrize("store", [whole, binary], ids=lambda store: store.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_precision_is_read(tmp_path, dtype, store):
    made = drafter_of()
    tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors_of(made).items()}
    rounded = drafter_of()
    rounded.load_state_dict({n: t for n, t in tensors.items() if n != "embed_tokens.weight"})
    rounded.embedding = tensors["embed_tokens.weight"].float()
    same(write(tmp_path / "f", tensors, config_of(PLAIN), store), rounded)


def test_several_layers_in_both_engines_names(tmp_path):
    shape = replace(PLAIN, layers=3)
    made = drafter_of(shape)
    tensors = tensors_of(made)
    same(write(tmp_path / "vllm", tensors, config_of(shape)), made)
    for number in (1, 2):
        norm = tensors.pop(f"layers.{number}.input_layernorm.weight")
        tensors[f"layers.{number}.hidden_norm.weight"] = norm
    same(
        write(tmp_path / "sglang", renamed("layers.", "midlayer.")(tensors), config_of(shape)), made
    )


@pytest.mark.parametrize("shape", [replace(PLAIN, layers=2), replace(LATENT, layers=2)])
@torch.inference_mode()
def test_a_cache_holds_every_layer(shape):
    """Slot by slot through the cache, with a chain forgotten between: as all slots at once."""
    made, cache = drafter_of(shape), Cache()
    generator = torch.Generator().manual_seed(1)
    e, g = (torch.randn(1, 7, HIDDEN, generator=generator) for _ in range(2))

    def causal(_layer, q, k, v):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        n = q.shape[-2]
        return (scores + torch.full((n, n), -torch.inf).triu(1)).softmax(-1) @ v

    wanted = made.block(e, g, torch.arange(7), causal)
    for slot in range(7):
        at = slice(slot, slot + 1)
        found = made.block(e[:, at], g[:, at], torch.tensor([slot]), cache)
        torch.testing.assert_close(found, wanted[:, at], rtol=1e-5, atol=1e-5)
        made.block(found, found, torch.tensor([slot + 1]), cache)
        cache.truncate(slot + 1)
    assert cache.length == 7


def test_heads_of_the_target_and_tied_ones(tmp_path):
    made = drafter_of()
    table = torch.randn(VOCABULARY, HIDDEN)
    tensors = tensors_of(made)
    del tensors["lm_head.weight"]
    checkpoint = write(tmp_path / "f", tensors, config_of(PLAIN))
    with pytest.raises(InputError, match="give the target"):
        load_drafter(checkpoint, replace(WIRING, head="target"), table)
    with pytest.raises(InputError, match=r"expected a tensor 'lm_head\.weight'"):
        load_drafter(checkpoint, WIRING, table)
    with pytest.raises(InputError, match="head: expected shape"):
        load_drafter(checkpoint, replace(WIRING, head="target"), table, table[:, :8])
    ids = made.target_ids()
    for head, rows in (("target", table), ("tied", made.embedding)):
        loaded = load_drafter(checkpoint, replace(WIRING, head=head), torch.empty(0), table)
        made.lm_head.weight.data = rows[ids]
        torch.testing.assert_close(logits(loaded), logits(made), rtol=0, atol=0)


def test_safetensors_come_before_a_pickle(tmp_path):
    made = drafter_of()
    tensors = tensors_of(made)
    checkpoint = write(tmp_path / "f", tensors, config_of(PLAIN))
    binary(tmp_path / "f", {name: torch.zeros_like(x) for name, x in tensors.items()})
    assert not open_checkpoint(tmp_path / "f").info("fc.weight").pickled
    same(checkpoint, made)


def test_headers_need_no_torch_but_for_a_pickle(tmp_path):
    made = drafter_of()
    write(tmp_path / "s", tensors_of(made), config_of(PLAIN))
    write(tmp_path / "b", tensors_of(made), config_of(PLAIN), binary)
    code = (
        "import sys; from draftprobe.drafter.checkpoint import open_checkpoint as o\n"
        "from draftprobe.drafter.layout import layout_of\n"
        "from draftprobe.drafter.shape import shape_of\n"
        "from draftprobe.drafter.kind import family\n"
        "c = o(sys.argv[1]); l = layout_of(c); print(family(c, l), 'torch' in sys.modules)\n"
    )
    for folder, torch_there in (("s", "False"), ("b", "True")):
        command = [sys.executable, "-c", code, str(tmp_path / folder)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert out.split() == ["eagle3", torch_there]


@pytest.mark.parametrize("store", [whole, binary], ids=lambda store: store.__name__)
def test_pieces_are_the_tensor(tmp_path, store):
    made = drafter_of()
    extra = {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4)}
    checkpoint = write(tmp_path / "f", tensors_of(made) | extra, config_of(PLAIN), store)
    info = checkpoint.info("fc.weight")
    assert (info.dtype, info.shape, info.size) == ("F32", (16, 72), 16 * 72 * 4)
    parts = list(pieces(info, limit=1000))
    assert [len(part) for part in parts] == [3, 3, 3, 3, 3, 1]  # 288 bytes a row
    assert torch.equal(torch.cat(parts), made.fc.weight)
    assert torch.equal(read_tensor(info, (2, 5)), made.fc.weight[2:5])
    assert [float(part) for part in pieces(checkpoint.info("scalar"))] == [3.0]
    assert list(pieces(checkpoint.info("empty"))) == []


# Pickles


class _Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def _code(path, mark):
    torch.save({"fc.weight": _Evil(mark)}, path)


def _old(path, _mark):
    torch.save({"fc.weight": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)


def _raw(path, mark):
    path.write_bytes(pickle.dumps(_Evil(mark)))


def _list(path, _mark):
    torch.save([torch.zeros(2)], path)


def _nested(path, _mark):
    torch.save({"state_dict": {"fc.weight": torch.zeros(2)}}, path)


def _view(path, _mark):
    torch.save({"fc.weight": torch.zeros(1, 1).expand(10**6, 10**6)}, path)


def _compressed(path, _mark):
    torch.save({"fc.weight": torch.zeros(2)}, path.with_name("plain"))
    with zipfile.ZipFile(path.with_name("plain")) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)


def _cut(path, _mark):
    torch.save({"fc.weight": torch.zeros(2)}, path)
    path.write_bytes(path.read_bytes()[:-30])


def _folder(path, _mark):
    path.mkdir()


def _empty_zip(path, _mark):
    zipfile.ZipFile(path, "w").close()


REFUSED = {
    _code: "only code could build", _old: "before 1.6", _raw: "not a torch archive",
    _list: "dictionary of tensors, found list", _nested: "found dict under 'state_dict'",
    _view: "larger than the data behind it", _compressed: "compressed", _cut: "not a torch archive",
    _folder: "expected a regular file", _empty_zip: "expected a complete torch archive",
}  # fmt: skip


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__[1:])
def test_pickles_that_are_not_read(tmp_path, make):
    (tmp_path / "config.json").write_text("{}")
    make(tmp_path / "pytorch_model.bin", str(tmp_path / "owned"))
    with pytest.raises(InputError, match=REFUSED[make]) as caught:
        open_checkpoint(tmp_path)
    assert "weights_only=False" not in str(caught.value)
    assert not (tmp_path / "owned").exists()


def test_an_index_of_pickles_stays_inside(tmp_path):
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "config.json").write_text("{}")
    torch.save({"fc.weight": torch.zeros(2)}, tmp_path / "outside.bin")
    index = tmp_path / "f" / "pytorch_model.bin.index.json"
    for name in ("../outside.bin", str(tmp_path / "outside.bin"), "..", ""):
        index.write_text(json.dumps({"weight_map": {"fc.weight": name}}))
        with pytest.raises(InputError, match="inside"):
            open_checkpoint(tmp_path / "f")


@pytest.mark.parametrize(("dtype", "bits"), [("F8_E4M3", 8), ("F8_E8M0", 8), ("F4", 4)])
def test_quantised_headers_are_read_and_weights_refused(tmp_path, dtype, bits):
    made = drafter_of()
    write(tmp_path / "f", tensors_of(made), config_of(PLAIN))
    path = tmp_path / "f" / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    size = HIDDEN * bits // 8
    new, kept, end = {}, [], 0
    for name, entry in sorted(
        ((n, e) for n, e in header.items() if n != "__metadata__"),
        key=lambda i: i[1]["data_offsets"],
    ):
        first, last = entry["data_offsets"]
        if name == "norm.weight":
            entry, last = {"dtype": dtype, "shape": [HIDDEN]}, first + size
        kept.append(data[first:last])
        new[name] = entry | {"data_offsets": [end, end + last - first]}
        end += last - first
    text = json.dumps(new).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(kept))
    checkpoint = open_checkpoint(tmp_path / "f")
    assert checkpoint.info("norm.weight").dtype == dtype
    assert checkpoint.info("norm.weight").size == size
    with pytest.raises(InputError, match="quantised weights are not read"):
        load_drafter(checkpoint, WIRING, torch.empty(0))


# What config and weights say

WRONG = {
    "hidden_size": (32, "hidden_size is 32, but fc has 16 rows"),
    "target_hidden_size": (10, "target_hidden_size is 10, but fc reads 72 channels"),
    "intermediate_size": (24, "intermediate_size is 24, but layers.0.mlp.gate_proj has 20 rows"),
    "num_hidden_layers": (2, "num_hidden_layers is 2, but there are 1 decoder layers"),
    "head_dim": (8, "head_dim is 8, but q_proj has 4 heads of 24 rows"),
    "num_key_value_heads": (4, "num_key_value_heads is 4, but k_proj has 12 rows, 6 a head"),
    "draft_vocab_size": (32, "draft_vocab_size is 32, but lm_head has 24 rows"),
    "vocab_size": (41, "vocab_size is 41, but embed_tokens has 40 rows"),
    "attention_bias": (True, "attention_bias is true, but there is no bias tensor of q_proj"),
    "mlp_bias": (True, "mlp_bias is true, but there is no bias tensor of gate_proj"),
    "bias": (True, "bias is true, but there is no bias tensor of fc"),
    "hidden_act": ("gelu", "expected hidden_act silu, found 'gelu'"),
    "layer_types": (["sliding_attention"], "sliding"),
    "num_attention_heads": (5, "5 attention heads cannot share"),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_config_that_contradicts_the_weights_is_refused(tmp_path, key):
    value, message = WRONG[key]
    config = config_of(PLAIN) | {key: value}
    if key == "num_attention_heads":
        del config["head_dim"], config["num_key_value_heads"]
    checkpoint = write(tmp_path / "f", tensors_of(drafter_of()), config)
    with pytest.raises(InputError, match=message):
        shape_of(checkpoint, WIRING)
    with pytest.raises(InputError):
        load_drafter(checkpoint, WIRING, torch.empty(0))


def test_all_contradictions_are_listed(tmp_path):
    config = config_of(PLAIN) | {"hidden_size": 32, "draft_vocab_size": 2, "mlp_bias": True}
    checkpoint = write(tmp_path / "f", tensors_of(drafter_of()), config)
    found = contradictions(checkpoint, layout_of(checkpoint))
    assert [text.split(": ")[1].split()[0] for text in found] == [
        "hidden_size", "draft_vocab_size", "mlp_bias",
    ]  # fmt: skip
    healthy = write(tmp_path / "g", tensors_of(drafter_of()), config_of(PLAIN))
    assert contradictions(healthy, layout_of(healthy)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("qk_rope_head_dim", 6), ("qk_nope_head_dim", 4), ("v_head_dim", 6), ("kv_lora_rank", 12)],
)
def test_sizes_of_latent_attention_are_held_against_the_weights(tmp_path, key, value):
    config = config_of(LATENT) | {key: value}
    checkpoint = write(tmp_path / "f", tensors_of(drafter_of(LATENT)), config)
    with pytest.raises(InputError, match=f"{key} is {value}, but"):
        shape_of(checkpoint, WIRING)


@pytest.mark.parametrize("tensors", [("d2t", 20), ("t2d", 39)])
def test_tables_of_another_size_are_refused(tmp_path, tensors):
    name, size = tensors
    weights = tensors_of(drafter_of()) | {name: torch.zeros(size, dtype=torch.long)}
    checkpoint = write(tmp_path / "f", weights, config_of(PLAIN))
    with pytest.raises(InputError, match=f"{name} has {size} entries"):
        load_drafter(checkpoint, WIRING, torch.empty(0))


def test_a_map_of_real_numbers_is_refused(tmp_path):
    weights = tensors_of(drafter_of())
    weights["d2t"] = weights["d2t"].float()
    checkpoint = write(tmp_path / "f", weights, config_of(PLAIN))
    with pytest.raises(InputError, match="d2t should be int64 or int32"):
        load_drafter(checkpoint, WIRING, torch.empty(0))


def test_tensors_without_a_place_are_refused(tmp_path):
    weights = tensors_of(drafter_of())
    scale = {"layers.0.self_attn.q_proj.weight_scale": torch.ones(1)}
    checkpoint = write(tmp_path / "f", weights | scale, config_of(PLAIN))
    with pytest.raises(InputError, match=r"mean nothing here.*weight_scale"):
        load_drafter(checkpoint, WIRING, torch.empty(0))
    copies = {"model.norm.weight": torch.ones(HIDDEN)}
    checkpoint = write(tmp_path / "g", weights | copies, config_of(PLAIN))
    with pytest.raises(InputError, match="are there already"):
        load_drafter(checkpoint, WIRING, torch.empty(0))
    old = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}  # a buffer, made anew here
    same(write(tmp_path / "h", weights | old, config_of(PLAIN)), drafter_of())


# Other families: the smallest set of tensors that each one's own module has

_BARE = {"fc.weight": (8, 16), "layers.0.self_attn.q_proj.weight": (8, 8)}
_EAGLE3 = {"fc.weight": (8, 24), "layers.0.self_attn.q_proj.weight": (8, 16)}
FOREIGN = {
    "eagle1": (_BARE, "LlamaForCausalLM"),
    "p-eagle": (_EAGLE3 | {"mask_hidden": (1, 1, 24)}, "PEagleDraftModel"),
    "eagle4": (_EAGLE3 | {"efficient_lm_head.weight": (16, 4)}, "LlamaForCausalLMEagle4"),
    "dflash": ({"fc.weight": (8, 40), "hidden_norm.weight": (8,)}, "DFlashDraftModel"),
    "dspark": (
        {"fc.weight": (8, 40), "hidden_norm.weight": (8,), "markov_head.w1.weight": (8, 4)},
        "DSparkDraftModel",
    ),
    "mtp": (
        {"model.layers.61.eh_proj.weight": (8, 16), "model.layers.61.enorm.weight": (8,)},
        "DeepseekV3ForCausalLMNextN",
    ),
    "medusa": ({"0.0.linear.weight": (8, 8), "0.1.weight": (16, 8)}, "MedusaModel"),
}


@pytest.mark.parametrize("named", [True, False], ids=["named", "by tensors"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_other_families_are_named(tmp_path, kind, named):
    sizes, architecture = FOREIGN[kind]
    config = {"hidden_size": 8, "num_attention_heads": 2, "vocab_size": 16}
    if named:
        config["architectures"] = [architecture]
    tensors = {name: torch.zeros(size) for name, size in sizes.items()}
    checkpoint = write(tmp_path / "f", tensors, config)
    assert family(checkpoint, layout_of(checkpoint)) == kind
    with pytest.raises(InputError, match=FAMILIES[kind].split(":")[0]):
        load_drafter(checkpoint, WIRING, torch.zeros(16, 8))


def test_families_of_what_is_read_and_of_nothing(tmp_path):
    for name, shape in FORMS.items():
        checkpoint = write(tmp_path / name, tensors_of(drafter_of(shape)), config_of(shape))
        assert family(checkpoint, layout_of(checkpoint)) == "eagle3"
    checkpoint = write(tmp_path / "no", {"x": torch.zeros(1)}, {})
    assert family(checkpoint, layout_of(checkpoint)) == "unknown"
    with pytest.raises(InputError, match=r"expected a tensor 'fc\.weight'"):
        load_drafter(checkpoint, WIRING, torch.zeros(16, 8))
    tensors = tensors_of(drafter_of())
    q = "layers.0.self_attn.q_proj.weight"
    checkpoint = write(tmp_path / "q", tensors | {q: tensors[q][:, 1:]}, config_of(PLAIN))
    with pytest.raises(InputError, match="the first layer's query reads 31 channels"):
        load_drafter(checkpoint, WIRING, torch.empty(0))
