"""The one table of wires: each wire's other values, when it shows, and the finding that it raises.

Values are of two kinds: those that some trainer means, which weights may want; and those that only
a fault makes (a token not handed on, rows of another token), which are served but never wanted.
Knows Wirings and what is at hand to wire with, not how a value is tried. A new wire is one entry.
Taps stand here by name alone: `search` finds them. What no value of a Wiring holds (a draft
vocabulary of another corpus, a rotated basis, the branch without its residual) is for the static
checks and for `compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal

from draftprobe.drafter.wiring import Rope, Wiring
from draftprobe.errors import InputError

if TYPE_CHECKING:
    from draftprobe.drafter.model import Drafter
    from draftprobe.drafter.parts import Parts

_ONES = "initial:"
"""Prefix of the wires that say whether one tensor was left at ones."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What alternatives depend on beside the wiring.

    Attributes:
        embeddings, heads, pre_fc_norms: what is at hand, as a wiring names it.
        target_norm: the target's final norm is known; d2t: there is a map of the vocabulary.
        hidden: H of the drafter; rotary: channels of a head that may turn.
        layers: L of the target; rope: the target's, None if not known.
        trained: the wiring that the drafter's config speaks of, None if not known; its values are
            always worth trying.
    """

    embeddings: tuple[str, ...]
    heads: tuple[str, ...]
    pre_fc_norms: tuple[str, ...]
    target_norm: bool
    d2t: bool
    hidden: int
    rotary: int
    layers: int
    rope: Rope | None
    trained: Wiring | None


def facts_of(
    drafter: Drafter,
    parts: Parts,
    layers: int,
    rope: Rope | None,
    trained: Wiring | None = None,
) -> Facts:
    """The facts of a drafter and what it can be wired with."""
    shape = drafter.shape
    return Facts(
        embeddings=parts.embeddings,
        heads=parts.heads,
        pre_fc_norms=parts.pre_fc_norms,
        target_norm=parts.target_norm is not None,
        d2t=bool(drafter.d2t.any()),
        hidden=shape.hidden,
        rotary=shape.rotary,
        layers=layers,
        rope=rope,
        trained=trained,
    )


Values = Callable[[Wiring, Facts], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class Wire:
    """One wire.

    Attributes:
        name: field of Wiring, ``rope.`` and a field of Rope, or ``initial:`` and a tensor's name.
        step: the first draft step on which it can show.
        finding: id; title: of the finding.
        values: those that weights may want, the present one or not.
        faults: those that only a fault makes.
    """

    name: str
    step: Literal[1, 2]
    finding: str
    title: str
    values: Values
    faults: Values = lambda wiring, facts: ()

    def value(self, wiring: Wiring) -> Any:
        """What a wiring says of this wire."""
        if self.name.startswith(_ONES):
            return self.name.removeprefix(_ONES) in wiring.initial
        holder, _, field = self.name.rpartition(".")
        return getattr(getattr(wiring, holder) if holder else wiring, field)

    def put(self, wiring: Wiring, value: Any) -> Wiring:
        """The wiring with this wire at ``value``."""
        if self.name.startswith(_ONES):
            name = {self.name.removeprefix(_ONES)}
            return replace(
                wiring, initial=wiring.initial | name if value else wiring.initial - name
            )
        holder, _, field = self.name.rpartition(".")
        if holder:
            return replace(wiring, **{holder: replace(getattr(wiring, holder), **{field: value})})
        return replace(wiring, **{field: value})

    def alternatives(self, wiring: Wiring, facts: Facts, faults: bool) -> Iterator[Wiring]:
        """The wiring with each other value of this wire, those of faults only if asked."""
        now, values = self.value(wiring), list(self.values(wiring, facts))
        if facts.trained is not None and self.name != "taps":
            values.append(self.value(facts.trained))
        for value in dict.fromkeys(values + (list(self.faults(wiring, facts)) if faults else [])):
            if value != now:
                yield self.put(wiring, value)


def _fixed(*values: Any) -> Values:
    return lambda wiring, facts: values


def _tap_norm(wiring: Wiring, facts: Facts) -> Iterable[Any]:
    """Of h[L] the normed state is boundary N, which is a matter of the taps."""
    last = wiring.taps[-1]
    below = last != "N" and last < facts.layers
    return ("last",) if facts.target_norm and below else ()


def _partial(wiring: Wiring, facts: Facts) -> Iterable[Any]:
    for share in (1.0, 0.5, 0.25):
        turned = int(facts.rotary * share)
        if turned >= 2 and turned % 2 == 0:
            yield share


def _read(needs: str | None) -> Values:
    """A norm's tensor is never meant to stay at ones; where there is none it cannot but."""

    def values(wiring: Wiring, facts: Facts) -> Iterable[Any]:
        return (False,) if needs is None or needs in facts.pre_fc_norms else ()

    return values


def _left(needs: str | None) -> Values:
    def values(wiring: Wiring, facts: Facts) -> Iterable[Any]:
        there = needs is None or (wiring.pre_fc_norm == needs and needs in facts.pre_fc_norms)
        return (True,) if there else ()

    return values


_TENSORS = (
    ("layers.0.input_layernorm.weight", None),
    ("layers.0.hidden_norm.weight", None),
    ("layers.0.post_attention_layernorm.weight", None),
    ("norm.weight", None),
    ("input_norm.weight", "whole"),
    ("fc_norm.0.weight", "per_tap"),
)

