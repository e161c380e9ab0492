"""What the joint search says of each wire: plain records, which evidence and renderers read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from draftprobe.drafter.wiring import Wiring, to_json
from draftprobe.measure.interval import Estimate

Status = Literal["right", "cut", "ambiguous", "open", "harmless", "not separable", "nothing to try"]


@dataclass(frozen=True, slots=True)
class Tied:
    """Another value of a wire: what it costs against the wanted one.

    Attributes:
        value: in words; gain: nats per chain of the wanted value over it, negative where it is
            likelier; same: it changes nothing but rounding.
        acceptance: expected acceptance length lost with it.
    """

    value: str
    gain: Estimate
    same: bool
    acceptance: Estimate


@dataclass(frozen=True, slots=True)
class WireEvidence:
    """What replay says of one wire.

    Attributes:
        wire: its name; finding: id; title: of the finding.
        served, wanted: values in words; wanted is served wherever nothing clearly beats it.
        status: ``cut``: the served value is beaten, and accepted drafts are lost by it; ``right``:
            it beats every other; ``not separable``: it ties with those in ``tied``; ``harmless``:
            beaten, but by less than 0.02 of acceptance length; ``ambiguous``: beaten, but so could
            another wire explain it, named in ``rivals``; ``open``: not decided; ``nothing to
            try``: it is served as meant, and no other value is ever meant, or none is at hand.
        tied: other values that are not beaten.
        loss: acceptance length lost by the served value; None where it is the wanted one.
        gain: nats per chain of the wanted value over the served one; t: in standard errors.
        rivals: single changes of other wires that explain the text as well.
        needed: tokens that would decide, about; None where it is decided or none would.
    """

    wire: str
    finding: str
    title: str
    served: str
    wanted: str
    status: Status
    tied: tuple[Tied, ...] = ()
    loss: Estimate | None = None
    gain: Estimate | None = None
    t: float | None = None
    rivals: tuple[str, ...] = ()
    needed: int | None = None


@dataclass(frozen=True, slots=True)
class Joint:
    """The answer of the joint search.

    Attributes:
        served: where it started; wanted: what the weights want, equal to served wherever that is
            not clearly beaten; both with the wanted taps.
        wires: evidence of each wire but the taps.
        wirings: distinct wirings replayed; replays: blocks of sequences replayed for them.
        chains, sequences: of the last look.
        guessing: even the best wiring's step 1 does not beat guessing.
    """

    served: Wiring
    wanted: Wiring
    wires: tuple[WireEvidence, ...]
    wirings: int
    replays: int
    chains: int
    sequences: int
    guessing: bool

    def of(self, *statuses: Status) -> tuple[WireEvidence, ...]:
        """The wires with one of these statuses."""
        return tuple(wire for wire in self.wires if wire.status in statuses)

    def to_json(self) -> dict[str, Any]:
        """Plain data; the wirings as golden files hold them."""
        data = {name: getattr(self, name) for name in ("wirings", "replays", "chains", "sequences")}
        return data | {
            "served": to_json(self.served),
            "wanted": to_json(self.wanted),
            "guessing": self.guessing,
            "wires": [asdict(wire) for wire in self.wires],
        }
