"""A synthetic drafter with states of its target, of any size, whose right wiring is known.

States walk through the layers as a residual stream does: h[k] is h[k - 1] and an increment, which
has an isotropic part, a part in eight directions of the layer's own, a part of each sequence and a
constant one; h[0] is the drafter's own embedding. fc's blocks are random, of equal weight whatever
the size of their states, and stronger along the main directions of the states that they read, as
training leaves them. The text is drawn from the drafter's own distribution under the planted
wiring, with scores spread so that a token is as sure as with a trained drafter (about a nat each).
So the planted wiring is right by construction, and neighbouring boundaries are close to it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from draftprobe.diagnose.imprint import unit
from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import Cache, Drafter, load_drafter
from draftprobe.drafter.vocabulary import tables
from draftprobe.drafter.wiring import Tap, tap_name
from draftprobe.states.record import Provenance, provenance_metadata

PROMPT = 2  # tokens of each sequence that are not drawn from the drafter
_SHARP = 6.0  # spread of the scores over the vocabulary
_OWN = 8  # directions of a layer's own


@dataclass(frozen=True)
class Sizes:
    """Of target, drafter and text."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    draft: int
    sequences: int = 32
    length: int = 16
    taps: tuple[int, ...] = (0, 3, 31)
    served: tuple[int, ...] = (3, 31, 59)

    @property
    def parameters(self) -> int:
        """Of the drafter, its embedding table counted."""
        h, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * h * (q + 2 * kv) + q * h
        matrices = len(self.taps) * h * h + attention + 3 * h * self.intermediate
        return matrices + (self.draft + self.vocabulary) * h


KIMI = Sizes(7168, 61, 56, 8, 128, 18432, 163_840, 32_000)
"""Kimi-K2.5's hidden size, layers and vocabulary, and a drafter as they are trained for it."""
SMALL = Sizes(256, 11, 8, 2, 32, 640, 4000, 1000, taps=(0, 3, 7), served=(3, 7, 10))
"""Small enough for the whole table of 12^3 tuples."""


def make(folder: Path, sizes: Sizes, seed: int = 0) -> tuple[Path, Path]:
    """Write the case into ``folder``: the drafter's folder and the states file."""
    random = torch.Generator().manual_seed(seed)
    draft, states = folder / "draft", folder / "states.safetensors"
    draft.mkdir()
    walk = _walk(sizes, random)
    table = _matrix(sizes.vocabulary, sizes.hidden, 0.5, random)
    _write_drafter(draft, sizes, walk, table, random)
    checkpoint = open_checkpoint(draft)
    drafter = load_drafter(checkpoint, wiring_of(checkpoint, sizes.taps), torch.empty(0))
    tokens = _text(drafter, sizes, walk, random)
    _write_states(states, sizes, walk, table, tokens)
    return draft, states


def _walk(sizes: Sizes, random: torch.Generator) -> list[torch.Tensor]:
    """h[k] less the embedding, of each boundary 0..L: bf16 [sequences, length - 1, H]."""
    shape = (sizes.sequences, sizes.length - 1, sizes.hidden)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=random)

    h = torch.zeros(shape)
    walk = [h.bfloat16()]
    for _ in range(sizes.layers):
        own = normal(*shape[:2], _OWN) @ normal(_OWN, sizes.hidden) / _OWN**0.5
        h = h + normal(*shape) + own + 0.5 * normal(shape[0], 1, shape[2]) + 0.5 * normal(shape[2])
        walk.append(h.bfloat16())
    return walk


