"""What a drafter can be wired with: its tables, heads and norms, and the target's; and rewiring.

The same weights under another wiring, nothing copied. Knows no search, and not which is right.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from draftprobe.drafter.attention import LatentHeads, RMSNorm
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import layout_of
from draftprobe.drafter.matrix import Matrix
from draftprobe.drafter.model import FLOATS, Drafter
from draftprobe.drafter.rope import sharpness
from draftprobe.drafter.wiring import Wiring
from draftprobe.errors import InputError

NORMS = (
    "layers.0.input_layernorm.weight",
    "layers.0.hidden_norm.weight",
    "layers.0.post_attention_layernorm.weight",
    "norm.weight",
)
"""Norm weights that every drafter has."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What wirings may ask for beside the drafter's own layer; None is what is not at hand.

    Attributes:
        own_embedding, target_embedding: [V, H].
        own_head: [D, H], in the order of the draft vocabulary; target_head: [V, H].
        whole_norm: weight of one norm over fc's whole input, [taps * target_hidden].
        tap_norms: weights of one norm per tap, each [target_hidden]; empty if there are none.
        target_norm: weight of the target's final norm, [target_hidden].
    """

    own_embedding: torch.Tensor | None = None
    target_embedding: torch.Tensor | None = None
    own_head: torch.Tensor | None = None
    target_head: torch.Tensor | None = None
    whole_norm: torch.Tensor | None = None
    tap_norms: tuple[torch.Tensor, ...] = ()
    target_norm: torch.Tensor | None = None

    @property
    def embeddings(self) -> tuple[str, ...]:
        """The tables at hand, as a wiring names them."""
        both = {"own": self.own_embedding, "target": self.target_embedding}
        return tuple(name for name, table in both.items() if table is not None)

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads at hand; any table may serve as a tied one."""
        both = {"own": self.own_head, "target": self.target_head}
        return (*(name for name, table in both.items() if table is not None), "tied")

    @property
    def pre_fc_norms(self) -> tuple[str, ...]:
        """The norms before fc whose weights are at hand, and none."""
        whole = ("whole",) if self.whole_norm is not None else ()
        return ("none", *whole, *(("per_tap",) if self.tap_norms else ()))


def parts_of(drafter: Drafter) -> Parts:
    """What a drafter in memory was built with, and nothing more."""
    wiring = drafter.wiring
    embedding = {f"{wiring.embedding}_embedding": drafter.embedding}
    head = {"own_head": drafter.lm_head.weight.detach()} if wiring.head == "own" else {}
    whole, each = None, ()
    if wiring.pre_fc_norm == "whole":
        whole = drafter.input_norm.weight.detach()
    elif wiring.pre_fc_norm == "per_tap":
        each = tuple(norm.weight.detach() for norm in _norms(drafter))
    return Parts(
        **embedding, **head, whole_norm=whole, tap_norms=each, target_norm=drafter.target_norm
    )


def read_parts(
    checkpoint: Checkpoint,
    drafter: Drafter,
    target_embedding: torch.Tensor | None = None,
    target_head: torch.Tensor | None = None,
    target_norm: torch.Tensor | None = None,
) -> Parts:
    """All that a folder and its target hold, in the drafter's dtype and on its device.

    Tensors of another shape than the drafter needs are left out: nothing can be wired with them.
    """
    layout, shape, weight = layout_of(checkpoint), drafter.shape, drafter.fc.weight
    width = shape.target_hidden

    def read(name: str, *wanted: int) -> torch.Tensor | None:
        if name not in layout or layout.shape(checkpoint, name) != wanted:
            return None
        tensor = layout.read(checkpoint, name)
        return tensor.to(weight) if tensor.dtype in FLOATS else None

    def fits(table: torch.Tensor | None) -> torch.Tensor | None:
        good = table is not None and table.shape == (shape.vocabulary, shape.hidden)
        return table if good else None

    each = [read(f"fc_norm.{slot}.weight", width) for slot in range(shape.taps)]
    built = parts_of(drafter)
    return replace(
        built,
        own_embedding=built.own_embedding
        if built.own_embedding is not None
        else read("embed_tokens.weight", shape.vocabulary, shape.hidden),
        target_embedding=fits(target_embedding)
        if built.target_embedding is None
        else built.target_embedding,
        own_head=built.own_head
        if built.own_head is not None
        else read("lm_head.weight", shape.draft_vocabulary, shape.hidden),
        target_head=fits(target_head),
        whole_norm=read("input_norm.weight", shape.taps * width),
        tap_norms=tuple(norm for norm in each if norm is not None) if None not in each else (),
        target_norm=target_norm,
    )


