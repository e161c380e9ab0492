"""What few tokens, or a very large fc, still say: ``align`` and ``top16`` without eigenproblems.

The same two statistics as in :mod:`draftprobe.diagnose.imprint`, from products of a few hundred
states with each slot's block, read from its file block by block. They give a shortlist and decide
nothing. Knows matrices, no file and no decision.

    align = H mean |W z|^2 / |W|^2          top16 = mean |U' z|^2
    U     = 16 strongest directions of W, by subspace iteration
    Null, S0 = S - 1/H being the anisotropic part of the states' second moment (closed forms of a
    Gaussian W and of a random subspace):
        mean 1,     variance 2 H tr S0^2 / ((H + 2) rows)
        mean k / H, variance 2 k (H - k) tr S0^2 / (H (H - 1) (H + 2)),  k = 16
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftprobe.diagnose.imprint import TOP, unit
from draftprobe.diagnose.tokens import Sample
from draftprobe.drafter.matrix import product, quick_dtype

TOKENS = 128
"""States that are looked at, at most."""
_ROUNDS = 8


def sketch(
    weights: Sequence[torch.Tensor], sample: Sample, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Statistics of each slot [slots, 4, C], the null's mean and spread [4, C]; two are NaN."""
    rows, hidden = weights[0].shape
    device, count = weights[0].device, len(sample.sequence)
    chosen = torch.arange(min(count, TOKENS)) * count // min(count, TOKENS)
    k = min(TOP, rows, hidden)
    tops = [_strongest(weight, k, generator) for weight in weights]
    sizes = [sum(float(part.float().square().sum()) for part in w.split(1024)) for w in weights]
    values = torch.full((len(weights), 4, len(sample.boundaries)), torch.nan, dtype=torch.float64)
    mean, sd = values.new_full(values.shape[1:], torch.nan), values.new_full((4, 1), torch.nan)
    sd = sd.repeat(1, values.shape[2])
    for column, tap in enumerate(sample.boundaries):
        z = unit(sample.read(tap)[chosen].to(device))
        for slot, weight in enumerate(weights):
            quick = z.to(quick_dtype(weight, z.dtype))
            energy = float(product(quick, weight).float().square().sum()) / len(z)
            values[slot, 2, column] = hidden * energy / max(sizes[slot], 1e-300)
            values[slot, 3, column] = float((z @ tops[slot]).square().sum()) / len(z)
        uneven = max(float((z @ z.T).double().square().mean()) - 1 / hidden, 0.0)  # tr S0^2
        mean[2:, column] = values.new_tensor([1.0, k / hidden])
        variance = 2 * k * (hidden - k) / (hidden * (hidden - 1) * (hidden + 2))
        both = values.new_tensor([2 * hidden / ((hidden + 2) * rows), variance])
        sd[2:, column] = (both * uneven).sqrt().clamp(min=1e-6)
    return values, mean, sd


def _strongest(weight: torch.Tensor, k: int, generator: torch.Generator) -> torch.Tensor:
    """The k strongest right singular directions of a block [rows, H]: float32 [H, k]."""
    block = weight.float()
    width = min(2 * k, *block.shape)
    q = torch.randn(block.shape[1], width, generator=generator).to(block.device)
    q = torch.linalg.qr(q).Q
    for _ in range(_ROUNDS):
        q = torch.linalg.qr(block.T @ (block @ q)).Q
    _, vectors = torch.linalg.eigh((block @ q).T @ (block @ q))
    return q @ vectors[:, -k:]
