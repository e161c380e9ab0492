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
        InputError: a scaling that is not known here, or lacks a number it needs; no pair to turn.
    """
    dim = int(head_dim * rope.partial)
    if dim < 2 or dim % 2:
        raise InputError(f"rope: expected an even number of channels to turn, found {dim}")
    frequencies = 1.0 / rope.theta ** (torch.arange(0, dim, 2).float() / dim)  # as engines round
    scaling: dict[str, Any] = dict(rope.scaling)
    kind = _kind(rope)
    if kind == "linear":
        frequencies = frequencies / _number(scaling, "factor")
    elif kind == "llama3":
        frequencies = _llama3(frequencies, scaling)
    elif kind == "yarn":
        frequencies = _yarn(frequencies, rope.theta, scaling)
    elif kind != "default":
        raise InputError(
            f"rope scaling: expected default, linear, llama3 or yarn, found {str(kind)[:60]!r}; "
            "this drafter's positions cannot be computed here yet"
        )
    return frequencies


def amplitude(rope: Rope) -> float:
    """What cosine and sine are multiplied by: 1 but for YaRN (arXiv 2309.00071, section 3.4)."""
    scaling = dict(rope.scaling)
    if _kind(rope) != "yarn":
        return 1.0
    if scaling.get("attention_factor") is not None:
        return _number(scaling, "attention_factor")
    factor = _number(scaling, "factor")
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        above, below = (_number(scaling, key) for key in ("mscale", "mscale_all_dim"))
        return _stretch(factor, above) / _stretch(factor, below)
    return _stretch(factor, 1.0)


def sharpness(rope: Rope) -> float:
    """What latent attention multiplies its softmax's scale by (DeepSeek: ``mscale_all_dim``)."""
    scaling = dict(rope.scaling)
    if _kind(rope) != "yarn" or not scaling.get("mscale_all_dim"):
        return 1.0
    return _stretch(_number(scaling, "factor"), _number(scaling, "mscale_all_dim")) ** 2


def _kind(rope: Rope) -> Any:
    scaling = dict(rope.scaling)
    return scaling.get("rope_type", scaling.get("type", "default"))


def _number(scaling: dict[str, Any], key: str, default: float | None = None) -> float:
    value = scaling.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise InputError(
            f"rope scaling: expected a positive number under {key!r}, found {str(value)[:60]!r}"
        )
    return float(value)


def _stretch(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Long wavelengths divided by the factor, short ones kept, a linear blend between."""
    wavelength = 2 * math.pi / frequencies
    low, high = (_number(scaling, key) for key in ("low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise InputError(f"rope scaling: expected low_freq_factor below {high}, found {low}")
    blend = (_number(scaling, "original_max_position_embeddings") / wavelength - low) / (high - low)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / _number(scaling, "factor") + blend * frequencies


def _yarn(frequencies: torch.Tensor, theta: float, scaling: dict[str, Any]) -> torch.Tensor:
    """Pairs that turn often over the original length are kept, slow ones slowed by the factor.

    Between pair ``low`` (which turns ``beta_fast`` times) and ``high`` (``beta_slow``) a ramp.
    """
    dim = 2 * frequencies.numel()
    length = _number(scaling, "original_max_position_embeddings")

    def pair(turns: float) -> float:
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = pair(_number(scaling, "beta_fast", 32.0))
    high = pair(_number(scaling, "beta_slow", 1.0))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    slowed = ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
    return slowed * frequencies / _number(scaling, "factor") + (1 - slowed) * frequencies


def rotate(
    x: torch.Tensor,
    positions: torch.Tensor,
    frequencies: torch.Tensor,
    style: str,
    amplitude: float = 1.0,
) -> torch.Tensor:
    """Rotate [..., heads, T, head_dim] by integer positions [..., T]; other channels pass."""
    angle = positions.unsqueeze(-1).float() * frequencies  # [..., T, d/2]
    cos, sin = angle.cos().unsqueeze(-3), angle.sin().unsqueeze(-3)  # [..., 1, T, d/2]
    if amplitude != 1:
        cos, sin = cos * amplitude, sin * amplitude
    dim = 2 * frequencies.numel()
    turned, rest = x[..., :dim], x[..., dim:]
    if style == "half":
        a, b = turned.chunk(2, dim=-1)
        out = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        out = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([out.to(x.dtype), rest], dim=-1)