WIRES: tuple[Wire, ...] = (
    Wire("taps", 1, "W101", "aux taps of other layers", _fixed()),
    Wire("state_shift", 1, "W115", "aux rows of a neighbouring token", _fixed(0), _fixed(-1, 1)),
    Wire(
        "tap_norm", 1, "W116", "the target's final norm on the last tap",
        _fixed("none"), _tap_norm,
    ),
    Wire(
        "pre_fc_norm", 1, "W211", "the norm before fc",
        lambda wiring, facts: (*facts.pre_fc_norms, wiring.pre_fc_norm),
    ),
    Wire(
        "half_order", 1, "W212", "the halves of the first layer's input exchanged",
        _fixed("embedding_first", "hidden_first"),
    ),
    Wire("embedding_norm", 1, "W213", "the norm on the embedding half", _fixed(True, False)),
    Wire("hidden_norm", 1, "W214", "the norm on the hidden half", _fixed(True, False)),
    Wire(
        "residual", 1, "W215", "where the residual stream starts",
        _fixed("raw", "normed"), _fixed("embedding", "none"),
    ),
    Wire("head_norm", 1, "W216", "the final norm before the head", _fixed(True, False)),
    Wire(
        "feedback", 2, "W217", "the state that is fed back",
        _fixed("pre_norm", "post_norm"), _fixed("stale"),
    ),
    *(
        Wire(
            _ONES + name, 1, "W218", f"{name} left at its initial value",
            _read(needs), _left(needs),
        )
        for name, needs in _TENSORS
    ),
    Wire(
        "vocabulary", 1, "W321", "how d2t is read",
        lambda wiring, facts: ("offset", "absolute", "identity") if facts.d2t else (),
    ),
    Wire("embedding", 1, "W322", "whose embedding table", lambda wiring, facts: facts.embeddings),
    Wire(
        "embedding_scale", 1, "W323", "the factor on the embedding",
        lambda wiring, facts: (1.0, sqrt(facts.hidden)),
    ),
    Wire("head", 1, "W324", "whose head", lambda wiring, facts: facts.heads),
    Wire("token_shift", 1, "W411", "tokens shifted against states", _fixed(1, 0), _fixed(2)),
    Wire("token_advance", 2, "W412", "the draft token not handed on", _fixed(1), _fixed(0)),
    Wire("position_start", 1, "W413", "the first position", _fixed(0, 1)),
    Wire("position_advance", 2, "W414", "positions of later draft steps", _fixed(1, 0)),
    Wire("position_limit", 1, "W415", "positions clamped", _fixed(None), _fixed(64)),
    Wire("window", 1, "W416", "the attention's window", _fixed(None), _fixed(16, 1)),
    Wire(
        "rope.theta", 1, "W421", "rope theta",
        lambda wiring, facts: (1e4, 1e5, 1e6, *((facts.rope.theta,) if facts.rope else ())),
    ),
    Wire(
        "rope.style", 1, "W422", "which channels rope turns in pairs",
        _fixed("half", "interleaved"),
    ),
    Wire("rope.partial", 1, "W423", "the share of a head that rope turns", _partial),
    Wire(
        "rope.scaling", 1, "W424", "rope scaling",
        lambda wiring, facts: ((), *((facts.rope.scaling,) if facts.rope else ())),
    ),
)  # fmt: skip
"""Every wire; the order is that of the path from target to draft token."""

BY_NAME = {wire.name: wire for wire in WIRES}


def neighbours(wiring: Wiring, facts: Facts, faults: bool = False) -> dict[Wiring, Wire]:
    """Every wiring that differs in the value of one wire, and in which; taps are not changed.

    Those that weights may want, or with ``faults`` every single cut.
    """
    return {
        other: wire
        for wire in WIRES
        if wire.name != "taps"
        for other in wire.alternatives(wiring, facts, faults)
    }


def changed(one: Wiring, other: Wiring) -> tuple[Wire, ...]:
    """The wires on which two wirings disagree."""
    return tuple(wire for wire in WIRES if wire.value(one) != wire.value(other))


def told(wire: Wire, wiring: Wiring) -> str:
    """A wire's value for a person."""
    value = wire.value(wiring)
    if wire.name.startswith(_ONES):
        return "left at ones" if value else "as in the file"
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_wire(text: str, wiring: Wiring) -> Wiring:
    """A wiring with one wire as given, ``name=value``; the value as JSON, or bare text.

    Raises:
        InputError: no such wire, or no such value.
    """
    import json

    from draftprobe.drafter.wiring import from_json, to_json

    name, equals, given = text.partition("=")
    if not equals or name not in BY_NAME or name == "taps":
        names = ", ".join(name for name in BY_NAME if name != "taps")
        raise InputError(
            f"--served-wire: expected NAME=VALUE with a name of {names}, found {text!r}"
        )
    try:
        value = json.loads(given)
    except ValueError:
        value = given
    if name == "rope.scaling":
        value = tuple(sorted(value.items())) if isinstance(value, dict) else ()
    if name.startswith(_ONES) and type(value) is not bool:
        raise InputError(f"--served-wire: {name}: expected true or false, found {given!r}")
    if isinstance(value, int) and isinstance(BY_NAME[name].value(wiring), float):
        value = float(value)
    if isinstance(value, list | dict):
        raise InputError(f"--served-wire: {name}: expected one value, found {given!r}")
    return from_json(to_json(BY_NAME[name].put(wiring, value)), "--served-wire")
