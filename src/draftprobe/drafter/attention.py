"""The drafter's attention: plain heads (GQA), and latent attention (MLA) in its expanded form.

Both make queries from a layer's input in one way and keys and values in two: a projection, which
is linear, and what follows it. Neither knows how far a query may look: that is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from draftprobe.drafter.matrix import Matrix
from draftprobe.drafter.shape import Shape

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, q [B, heads, T, d], k [B, kv heads, T, d], v [B, kv heads, T, e]) ->
[B, heads, T, e]: softmax(q k / sqrt(d)) v over whatever a query may see."""

Turn = Callable[[torch.Tensor], torch.Tensor]
"""Rope at the positions of the moment: [B, heads, T, d] -> the same."""


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, computed in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same shape and dtype as ``x``."""
        y = F.rms_norm(x.float(), (x.shape[-1],), None, self.epsilon)
        return (y * self.weight.float()).to(x.dtype)


def linear(shape: Shape, name: str, inputs: int, outputs: int) -> Matrix:
    """A projection, with a bias where this drafter has one under that name."""
    return Matrix(inputs, outputs, bias=name in shape.biases)


class Heads(nn.Module):
    """Plain heads; queries and keys are normed head by head where the shape says (Qwen3)."""

    def __init__(self, shape: Shape, inputs: int) -> None:
        super().__init__()
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.size = shape.head_dim
        self.q_proj = linear(shape, "q_proj", inputs, width)
        self.k_proj = linear(shape, "k_proj", inputs, kv_width)
        self.v_proj = linear(shape, "v_proj", inputs, kv_width)
        self.o_proj = linear(shape, "o_proj", width, shape.hidden)
        self.q_norm = RMSNorm(shape.head_dim, shape.epsilon) if shape.qk_norm else None
        self.k_norm = RMSNorm(shape.head_dim, shape.epsilon) if shape.qk_norm else None

    @property
    def sources(self) -> tuple[nn.Linear, ...]:
        """The linear maps from a layer's input to what :meth:`keys_values` takes."""
        return self.k_proj, self.v_proj

    def queries(self, u: torch.Tensor, turn: Turn) -> torch.Tensor:
        """[B, T, inputs] -> [B, heads, T, d]."""
        q = self._split(self.q_proj(u))
        return turn(self.q_norm(q) if self.q_norm else q)

    def keys_values(
        self, parts: Sequence[torch.Tensor], turn: Turn
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of ``sources`` [B, T, ..] -> keys and values [B, kv heads, T, d]."""
        k, v = (self._split(part) for part in parts)
        return turn(self.k_norm(k) if self.k_norm else k), v

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.size)).transpose(-2, -3)


class LatentHeads(nn.Module):
    """DeepSeek's attention: one rotary key for all heads, the rest of keys and values compressed.

        c, r = kv_a(u)                  k_i = cat(K_i norm(c), rope(r))     v_i = V_i norm(c)
        q_i  = Q_i norm(q_a(u)), its last channels turned

    ``factor`` is what YaRN multiplies the softmax's scale by (transformers' DeepseekV3Attention).
    Norms take the drafter's epsilon, as vLLM's and SGLang's drafters do.
    """

    def __init__(self, shape: Shape, inputs: int, factor: float) -> None:
        super().__init__()
        latent = shape.latent
        assert latent is not None
        self.sizes, self.heads, self.factor = latent, shape.heads, factor
        width = shape.heads * (latent.plain + latent.rotary)
        if latent.query_rank:
            self.q_a_proj = linear(shape, "q_a_proj", inputs, latent.query_rank)
            self.q_a_layernorm = RMSNorm(latent.query_rank, shape.epsilon)
            self.q_b_proj = linear(shape, "q_b_proj", latent.query_rank, width)
        else:
            self.q_proj = linear(shape, "q_proj", inputs, width)
        self.kv_a_proj_with_mqa = linear(
            shape, "kv_a_proj_with_mqa", inputs, latent.rank + latent.rotary
        )
        self.kv_a_layernorm = RMSNorm(latent.rank, shape.epsilon)
        out = shape.heads * (latent.plain + latent.value)
        self.kv_b_proj = linear(shape, "kv_b_proj", latent.rank, out)
        self.o_proj = linear(shape, "o_proj", shape.heads * latent.value, shape.hidden)

    @property
    def sources(self) -> tuple[nn.Linear, ...]:
        """As in :class:`Heads`."""
        return (self.kv_a_proj_with_mqa,)

    def queries(self, u: torch.Tensor, turn: Turn) -> torch.Tensor:
        """[B, T, inputs] -> [B, heads, T, plain + rotary]."""
        low = self.sizes.query_rank
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(u))) if low else self.q_proj(u)
        q = q.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        plain, rotary = q.split([self.sizes.plain, self.sizes.rotary], dim=-1)
        return torch.cat([plain, turn(rotary)], dim=-1) * self.factor

    def keys_values(
        self, parts: Sequence[torch.Tensor], turn: Turn
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output of ``sources`` [B, T, rank + rotary] -> keys [B, heads, T, d], values [.., e]."""
        sizes = self.sizes
        compressed, rotary = parts[0].split([sizes.rank, sizes.rotary], dim=-1)
        both = self.kv_b_proj(self.kv_a_layernorm(compressed))
        both = both.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        plain, v = both.split([sizes.plain, sizes.value], dim=-1)
        rotary = turn(rotary.unsqueeze(-3)).expand(*plain.shape[:-1], -1)
        return torch.cat([plain, rotary], dim=-1), v
