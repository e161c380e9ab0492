"""The record of every wire between target state and draft token, and the difference of two records.

Knows no engine, no file format and no finding; dialects translate a config into it and back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from draftprobe.errors import InputError

Tap = int | Literal["N"]
"""A boundary: k means h[k], the complete residual stream entering decoder layer k (h[0] is the
embedding output, h[L] the state before the final norm); "N" means the final norm of h[L]."""


def tap_name(tap: Tap) -> str:
    """The name under which a boundary is stored and printed: ``h[3]``, ``h[N]``."""
    return f"h[{tap}]"


def taps_name(taps: Iterable[Tap]) -> str:
    """A list of boundaries for a person: ``h[0], h[3], h[16]``."""
    return ", ".join(tap_name(tap) for tap in taps)


def parse_taps(text: str) -> tuple[Tap, ...]:
    """Boundaries written as ``0,3,16`` or ``2,15,N``.

    Raises:
        InputError: an entry is neither a non-negative integer nor N, or the list is empty.
    """
    taps: list[Tap] = []
    for entry in text.split(","):
        entry = entry.strip()
        if entry == "N":
            taps.append("N")
        elif re.fullmatch(r"[0-9]{1,6}", entry):
            taps.append(int(entry))
        else:
            raise InputError(
                f"taps: expected boundaries such as 0,3,16 (N for the final norm's output), "
                f"found {entry!r} in {text!r}"
            )
    return tuple(taps)


def check_taps(taps: Iterable[Tap], layers: int) -> None:
    """Raise InputError unless every tap is h[0]..h[layers] or h[N]."""
    for tap in taps:
        if tap != "N" and not 0 <= tap <= layers:
            raise InputError(
                f"taps: {tap_name(tap)} does not exist on a target of {layers} layers; "
                f"use h[0]..h[{layers}], or N for the final norm's output"
            )


_LARGEST = 2.0**63


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: frequencies ``theta ** (-2i / rotary_dim)``, as scaled, and pair layout."""

    theta: float
    style: Literal["half", "interleaved"] = "half"
    partial: float = 1.0
    scaling: tuple[tuple[str, Any], ...] = ()
    """Sorted items of the config's scaling dictionary; empty means none. Lists become tuples, so
    that wirings can be compared and kept by value."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scaling", tuple((k, _hashable(v)) for k, v in self.scaling))


@dataclass(frozen=True, slots=True)
class Wiring:
    """One value per wire. There are no defaults: an unknown wire must be asked about, not guessed.

    Attributes:
        taps: boundaries in slot order.
        state_shift: slot t reads the target's states of token t + state_shift; 0 is the paper's.
        tap_norm: the last slot passes the target's final norm, wherever it was tapped, or none
            does; boundary N is normed already and needs none.
        pre_fc_norm: RMS norm over the whole concatenation, one per tap, or none.
        half_order: which half of the first layer's 2H input comes first.
        embedding_norm: the embedding half passes ``input_layernorm``.
        hidden_norm: the hidden half passes ``hidden_norm``.
        residual: the residual stream starts from fc's output raw, or after ``hidden_norm``, from
            the embedding, or from nothing.
        head_norm: the final ``norm`` stands before the head.
        feedback: what steps 2..k receive as hidden state: the layer's output, its norm, or what
            step 1 received once more (stale).
        token_shift: slot t reads the embedding of token t + token_shift.
        token_advance: tokens that each further draft step goes on: 1, or 0 where every step reads
            the token that step 1 read.
        position_start: rotary position of slot 0.
        position_advance: added to the position at each further draft step.
        position_limit: positions from here on are all taken for the last one before it; None: no
            limit.
        window: a query sees so many latest positions, its own counted; None: all.
        rope: rotary embedding.
        vocabulary: how ``d2t`` is read: target id = i + d2t[i], d2t[i], or i.
        embedding: the drafter's own table, or the target's.
        embedding_scale: factor on the embedding.
        head: the drafter's own head, the target's rows, or the embedding table that it reads.
        initial: names of norm weights (as ``layout`` names them) that a loader leaves at ones.
    """

    taps: tuple[Tap, ...]
    state_shift: int
    tap_norm: Literal["none", "last"]
    pre_fc_norm: Literal["none", "whole", "per_tap"]
    half_order: Literal["embedding_first", "hidden_first"]
    embedding_norm: bool
    hidden_norm: bool
    residual: Literal["raw", "normed", "embedding", "none"]
    head_norm: bool
    feedback: Literal["pre_norm", "post_norm", "stale"]
    token_shift: int
    token_advance: int
    position_start: int
    position_advance: int
    position_limit: int | None
    window: int | None
    rope: Rope
    vocabulary: Literal["offset", "absolute", "identity"]
    embedding: Literal["own", "target"]
    embedding_scale: float
    head: Literal["own", "target", "tied"]
    initial: frozenset[str]


LATER: Mapping[str, Any] = {
    "state_shift": 0,
    "tap_norm": "none",
    "token_advance": 1,
    "position_limit": None,
    "window": None,
    "initial": [],
}
"""Wires that the first golden files did not hold, as JSON: a missing one means the paper's value,
which is what every drafter was trained with whose file lacks it."""


def eagle3(taps: tuple[Tap, ...], rope: Rope) -> Wiring:
    """The wiring of the EAGLE-3 paper (arXiv 2503.01840), as SpecForge trains it."""
    return Wiring(
        taps=taps,
        state_shift=0,
        tap_norm="none",
        pre_fc_norm="none",
        half_order="embedding_first",
        embedding_norm=True,
        hidden_norm=True,
        residual="raw",
        head_norm=True,
        feedback="pre_norm",
        token_shift=1,
        token_advance=1,
        position_start=0,
        position_advance=1,
        position_limit=None,
        window=None,
        rope=rope,
        vocabulary="offset",
        embedding="target",
        embedding_scale=1.0,
        head="own",
        initial=frozenset(),
    )


def difference(served: Wiring, wanted: Wiring) -> dict[str, tuple[Any, Any]]:
    """The wires on which two wirings disagree: name -> (served, wanted)."""
    return {
        field.name: (getattr(served, field.name), getattr(wanted, field.name))
        for field in fields(Wiring)
        if getattr(served, field.name) != getattr(wanted, field.name)
    }


def to_json(wiring: Wiring) -> dict[str, Any]:
    """A plain dictionary that :func:`from_json` reads back to an equal Wiring."""
    data = {field.name: getattr(wiring, field.name) for field in fields(Wiring)}
    rope = wiring.rope
    return data | {
        "taps": list(wiring.taps),
        "initial": sorted(wiring.initial),
        "rope": {
            "theta": rope.theta,
            "style": rope.style,
            "partial": rope.partial,
            "scaling": dict(rope.scaling),
        },
    }


def from_json(data: dict[str, Any], where: str) -> Wiring:
    """Read :func:`to_json`'s dictionary; ``where`` names the file in messages.

    A missing wire of :data:`LATER` has the paper's value.

    Raises:
        InputError: another wire is missing, or one is unknown.
    """
    names = {field.name for field in fields(Wiring)}
    data = {**LATER, **data} if isinstance(data, dict) else data
    if not isinstance(data, dict) or set(data) != names:
        odd = sorted(names.symmetric_difference(data)) if isinstance(data, dict) else [type(data)]
        raise InputError(
            f"{where}: expected a wiring with the wires {sorted(names)}; differs in {odd}"
        )
    try:
        rope = data["rope"]
        scaling = tuple(sorted((rope.get("scaling") or {}).items()))
        wiring = Wiring(
            **(
                data
                | {
                    "taps": parse_taps(",".join(str(tap) for tap in data["taps"])),
                    "initial": frozenset(data["initial"]),
                    "rope": Rope(
                        float(rope["theta"]), rope["style"], float(rope["partial"]), scaling
                    ),
                }
            )
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{where}: the wiring's rope or taps are malformed: {error!r}") from None
    _check_values(wiring, where)
    _check_values(wiring.rope, where)
    if not all(type(name) is str for name in data["initial"]):
        raise InputError(f"{where}: wire 'initial': expected names, found {data['initial']!r:.60}")
    if not wiring.rope.theta > 0 or not 0 < wiring.rope.partial <= 1 or not _finite(scaling):
        raise InputError(f"{where}: the wiring's rope holds numbers out of range: {wiring.rope}")
    return wiring


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def _finite(value: Any) -> bool:
    """No number in it, however deep, is NaN, infinite or beyond what any size can be."""
    if isinstance(value, list | tuple):
        return all(_finite(entry) for entry in value)
    if isinstance(value, int | float):
        return abs(value) < _LARGEST
    return value is None or isinstance(value, str)


def _check_values(record: Wiring | Rope, where: str) -> None:
    """Raise InputError unless each value is of its field's kind, and each number is finite."""
    for name, kind in get_type_hints(type(record)).items():
        value = getattr(record, name)
        if get_origin(kind) is Literal:
            good, wanted = value in get_args(kind), f"one of {', '.join(get_args(kind))}"
        elif kind is float:
            good = type(value) in (int, float) and abs(value) < _LARGEST  # NaN is not below it
            wanted = "a finite number"
        elif kind in (int, bool):
            good, wanted = type(value) is kind, f"a value of type {kind.__name__}"
        elif kind == int | None:
            good = value is None or (type(value) is int and value > 0)
            wanted = "a positive number or null"
        else:
            continue  # taps, rope and initial are records of their own
        if not good:
            raise InputError(f"{where}: wire {name!r}: expected {wanted}, found {value!r:.60}")