def _matrix(rows: int, columns: int, size: float, random: torch.Generator) -> torch.Tensor:
    """Normal numbers of standard deviation ``size``, bf16, made by blocks of rows."""
    out = torch.empty(rows, columns, dtype=torch.bfloat16)
    for block in out.split(max(1, 2**24 // columns)):
        block.copy_(torch.randn(block.shape, generator=random) * size)
    return out


def _write_drafter(
    folder: Path,
    sizes: Sizes,
    walk: list[torch.Tensor],
    table: torch.Tensor,
    random: torch.Generator,
) -> None:
    hidden, wide = sizes.hidden, sizes.intermediate
    q, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    first, inputs = "layers.0.", (2 * hidden) ** -0.5
    matrices = {
        first + "self_attn.q_proj": (q, 2 * hidden, inputs),
        first + "self_attn.k_proj": (kv, 2 * hidden, inputs),
        first + "self_attn.v_proj": (kv, 2 * hidden, inputs),
        first + "self_attn.o_proj": (hidden, q, q**-0.5),
        first + "mlp.gate_proj": (wide, hidden, hidden**-0.5),
        first + "mlp.up_proj": (wide, hidden, hidden**-0.5),
        first + "mlp.down_proj": (hidden, wide, 3 * wide**-0.5),
        "lm_head": (sizes.draft, hidden, _SHARP * hidden**-0.5),
    }
    tensors = {f"{n}.weight": _matrix(*size, random) for n, size in matrices.items()}
    norms = ["input_layernorm", "hidden_norm", "post_attention_layernorm"]
    for name in [*(first + norm for norm in norms), "norm"]:
        noise = 0.1 * torch.randn(hidden, generator=random)
        tensors[f"{name}.weight"] = (1 + noise).bfloat16()
    blocks = [_block(walk[tap] if tap else table[: 16 * 32], random) for tap in sizes.taps]
    tensors["fc.weight"] = torch.cat(blocks, dim=1)
    kept = torch.randperm(sizes.vocabulary, generator=random)[: sizes.draft].sort().values
    tensors["d2t"], tensors["t2d"] = tables(kept, sizes.vocabulary)
    shards = {"weights.safetensors": tensors, "table.safetensors": {"embed_tokens.weight": table}}
    for name, part in shards.items():
        save_file(part, folder / name)
    where = {tensor: name for name, part in shards.items() for tensor in part}
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(_config(sizes)))


def _block(h: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Fc's block for a state: random, twice as strong along its main directions, of output 1."""
    h = h.flatten(0, -2).float()
    hidden = h.shape[1]
    main = torch.linalg.svd(unit(h), full_matrices=False).Vh[:16].T  # [H, 16]
    block = torch.randn(hidden, hidden, generator=random) * hidden**-0.5
    block += (block @ main) @ main.T
    return (block / (h[:64] @ block.T).square().mean().sqrt()).bfloat16()


def _config(sizes: Sizes) -> dict:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "target_hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "rms_norm_eps": 1e-5,
        "vocab_size": sizes.vocabulary,
        "draft_vocab_size": sizes.draft,
        "max_position_embeddings": 8192,
        "rope_theta": 50000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
    }


@torch.inference_mode()
def _text(
    drafter: Drafter, sizes: Sizes, walk: list[torch.Tensor], random: torch.Generator
) -> torch.Tensor:
    """Tokens [sequences, length], drawn slot by slot from the drafter as it is wired."""
    tokens = torch.randint(sizes.vocabulary, (sizes.sequences, sizes.length), generator=random)
    cache, ids = Cache(), drafter.target_ids()
    for slot in range(sizes.length - 2):
        e = drafter.embed(tokens[:, slot, None])
        taps = torch.cat([walk[tap][:, slot, None].to(e) + e for tap in sizes.taps], dim=-1)
        g = drafter.fuse(taps)  # [sequences, 1, H]
        read = drafter.embed(tokens[:, slot + 1, None])
        o = drafter.block(read, g, drafter.position(torch.tensor([slot]), 1), cache)
        likely = drafter.logits(o[:, 0].float()).softmax(-1)
        drawn = torch.multinomial(likely, 1, generator=random)[:, 0]
        if slot + 2 >= PROMPT:
            tokens[:, slot + 2] = ids[drawn]
    return tokens


def _write_states(
    path: Path, sizes: Sizes, walk: list[torch.Tensor], table: torch.Tensor, tokens: torch.Tensor
) -> None:
    e = table[tokens[:, :-1]].flatten(0, 1)
    names: list[Tap] = list(range(sizes.layers + 1))
    tensors = {tap_name(k): walk[int(k)].flatten(0, 1) + e for k in names}
    last = tensors[tap_name(sizes.layers)].float()
    tensors["h[N]"] = torch.nn.functional.rms_norm(last, (sizes.hidden,)).bfloat16()
    tensors["tokens"] = tokens.flatten().to(torch.int32)
    mask = torch.arange(sizes.length).expand(sizes.sequences, -1) >= PROMPT
    tensors["loss_mask"] = mask.flatten().to(torch.uint8)
    tensors["lengths"] = torch.full((sizes.sequences,), sizes.length, dtype=torch.int32)
    provenance = Provenance(
        source="dataset", model="synthetic", model_type="kimi_k25", config_digest="",
        layers=sizes.layers, hidden_size=sizes.hidden, vocab_size=sizes.vocabulary,
        dtype="bfloat16", compute="bfloat16", batch=1, template=None,
        kinds=("",) * sizes.sequences, versions={},
    )  # fmt: skip
    save_file(tensors, path, metadata=provenance_metadata(provenance))


def described(sizes: Sizes) -> dict:
    """The sizes as plain data."""
    return asdict(sizes) | {"parameters": sizes.parameters}
