"""The answer of a comparison: what each slot holds, what differs, what was not compared.

Plain records that every renderer reads. No torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from draftprobe.diagnose.verdict import Finding, NotEvaluated
from draftprobe.drafter.wiring import Tap

SCHEMA_VERSION = 1

Outcome = Literal["same", "findings", "undecided"]


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The explanation that came second.

    Attributes:
        boundary: which; branch: what its layer added, and not the state; shift: rows late.
        median: its error per token.
    """

    boundary: Tap
    branch: bool
    shift: int
    median: float


@dataclass(frozen=True, slots=True)
class SlotReport:
    """One slot of the served dump.

    Attributes:
        slot: its number, from 0; role: ``aux`` feeds the drafter, ``last`` the teacher's head.
        boundary: which boundary it is; None where that is not known.
        treatment: what was done to it, a word of ``found.Treatment``.
        shift: rows by which it comes late, early where negative; scale: constant factor, if one.
        median, largest: relative error per token under this explanation, first tokens left out;
            of the sample where it cannot be undone row by row. first: of the first tokens.
        runner_up: the next explanation.
        floor: what rounding explains; floor_source: by which dtype, or how measured.
        stored: the coarsest dtype that holds the values.
        tied: boundaries that cannot be told apart.
        rows: compared; moved: rows of other tokens by kind; zero, not_finite, odd: other rows.
        wanted: the boundary that was wanted, and wanted_by: who says so.
        told: the evidence in words.
    """

    slot: int
    role: str
    boundary: Tap | None
    treatment: str
    shift: int
    scale: float | None
    median: float | None
    largest: float | None
    first: float | None
    runner_up: RunnerUp | None
    floor: float
    floor_source: str
    stored: str
    tied: tuple[Tap, ...]
    rows: int
    moved: dict[str, int]
    zero: int
    not_finite: int
    odd: int
    wanted: Tap | None
    wanted_by: str | None
    told: str

    def to_json(self) -> dict[str, Any]:
        """As it stands in the JSON's ``slots``."""
        data = asdict(self)
        for name in ("median", "largest", "first"):
            data.pop(name)
        error = {"median": self.median, "max": self.largest, "first": self.first}
        return data | {"tied": list(self.tied), "error": error}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a served dump holds, against reference states of its target.

    Attributes:
        slots: of the served dump, in its order.
        trained: of the dump that the drafter was trained on, where one was given.
        findings: what differs, the first wire on the path first.
        undecided: slots of which nothing is said, so that no finding is no clean bill.
        not_evaluated: what was not compared, and why.
        provenance: files, tokens, floors, versions.
    """

    slots: tuple[SlotReport, ...]
    trained: tuple[SlotReport, ...]
    findings: tuple[Finding, ...]
    undecided: tuple[int, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """Findings outweigh slots of which nothing is known."""
        if self.findings:
            return "findings"
        return "undecided" if self.undecided else "same"

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `draftprobe compare`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "outcome": self.outcome,
            "first_differing": self.findings[0].id if self.findings else None,
            "slots": [slot.to_json() for slot in self.slots],
            "trained": [slot.to_json() for slot in self.trained],
            "findings": [asdict(finding) for finding in self.findings],
            "undecided": list(self.undecided),
            "not_evaluated": [asdict(entry) for entry in self.not_evaluated],
            "provenance": self.provenance,
        }
