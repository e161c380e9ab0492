"""Rotary position embedding: cosine and sine tables, and their application.

Knows positions and a Rope, not who asks. Formula: pair i turns by position * theta ** (-2i / d)
(Su et al., arXiv 2104.09864); scalings as transformers' ``modeling_rope_utils`` defines them.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from draftprobe.drafter.wiring import Rope
from draftprobe.errors import InputError


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Radians per position of each pair, float32 [rotary_dim / 2].

    Raises:
        InputError: a scaling type that is not known here.
    """
    dim = int(head_dim * rope.partial)
    frequencies = 1.0 / rope.theta ** (torch.arange(0, dim, 2).float() / dim)  # as engines round
    scaling: dict[str, Any] = dict(rope.scaling)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        frequencies = frequencies / scaling["factor"]
    elif kind == "llama3":
        frequencies = _llama3(frequencies, scaling)
    elif kind != "default":
        raise InputError(
            f"rope scaling: expected default, linear or llama3, found {kind!r}; "
            "this drafter's positions cannot be computed here yet"
        )
    return frequencies


def _llama3(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Long wavelengths divided by the factor, short ones kept, a linear blend between."""
    wavelength = 2 * math.pi / frequencies
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    blend = (scaling["original_max_position_embeddings"] / wavelength - low) / (high - low)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / scaling["factor"] + blend * frequencies


def rotate(
    x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor, style: str
) -> torch.Tensor:
    """Rotate [..., heads, T, head_dim] by integer positions [..., T]; other channels pass."""
    angle = positions.unsqueeze(-1).float() * frequencies  # [..., T, d/2]
    cos, sin = angle.cos().unsqueeze(-3), angle.sin().unsqueeze(-3)  # [..., 1, T, d/2]
    dim = 2 * frequencies.numel()
    turned, rest = x[..., :dim], x[..., dim:]
    if style == "half":
        a, b = turned.chunk(2, dim=-1)
        out = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        out = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([out.to(x.dtype), rest], dim=-1)
