"""What an engine does with a drafter's folder: the records, the same for every engine.

Knows no engine. A Reading is about the taps; an Effect is about one key or tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from draftprobe.dialects.ids import Rule
from draftprobe.drafter.wiring import Tap

Did = Literal[
    "ignores key",
    "ignores tensor",
    "leaves at initial value",
    "defaults",
    "replaces",
    "refuses",
    "is not known",
]
"""What an engine did; only ``refuses`` is told by the engine itself; ``is not known`` what it makes
of this form of folder."""

Outcome = Literal["feeds", "fails", "feeds no boundary", "unknown"]
"""What becomes of the taps: boundaries arrive; the engine fails; states arrive that are no complete
residual stream; or its rule is not known here, and it may well work."""


class Unknown(str):
    """Why an engine's rule is not known here, in place of taps."""

    __slots__ = ()


class NoBoundary(str):
    """What arrives instead of boundaries, in place of taps."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Target:
    """What readings depend on in the target, from its ``config.json`` alone.

    Attributes:
        family: the ``model_type`` that engines' rules go by; layers: L; hidden: H; vocabulary: V.
        config: the language model's part.
        where: the file, for messages.
    """

    family: str
    layers: int
    hidden: int
    vocabulary: int
    config: dict[str, Any]
    where: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Which boundaries one engine (at a version, in one of its runners) feeds the drafter.

    Attributes:
        engine, version: whose; variant: which runner or mode, empty where there is one.
        taps: boundaries in the order of the slots; None unless it feeds them.
        problem: why there are no taps: the engine's failure, or what is not known.
        found: where the ids that were read stand: ``top``, ``nested``, ``default``, or another
            key's name.
        rule: how that is known.
        outcome: what that means.
    """

    engine: str
    version: str
    variant: str
    taps: tuple[Tap, ...] | None
    problem: str
    found: str
    rule: Rule | None
    outcome: Outcome


def reading(
    who: tuple[str, str, str], got: tuple[Tap, ...] | str, found: str, rule: Rule | None
) -> Reading:
    """A Reading of engine, version and variant, from taps or from why there are none."""
    if not isinstance(got, str):
        return Reading(*who, got, "", found, rule, "feeds")
    kinds: dict[type, Outcome] = {Unknown: "unknown", NoBoundary: "feeds no boundary"}
    return Reading(*who, None, str(got), found, rule, kinds.get(type(got), "fails"))


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing an engine does with a folder that its owner may not expect.

    Attributes:
        engine, version: whose.
        did: what, as one of a few kinds.
        subject: the key (``eagle_config.norm_before_fc``) or the tensor's name in the file.
        wire: the field of Wiring that it decides, or None; value: what that wire is then.
        text: one sentence: what happens, and to what effect.
        rule: how that is known.
    """

    engine: str
    version: str
    did: Did
    subject: str
    wire: str | None
    value: Any
    text: str
    rule: Rule
