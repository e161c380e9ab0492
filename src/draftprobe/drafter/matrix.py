"""A matrix that may stay in its file: mapped, in its own dtype, used block of rows by block.

A weight in the dtype of what it multiplies is used as it is. In another dtype it is never converted
whole: blocks of its rows are, into one buffer. Knows no drafter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

_BLOCK = 2**24  # numbers of a weight that are converted at a time


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x W' + b in the dtype of x: [..., I] and [O, I] -> [..., O]."""
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
