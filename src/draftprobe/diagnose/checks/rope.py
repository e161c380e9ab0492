"""Checks of the drafter's rotary embedding and positions against the target's.

Only what the drafter's config says outright is compared: a drafter without ``rope_theta`` is
trained and served with the default of 10000. No engine is known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from draftprobe.diagnose.checks.catalogue import finding
from draftprobe.diagnose.checks.subject import Subject
from draftprobe.diagnose.verdict import Finding

_NOT_SCALING = frozenset({"rope_theta", "type", "rope_type", "partial_rotary_factor"})


_TRAINS_AS_WRITTEN = frozenset({"draftprobe", "specforge", "torchspec", "modelopt", "speculators"})
"""Trainers whose training reads the config's theta: serving by the same config then agrees."""

_SCALES_AS_WRITTEN = _TRAINS_AS_WRITTEN - {"speculators"}
"""Of these, those whose configs did not lose their scaling in a converter (speculators' did)."""


def check(subject: Subject) -> Iterator[Finding]:
    """W401 to W403; nothing without a target, or where training is known to have read the key."""
    if subject.target is None:
        return
    own, target = subject.config, subject.target.config
    a, b = theta(own), theta(target)
    known = subject.trainer in _TRAINS_AS_WRITTEN
    if a is not None and b is not None and a != b and not known:
        yield finding(
            "W401",
            f"the drafter's rope_theta is {a:g}, the target's {b:g}: right if it was trained so; "
            "who trained it is not certain, and some stacks share the target's table",
            served=f"{a:g}",
        )
    scaled = subject.trainer in _SCALES_AS_WRITTEN
    if a is not None and b is not None and scaling(own) != scaling(target) and not scaled:
        yield finding(
            "W402",
            f"the drafter's rope scaling is {_told(scaling(own))}, the target's "
            f"{_told(scaling(target))}: right if it was trained so; converters have lost it",
        )
    a, b = partial(own), partial(target)
    if a is not None and b is not None and a != b and not known:
        yield finding("W403", f"partial_rotary_factor is {a:g} here, {b:g} in the target")


def short(subject: Subject) -> str | None:
    """That the drafter's positions end before the target's, None if they do not."""
    own = subject.number("max_position_embeddings")
    target = subject.target.config.get("max_position_embeddings") if subject.target else None
    if own is None or type(target) is not int or own >= target:
        return None
    return f"max_position_embeddings is {own} here, {target} in the target"


def theta(config: dict[str, Any]) -> float | None:
    """``rope_parameters.rope_theta``, else ``rope_theta``, None where neither is a number."""
    value = _parameters(config).get("rope_theta", config.get("rope_theta"))
    return _number(value)


def partial(config: dict[str, Any]) -> float | None:
    """Rotated share of each head, None where the config does not say."""
    value = _parameters(config).get("partial_rotary_factor", config.get("partial_rotary_factor"))
    return _number(value)


def scaling(config: dict[str, Any]) -> dict[str, Any]:
    """The scaling with its kind under ``type``; empty for none. Empty members are left out."""
    old = config.get("rope_scaling")
    items = (old if isinstance(old, dict) else {}) | _parameters(config)
    kind = items.get("rope_type", items.get("type", "default"))
    if kind in (None, "default"):
        return {}
    kept = {k: v for k, v in items.items() if k not in _NOT_SCALING and v is not None}
    numbers = {k: _number(v) if type(v) is int else v for k, v in kept.items()}
    return {"type": kind} | numbers


def _number(value: Any) -> float | None:
    """A number as float; infinity for an integer beyond all floats, None for no number."""
    if not isinstance(value, int | float) or type(value) is bool:
        return None
    try:
        return float(value)
    except OverflowError:
        return inf


def _parameters(config: dict[str, Any]) -> dict[str, Any]:
    """``rope_parameters`` where it is one table and not one per kind of layer."""
    value = config.get("rope_parameters")
    if not isinstance(value, dict) or any(isinstance(v, dict) for v in value.values()):
        return {}
    return value


def _told(items: dict[str, Any]) -> str:
    if not items:
        return "none"
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in sorted(items.items(), key=lambda item: item[0] != "type")
    )
