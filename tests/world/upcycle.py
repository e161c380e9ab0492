"""Start weights of the Kimi target from the trained Llama target: less training until it answers.

What the two architectures share is copied: embedding, head, norms; each MLP becomes the dense MLP
or the shared expert; queries and keys become the latent attention's rotary part, values its latent.
That is near the Llama target, not equal: latents are normed, half of the frequencies differ. The
routed experts and the part without position start anew. Knows no training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as tf

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


def _rotary_rows(group: int, groups: int, width: int) -> torch.Tensor:
    """Where the latent attention's shared rotary key keeps one group's key, [width].

    It turns neighbours 2j and 2j + 1 at frequency theta^(-j / 32), Llama i and i + 16 at
    theta^(-i / 16): pair i of the first group lies at j = 2i and keeps its frequency; that of the
    second lies at 2i + 1, where it is a quarter lower.
    """
    pair = torch.arange(width // 2) * groups + group
    return torch.cat([2 * pair, 2 * pair + 1])


def _queries(old: Any, new: Any, x: torch.Tensor) -> None:
    heads, plain, width = new.num_heads, new.qk_nope_head_dim, old.head_dim
    groups = new.qk_rope_head_dim // width
    new.q_a_proj.weight.copy_(torch.eye(new.q_a_proj.weight.shape[0]))
    new.q_a_layernorm.weight.fill_(x.square().mean(-1).sqrt().mean())
    scale = (new.qk_head_dim / width) ** 0.5  # the two divide by the root of other widths
    rows = new.q_b_proj.weight.unflatten(0, (heads, -1))
    rows[:, plain:].zero_()
    for head, wanted in enumerate(old.q_proj.weight.unflatten(0, (heads, width))):
        place = plain + _rotary_rows(head * groups // heads, groups, width)
        rows[head].index_copy_(0, place, wanted * scale)


def _keys_and_values(old: Any, new: Any, x: torch.Tensor) -> None:
    heads, plain, width = new.num_heads, new.qk_nope_head_dim, new.v_head_dim
    rank, groups = new.kv_lora_rank, new.kv_lora_rank // width
    down = new.kv_a_proj_with_mqa.weight
    down[:rank].copy_(old.v_proj.weight)
    for group, keys in enumerate(old.k_proj.weight.unflatten(0, (groups, width))):
        down[rank:].index_copy_(0, _rotary_rows(group, groups, width), keys)
    latent = x @ old.v_proj.weight.T
    new.kv_a_layernorm.weight.fill_(latent.square().mean(-1).sqrt().mean())
    pick = torch.eye(rank).unflatten(0, (groups, width)).repeat_interleave(heads // groups, 0)
    rows = new.kv_b_proj.weight.unflatten(0, (heads, -1))
    rows[:, :plain].zero_()
    rows[:, plain:].copy_(pick)  # [heads, width, rank]
