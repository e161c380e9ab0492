"""Start weights of the Kimi target from the trained Llama target: less training until it answers.

What the two architectures share is copied: embedding, head, norms; each MLP becomes the dense MLP
or the shared expert; queries, keys and values become the latent attention's part without position,
up to the latents' norms. Its rotary part and the routed experts start anew, so that attention by
position must be learned again. Knows no training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as tf
from torch import nn

from . import language


@torch.no_grad()
def upcycle(llama_folder: Path, kimi: Any) -> None:
    """Fill ``kimi``'s language model in place; both have the same layers, heads and widths."""
    llama = tf.LlamaForCausalLM.from_pretrained(llama_folder, dtype=torch.float32).eval()
    read = _inputs(llama)
    decoder = kimi.model.language_model
    kimi.lm_head.weight.copy_(llama.lm_head.weight)
    decoder.embed_tokens.weight.copy_(llama.model.embed_tokens.weight)
    decoder.norm.weight.copy_(llama.model.norm.weight)
    for old, new, x in zip(llama.model.layers, decoder.layers, read, strict=True):
        for name in ("input_layernorm", "post_attention_layernorm"):
            getattr(new, name).weight.copy_(getattr(old, name).weight)
        mlp = getattr(new.mlp, "shared_experts", new.mlp)
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(mlp, name).weight.copy_(getattr(old.mlp, name).weight)
        if mlp is not new.mlp:
            new.mlp.experts.down_proj.mul_(0.1)  # routed experts add little at first
        new.self_attn.o_proj.weight.copy_(old.self_attn.o_proj.weight)
        _queries(old.self_attn, new.self_attn, x)
        _keys_and_values(old.self_attn, new.self_attn, x)


def _inputs(llama: Any) -> list[torch.Tensor]:
    """What each attention reads on a few texts, [tokens, H] per layer."""
    seen: list[torch.Tensor] = []
    handles = [
        layer.input_layernorm.register_forward_hook(lambda _m, _a, y: seen.append(y.flatten(0, 1)))
        for layer in llama.model.layers
    ]
    for text in language.texts(8, seed=4):
        prompt, answer = text.ids()
        llama(input_ids=torch.tensor([prompt + answer]), use_cache=False)
    for handle in handles:
        handle.remove()
    layers = len(handles)
    return [torch.cat(seen[layer::layers]) for layer in range(layers)]


def _size(latent: nn.Linear, rows: int, x: torch.Tensor) -> torch.Tensor:
    return (x @ latent.weight[:rows].T).square().mean(-1).sqrt().mean()


def _queries(old: Any, new: Any, x: torch.Tensor) -> None:
    heads, plain = new.num_heads, new.qk_nope_head_dim
    rank = new.q_a_proj.weight.shape[0]
    left, size, right = torch.linalg.svd(old.q_proj.weight, full_matrices=False)
    new.q_a_proj.weight.copy_(right[:rank])
    new.q_a_layernorm.weight.fill_(_size(new.q_a_proj, rank, x))
    scale = (new.qk_head_dim / plain) ** 0.5  # the two divide by the root of other widths
    rows = (left[:, :rank] * size[:rank] * scale).unflatten(0, (heads, plain))
    new.q_b_proj.weight.unflatten(0, (heads, -1))[:, :plain].copy_(rows)


def _keys_and_values(old: Any, new: Any, x: torch.Tensor) -> None:
    heads, plain, width = new.num_heads, new.qk_nope_head_dim, new.v_head_dim
    both = torch.cat([old.k_proj.weight, old.v_proj.weight])  # [2 * groups * width, H]
    rank = len(both)
    new.kv_a_proj_with_mqa.weight[:rank].copy_(both)
    new.kv_a_layernorm.weight.fill_(_size(new.kv_a_proj_with_mqa, rank, x))
    pick = torch.eye(rank).unflatten(0, (2, -1, width))  # keys or values, group, width
    share = heads // pick.shape[1]
    keys, values = (part.repeat_interleave(share, 0) for part in pick)  # [heads, width, rank]
    rows = new.kv_b_proj.weight.unflatten(0, (heads, -1))
    rows[:, :plain].copy_(keys)
    rows[:, plain:].copy_(values)