def rewire(drafter: Drafter, wiring: Wiring, parts: Parts) -> Drafter:
    """The same weights, not copied, under another wiring.

    Raises:
        InputError: the wiring asks for what is not at hand, or a map that points outside.
    """
    other = copy.copy(drafter)
    other._modules = dict(drafter._modules)
    other.wire(wiring)
    other.target_norm = parts.target_norm
    embedding = parts.own_embedding if wiring.embedding == "own" else parts.target_embedding
    other.embedding = _there(embedding, f"the {wiring.embedding} embedding table")
    _set_head(other, drafter, parts)
    _set_norms(other, parts)
    return other


def _set_head(other: Drafter, drafter: Drafter, parts: Parts) -> None:
    wiring = other.wiring
    if wiring.head == "own":
        weight = _there(parts.own_head, "a head of the drafter's own")
        ids = other.target_ids()  # a map that points outside is told now
    else:
        table = other.embedding if wiring.head == "tied" else parts.target_head
        ids = other.target_ids()
        rows = _there(table, "the target's head")
        weight = rows[ids.to(rows.device)].to(drafter.lm_head.weight)
    head = Matrix(1, 1, bias=False, device="meta")
    head.weight = nn.Parameter(weight, requires_grad=False)
    other.lm_head = head


def _set_norms(other: Drafter, parts: Parts) -> None:
    """Norms before fc, those that a loader left at ones, and what rope asks of attention."""
    shape, wiring, ones = other.shape, other.wiring, other.norm.weight.new_ones
    if wiring.pre_fc_norm == "whole":
        width = shape.taps * shape.target_hidden
        given = ones(width) if "input_norm.weight" in wiring.initial else parts.whole_norm
        other.input_norm = _norm(_there(given, "input_norm.weight"), shape.epsilon)
    elif wiring.pre_fc_norm == "per_tap":
        left = any(name.startswith("fc_norm.") for name in wiring.initial)
        each = (ones(shape.target_hidden),) * shape.taps if left else parts.tap_norms
        if len(each) != shape.taps:
            _there(None, "fc_norm of every slot")
        other.fc_norm = nn.ModuleList(_norm(weight, shape.epsilon) for weight in each)
    if "norm.weight" in wiring.initial:
        other.norm = _norm(ones(shape.hidden), shape.epsilon)
    first: Any = other.decoder[0]
    changed: dict[str, nn.Module] = {
        name.split(".")[-2]: _norm(ones(shape.hidden), shape.epsilon)
        for name in wiring.initial
        if name.startswith("layers.0.")
    }
    factor = sharpness(wiring.rope)
    if isinstance(first.self_attn, LatentHeads) and first.self_attn.factor != factor:
        attention = copy.copy(first.self_attn)
        attention.factor = factor
        changed["self_attn"] = attention
    if changed:
        first = copy.copy(first)
        first._modules = first._modules | changed
        layers = copy.copy(other.layers)
        layers._modules = layers._modules | {"0": first}
        other.layers = layers


def _norm(weight: torch.Tensor, epsilon: float) -> RMSNorm:
    norm = RMSNorm(0, epsilon)
    norm.weight = nn.Parameter(weight, requires_grad=False)
    return norm


def _norms(drafter: Drafter) -> list[RMSNorm]:
    return [norm for norm in drafter.fc_norm if isinstance(norm, RMSNorm)]


def _there(part: torch.Tensor | None, name: str) -> torch.Tensor:
    if part is None:
        raise InputError(f"wiring: expected {name}, which neither folder nor target gives")
    return part
