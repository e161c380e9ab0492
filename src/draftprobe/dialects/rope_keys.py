"""How configs spell the drafter's rotary embedding: ``rope_parameters``, ``rope_theta``, scaling.

Order: ``rope_parameters`` (transformers 5), then ``rope_theta`` and ``rope_scaling``, then 10000,
as SpecForge's ``get_rope_config`` (git a6b6b023) and ModelOpt's export (git 03713649) read them;
TorchSpec asks for ``rope_theta`` first, so two different values are told (:func:`conflict`).
Knows no formula: ``drafter/rope`` has those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftprobe.dialects.keys import flag, is_number, number, part
from draftprobe.drafter.wiring import Rope
from draftprobe.errors import InputError

DEFAULT_THETA = 10000.0
"""What every stack takes without a key, and what EAGLE's training code takes always."""


def read_rope(config: dict[str, Any], where: Any, interleaved: bool = False) -> Rope:
    """The rope of a drafter's config (speculators': of its ``transformer_layer_config``).

    Args:
        config: the part that holds the layer's sizes.
        where: the file, for messages.
        interleaved: the pair layout, which no config says: MLA drafters turn neighbours.

    Raises:
        InputError: a value that is no number, or not in range; a drafter without any rotation.
    """
    if flag(config, "mla_use_nope", where):
        raise InputError(
            f"{where}: mla_use_nope is true: this drafter turns nothing by position, which no "
            "Wiring says yet"
        )
    theta = _theta(config, where)
    if theta <= 1:
        raise InputError(f"{where}: expected rope_theta to be a number above 1, found {theta!r}")
    partial = _either(config, "partial_rotary_factor", where)
    if partial is not None and not 0 < partial <= 1:
        raise InputError(
            f"{where}: expected partial_rotary_factor above 0 and at most 1, found {partial!r}"
        )
    style = "interleaved" if interleaved else "half"
    return Rope(theta, style, 1.0 if partial is None else partial, _scaling(config, where))


def conflict(config: dict[str, Any], where: Any) -> tuple[float, float] | None:
    """Two values of ``rope_theta`` that differ: the one taken, and the one at top level."""
    top, taken = number(config, "rope_theta", where), _theta(config, where)
    return None if top is None or top == taken else (taken, top)


def _theta(config: dict[str, Any], where: Any) -> float:
    for inner in (part(config, key, where) for key in ("rope_parameters", "rope_scaling")):
        theta = number(inner or {}, "rope_theta", where)
        if theta is not None:
            return theta
    top = number(config, "rope_theta", where)
    return DEFAULT_THETA if top is None else top


def _either(config: dict[str, Any], key: str, where: Any) -> float | None:
    inner = number(part(config, "rope_parameters", where) or {}, key, where)
    return number(config, key, where) if inner is None else inner


def _scaling(config: dict[str, Any], where: Any) -> tuple[tuple[str, Any], ...]:
    """The items of the scaling, sorted; none where its type is ``default``."""
    old = part(config, "rope_scaling", where) or {}
    items = old | (part(config, "rope_parameters", where) or {})
    for key in ("rope_theta", "partial_rotary_factor"):
        items.pop(key, None)
    for key, value in items.items():
        if not _plain(value):
            raise InputError(
                f"{where}: expected numbers, texts or lists of numbers in the rope scaling, found "
                f"another value under {key!r}"
            )
    kind = items.get("rope_type", items.get("type", "default"))
    if not isinstance(kind, str):
        raise InputError(f"{where}: expected a name as the rope scaling's type, found another kind")
    return () if kind == "default" else tuple(sorted(items.items()))


def _plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(is_number(entry) for entry in value)
    return value is None or isinstance(value, str | bool) or is_number(value)


def rope_members(rope: Rope, old: Mapping[str, Any], where: Any) -> dict[str, Any]:
    """The keys of a rope in the older spelling, which every stack here reads.

    Members of a scaling of the kind ``default`` (``mrope_section`` of multimodal targets) change
    nothing on text, and are kept as ``old`` has them.
    """
    new: dict[str, Any] = {"rope_theta": rope.theta}
    items = dict(rope.scaling)
    if not items:
        for key in ("rope_scaling", "rope_parameters"):
            items |= part(dict(old), key, where) or {}
        for key in ("rope_theta", "partial_rotary_factor"):
            items.pop(key, None)
        items = items if set(items) - {"rope_type", "type"} else {}
    new["rope_scaling"] = items or None
    if rope.partial != 1.0:
        new["partial_rotary_factor"] = rope.partial
    return new
