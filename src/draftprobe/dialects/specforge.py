"""SpecForge's (and EAGLE's) checkpoint layout: what Wiring its config and tensors mean.

Tensor names ``midlayer.*``, ``fc``, ``norm``, ``lm_head``, ``d2t``, ``t2d``. The taps are not read
from here: SpecForge does not export them, and one key means different layers to different readers.
Sources: SpecForge git a6b6b023 ``specforge/modeling/draft/llama3_eagle.py``; read, not executed.
"""

from __future__ import annotations

import re
from typing import Any

from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.wiring import Rope, Tap, Wiring
from draftprobe.errors import InputError

_KNOWN = re.compile(
    r"fc\.weight|input_norm\.weight|fc_norm\.\d+\.weight|norm\.weight|lm_head\.weight|d2t|t2d"
    r"|embed_tokens\.weight|midlayer\.(input_layernorm|hidden_norm|post_attention_layernorm)\.weight"
    r"|midlayer\.self_attn\.[qkvo]_proj\.weight|midlayer\.mlp\.(gate|up|down)_proj\.weight"
)


def parse(checkpoint: Checkpoint, taps: tuple[Tap, ...]) -> Wiring:
    """Every wire but the taps, from config and tensors; the taps are given.

    Raises:
        InputError: a tensor of another layout, or a contradiction between flags and tensors.
    """
    config, tensors = checkpoint.config, checkpoint.tensors
    where = checkpoint.folder / "config.json"
    unknown = sorted(name for name in tensors if not _KNOWN.fullmatch(name))
    if unknown:
        raise InputError(
            f"{checkpoint.folder}: expected the SpecForge layout (midlayer.*, fc, norm, lm_head), "
            f"found also {', '.join(unknown[:5])}; this layout is not read yet"
        )
    draft = checkpoint.info("lm_head.weight").shape[0]
    full = draft == config.get("vocab_size") and "d2t" not in tensors
    return Wiring(
        taps=taps,
        pre_fc_norm=_pre_fc_norm(checkpoint),
        half_order="embedding_first",
        embedding_norm=True,
        hidden_norm=True,
        residual="normed" if _flag(config, "norm_before_residual", False, where) else "raw",
        head_norm=True,
        feedback="post_norm" if _flag(config, "norm_output", False, where) else "pre_norm",
        token_shift=1,
        position_start=0,
        position_advance=1,
        rope=read_rope(config, where),
        vocabulary="identity" if full else "offset",
        embedding="own" if "embed_tokens.weight" in tensors else "target",
        embedding_scale=1.0,
        head="own",
    )


def _pre_fc_norm(checkpoint: Checkpoint) -> Any:
    if "input_norm.weight" in checkpoint.tensors:
        return "whole"
    return "per_tap" if "fc_norm.0.weight" in checkpoint.tensors else "none"


def _flag(config: dict[str, Any], key: str, default: bool, where: Any) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{where}: expected true or false under {key!r}, found {value!r}")
    return value


def read_rope(config: dict[str, Any], where: Any) -> Rope:
    """``rope_parameters`` (transformers 5), else ``rope_theta`` and ``rope_scaling``, else 10000.

    SpecForge ``get_rope_config`` reads them in this order.
    """
    nested = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    if not isinstance(nested, dict) or not isinstance(scaling, dict):
        raise InputError(f"{where}: expected rope_parameters and rope_scaling to be objects")
    theta = nested.get("rope_theta", config.get("rope_theta", 10000.0))
    items = {k: v for k, v in (scaling | nested).items() if k != "rope_theta"}
    if items.get("rope_type", items.get("type", "default")) == "default":
        items = {}
    if not isinstance(theta, int | float) or theta <= 1:
        raise InputError(f"{where}: expected rope_theta to be a number above 1, found {theta!r}")
    return Rope(theta=float(theta), scaling=tuple(sorted(items.items())))
