"""A matrix that may stay in its file: mapped, in its own dtype, used block of rows by block.

A weight in the dtype of what it multiplies is used as it is. In another dtype it is never converted
whole: blocks of its rows are, into one buffer. Knows no drafter.
"""

from __future__ import annotations

import time
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

_BLOCK = 2**24  # numbers of a weight that are converted at a time


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """X W' + b in the dtype of x: [..., I] and [O, I] -> [..., O]."""
    if x.dtype == weight.dtype:
        return F.linear(x, weight, bias)
    rows = max(1, _BLOCK // weight.shape[1])
    buffer = x.new_empty(min(rows, len(weight)), weight.shape[1])
    out = x.new_empty(*x.shape[:-1], len(weight))
    for first in range(0, len(weight), rows):
        block = weight[first : first + rows]
        converted = buffer[: len(block)].copy_(block)
        out[..., first : first + len(block)] = F.linear(x, converted)
    return out if bias is None else out + bias.to(x.dtype)


class Matrix(nn.Linear):
    """A projection whose weight may lie in another dtype than what it is given."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., inputs] -> [..., outputs], in the dtype of ``input``."""
        return product(input, self.weight, self.bias)


def finite(tensor: torch.Tensor) -> bool:
    """Whether every number is; looked through in pieces, so that a mapped tensor stays mapped."""
    flat = tensor.reshape(-1)
    return all(bool(torch.isfinite(piece).all()) for piece in flat.split(_BLOCK))


@cache
def speed(dtype: torch.dtype, device: str) -> float:
    """Multiply-adds per second of a matrix product here, measured once (well under a second)."""
    x = torch.ones(512, 2048, dtype=dtype, device=device)
    weight = torch.ones(2048, 2048, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(4):  # the first one warms up
        start = time.perf_counter()
        float((x @ weight)[0, 0])  # read back, so that it is done
        best = min(best, time.perf_counter() - start)
    return 512 * 2048 * 2048 / best


def quick_dtype(weight: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """The weight's own dtype where this machine multiplies faster in it than in ``dtype``."""
    if weight.dtype != torch.bfloat16 or dtype == torch.bfloat16:
        return dtype
    device = str(weight.device)
    return weight.dtype if speed(weight.dtype, device) > speed(dtype, device) else dtype
