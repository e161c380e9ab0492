"""Finding and Verdict: the plain records that every renderer reads. No torch, no logic.

A finding is a value, never an exception; what could not be checked stands in ``not_evaluated``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from draftprobe.diagnose.quality import Quality
    from draftprobe.diagnose.slots import SlotEvidence
    from draftprobe.diagnose.suspects import Suspect
    from draftprobe.diagnose.wire_evidence import Joint
    from draftprobe.drafter.wiring import Tap
    from draftprobe.measure.interval import Estimate
    from draftprobe.measure.summary import Summary

SCHEMA_VERSION = 1

Kind = Literal["healthy", "wiring", "quality", "data", "cost", "several", "undecided"]
Confidence = Literal["low", "medium", "high"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        id: stable, such as W103; title: in a few words.
        wire: the wire it is about, if one.
        severity: acceptance length lost, with its interval; None where it was not measured.
        served: what the server does; wanted: what the weights want; both in words.
        evidence: how it is known, with the numbers.
    """

    id: str
    title: str
    wire: str | None
    severity: Estimate | None
    served: str | None
    wanted: str | None
    evidence: str


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """A number that was claimed, and what the replay makes of it.

    Attributes:
        what: ``accuracy`` or ``acceptance``; claimed: the number.
        status: met or missed; below, within or above what the wiring allows; or not judged.
        evidence: the replay's number with its interval.
    """

    what: str
    claimed: float
    status: str
    evidence: str


@dataclass(frozen=True, slots=True)
class NotEvaluated:
    """Something that was not checked, and why; never the same as clean."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Mend:
    """What one engine's config must say: a unified diff, or why it cannot be said there.

    Attributes:
        engine: whose config; version: whose rule.
        safe: the wiring was proved by replay.
        diff: unified diff of config.json; empty where the engine cannot express it.
        note: what the diff rests on, or why there is none.
    """

    engine: str
    version: str
    safe: bool
    diff: str
    note: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer, and all it rests on.

    Attributes:
        verdict: what is wrong, in one word; confidence: how sure.
        headline: the first line people read, without the verdict's name.
        wanted: boundaries that the weights want, in slot order; served: what the server feeds,
            None where that is not known; tied: per slot, the boundaries that cannot be told apart.
        findings: what is wrong; replays: the figures of each wiring that was replayed.
        not_evaluated: what was not checked.
        slots: what each witness says of each slot; claims: what became of each claim.
        wires: what the joint search says of every wire but the taps; None where it was not run.
        suspects: single cuts by how near they come to the served rates; a ranking, no verdict.
        quality: figures of weights and text; None where they were not taken.
        mend: per engine.
        provenance: versions, digests, files, command.
    """

    verdict: Kind
    confidence: Confidence
    headline: str
    wanted: tuple[Tap, ...]
    served: tuple[Tap, ...] | None
    tied: tuple[tuple[Tap, ...], ...]
    findings: tuple[Finding, ...]
    replays: tuple[Summary, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    slots: tuple[SlotEvidence, ...] = ()
    claims: tuple[ClaimCheck, ...] = ()
    wires: Joint | None = None
    suspects: tuple[Suspect, ...] = ()
    quality: Quality | None = None
    mend: tuple[Mend, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The one JSON object of every command that judges."""
        from dataclasses import asdict

        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": self.verdict,
            "confidence": self.confidence,
            "headline": self.headline,
            "wanted": list(self.wanted),
            "served": None if self.served is None else list(self.served),
            "tied": [list(slot) for slot in self.tied],
            "findings": [asdict(finding) for finding in self.findings],
            "replay": [summary.to_json() for summary in self.replays],
            "not_evaluated": [asdict(entry) for entry in self.not_evaluated],
            "slots": [asdict(slot) | {"tied": list(slot.tied)} for slot in self.slots],
            "claims": [asdict(claim) for claim in self.claims],
            "wires": None if self.wires is None else self.wires.to_json(),
            "suspects": [asdict(suspect) for suspect in self.suspects],
            "quality": None if self.quality is None else asdict(self.quality),
            "mend": [asdict(mend) for mend in self.mend],
            "provenance": self.provenance,
        }
