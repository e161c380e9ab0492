"""What a comparison makes of two descriptions of a slot: what is served, and what was wanted.

The one place that makes a Finding of them; the first wire on the path from the target comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from draftprobe.diagnose.compare.account import Slotted
from draftprobe.diagnose.compare.found import Found
from draftprobe.diagnose.taps import taps_finding
from draftprobe.diagnose.verdict import Finding
from draftprobe.drafter.wiring import Tap, tap_name

_COMPARED: dict[str, tuple[str, str | None]] = {
    "S107": ("the dump's states are of another width than the target's", None),
    "W505": ("states that are NaN or infinite", None),
    "W118": ("a slot that holds no state: zero or constant", "capture_point"),
    "W117": ("the residual stream is missing, or a branch of a layer", "capture_point"),
    "W120": ("a norm applied, or missing, where the state is taken", "tap_norm"),
    "W119": ("a slot has nothing of the wanted boundary", "taps"),
    "W316": ("states scaled by a factor", "embedding"),
    "W503": ("states in another basis", "basis"),
    "E103": ("rows permuted, dropped, repeated or empty", None),
    "W504": ("states less precise than their dtype", "precision"),
}

COMPARED = tuple(_COMPARED)
"""Every id that only a comparison of states raises."""

_SHARED: dict[str, tuple[str, str | None]] = {
    "W115": ("aux rows of a neighbouring token", "state_shift"),
    "W116": ("the target's final norm on the last tap", "tap_norm"),
}
"""What replay can find, too: the entries of ``diagnose.wires``."""

NORMS = ("normalised", "token_scale", "final_norm", "other_norm")
PARTS = ("branch", "part_of_branch", "part_of_layer")
EMPTY = ("zero", "constant")
NOTHING = 0.1
"""A slot whose median cosine with the wanted boundary is below has nothing of it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a slot should hold, who says so, and whether the reference holds that boundary."""

    found: Found
    source: str
    recorded: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """A slot as served and as wanted; ``wanted`` is None where nothing says.

    ``role`` is the slot's, ``last`` the boundary h[L], or None where it is as good as any other.
    """

    slot: int
    served: Slotted
    wanted: Wanted | None
    role: str
    last: Tap | None

    @property
    def found(self) -> Found:
        """As served."""
        return self.served.found

    @property
    def absent(self) -> bool:
        """The wanted boundary is not in the reference: what is served may well be it."""
        return self.wanted is not None and not self.wanted.recorded

    @property
    def plain(self) -> Found | None:
        """As wanted."""
        return None if self.wanted is None else self.wanted.found

    @property
    def doubtful(self) -> bool:
        """With noise it is a neighbour of the wanted one: half of a layer may look like that."""
        if self.plain is None or self.found.treatment != "imprecise":
            return False
        served, wanted = self.found.boundary, self.plain.boundary
        return isinstance(served, int) and isinstance(wanted, int) and abs(served - wanted) == 1

    def differs(self, treatments: Sequence[str]) -> bool:
        """One of these was done to the served slot and not to the wanted one, or the other way."""
        wanted = "identity" if self.plain is None else self.plain.treatment
        return self.found.treatment != wanted and (
            self.found.treatment in treatments or wanted in treatments
        )

    @property
    def final_norm(self) -> bool:
        """h[N] is served where h[L] is wanted, or the other way."""
        if self.plain is None or self.found.treatment not in ("identity", "imprecise"):
            return False
        return {self.found.boundary, self.plain.boundary} == {"N", self.last}


def made(identifier: str, evidence: str, served: str | None, wanted: str | None) -> Finding:
    """A Finding of this id, with title and wire of the table and no measured severity."""
    title, wire = (_COMPARED | _SHARED)[identifier]
    return Finding(identifier, title, wire, None, served, wanted, evidence)


def judge(pairs: Sequence[Pair], precise: bool) -> tuple[Finding, ...]:
    """Every difference, one finding for each kind, in the order of the path.

    Args:
        pairs: the slots.
        precise: a floor was measured or a precision asked for, so that being above it counts.
    """
    tests: tuple[tuple[str, Callable[[Pair], str | None]], ...] = (
        ("W505", _not_finite), ("W118", _empty), ("W117", _part),
        ("W116", _final_norm), ("W120", _norm),
        ("taps", _other), ("W119", _nothing), ("W316", _scale), ("W503", _basis),
        ("W115", _shift), ("E103", _rows), ("W504", lambda pair: _precision(pair, precise)),
    )  # fmt: skip
    pairs = _moved_slots(pairs)
    findings: list[Finding] = []
    for identifier, test in tests:
        told = [(pair, text) for pair in pairs if (text := test(pair)) is not None]
        if not told:
            continue
        evidence = "; ".join(f"slot {pair.slot} {text}" for pair, text in told)
        served = "; ".join(f"slot {pair.slot}: {in_words(_settled(pair))}" for pair, _ in told)
        known = [(pair.slot, pair.plain) for pair, _ in told if pair.plain is not None]
        wanted = "; ".join(f"slot {slot}: {in_words(found)}" for slot, found in known) or None
        if identifier == "taps":
            findings.append(_taps(pairs, evidence, served, wanted))
        else:
            findings.append(made(identifier, evidence, served, wanted))
    return tuple(findings)


def in_words(found: Found) -> str:
    """``h[3], one row late``: what a slot holds, shortly."""
    name = "unknown" if found.boundary is None else tap_name(found.boundary)
    words = {
        "identity": name, "rows": name, "imprecise": f"{name} with noise",
        "scaled": f"{found.scale or 1:.4g} times {name}", "normalised": f"RMS norm of {name}",
        "token_scale": f"{name} at another length at each token",
        "final_norm": f"final norm of {name}", "other_norm": f"a norm of {name}",
        "branch": f"the branch that leads to {name}", "rotated": f"{name} in another basis",
        "part_of_branch": f"one branch of the layer before {name}",
        "part_of_layer": f"{name} without one of its layer's branches",
        "zero": "zeros", "constant": "one row again and again", "not_finite": "no finite number",
    }  # fmt: skip
    told = words.get(found.treatment, "unknown")
    if not found.shift:
        return told
    late = "late" if found.shift > 0 else "early"
    return f"{told}, {abs(found.shift)} row{'s' * (abs(found.shift) > 1)} {late}"


def _settled(pair: Pair) -> Found:
    """What is served, without a shift that dropped or repeated rows made on the way."""
    moved = pair.served.check.stayed and _ordered(pair)
    return replace(pair.found, shift=0) if moved else pair.found


def _error(pair: Pair) -> str:
    """The error of the explanation, the floor, and the next best one."""
    found = pair.found
    if found.median is None:
        return ""
    told = f" (errs by {found.median:.1e}, floor {pair.served.floors.of(found.boundary):.1e}"
    if found.rival is not None:
        rival = tap_name(found.rival.boundary)
        told += f"; next {'a branch to ' * found.rival.branch}{rival} by {found.rival.median:.1e}"
    return told + ")"


def _not_finite(pair: Pair) -> str | None:
    check = pair.served.check
    if not check.not_finite:
        return None
    told = f"has {check.not_finite:,} of {check.rows:,} rows that are not finite"
    return told + _where(pair, "not_finite")


def _empty(pair: Pair) -> str | None:
    return f"is empty: {pair.found.told}" if pair.differs(EMPTY) else None


def _part(pair: Pair) -> str | None:
    return pair.found.told + _error(pair) if pair.differs(PARTS) else None


def _norm(pair: Pair) -> str | None:
    return pair.found.told + _error(pair) if pair.differs(NORMS) else None


def _final_norm(pair: Pair) -> str | None:
    if not pair.final_norm:
        return None
    state = "after" if pair.found.boundary == "N" else "before"
    return f"is {in_words(pair.found)}, the state {state} the final norm{_error(pair)}"


def _other(pair: Pair) -> str | None:
    """Another boundary than the wanted one."""
    found, plain = pair.found, pair.plain
    if plain is None or plain.boundary is None or found.boundary is None:
        return None
    if pair.final_norm or pair.absent or pair.doubtful:
        return None
    allowed = {plain.boundary}
    if found.treatment == "part_of_layer" and isinstance(plain.boundary, int):
        allowed.add(plain.boundary + 1)
    if found.boundary in allowed:
        return None
    return f"is {in_words(found)}{_error(pair)}, not {tap_name(plain.boundary)}"


def _taps(pairs: Sequence[Pair], evidence: str, served: str | None, wanted: str | None) -> Finding:
    """W101 to W104, by the pattern of all slots where all are known."""
    feeding, meant, known = _lists(pairs)
    identifier, title = "W101", "aux taps of other layers"
    if known and feeding != meant:
        identifier, title = taps_finding(feeding, meant)
    return Finding(identifier, title, "taps", None, served, wanted, evidence)


def _lists(pairs: Sequence[Pair]) -> tuple[list[Tap], list[Tap], bool]:
    """Boundaries of the slots that feed the drafter, served and wanted; whether all are known."""
    feeding: list[Tap] = []
    meant: list[Tap] = []
    known = True
    for pair in pairs:
        if pair.plain is None or pair.plain.boundary is None or pair.role != "aux" or pair.absent:
            continue
        same = pair.final_norm or pair.doubtful
        tap = pair.plain.boundary if same else pair.found.boundary
        known = known and tap is not None
        if tap is not None:
            feeding.append(tap)
            meant.append(pair.plain.boundary)
    return feeding, meant, known


def _moved_slots(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """The pairs, with h[N] for h[L] no norm's matter where slots were exchanged or moved on."""
    apart = [replace(pair, last=None) for pair in pairs]
    feeding, meant, known = _lists(apart)
    moved = known and feeding != meant and taps_finding(feeding, meant)[0] in ("W102", "W103")
    return apart if moved else pairs


def _nothing(pair: Pair) -> str | None:
    found = pair.found
    if found.treatment != "unknown" or found.cosine is None or found.cosine >= NOTHING:
        return None
    plain = pair.plain
    if plain is None or plain.treatment != "identity" or plain.boundary is None or pair.absent:
        return None
    return f"{found.told}; its largest median cosine with any boundary is {found.cosine:.2f}"


def _scale(pair: Pair) -> str | None:
    if not pair.differs(("scaled",)):
        return None
    return pair.found.told + _error(pair)


def _basis(pair: Pair) -> str | None:
    return pair.found.told if pair.differs(("rotated",)) else None


def _shift(pair: Pair) -> str | None:
    wanted = 0 if pair.plain is None else pair.plain.shift
    check = pair.served.check
    if pair.found.shift != wanted and not (check.stayed and _ordered(pair)):
        return pair.found.told + _error(pair)
    if check.shifts:
        by = ", ".join(
            f"{n} of its sequences by {d} row{'s' * (abs(d) > 1)}" for d, n in check.shifts.items()
        )
        return f"comes late in {by} (early where negative){_where(pair, 'shifted')}"
    return None


def _ordered(pair: Pair) -> bool:
    return bool({"dropped", "repeated"} & set(pair.served.check.moved))


def _rows(pair: Pair) -> str | None:
    check = pair.served.check
    told = [
        f"{count:,} rows {kind}{_where(pair, kind)}"
        for kind, count in check.moved.items()
        if kind != "shifted"
    ]
    if check.zero and pair.found.treatment not in EMPTY:
        told.append(f"{check.zero:,} rows of zeros{_where(pair, 'zero')}")
    if not told and not check.shifts and pair.differs(("rows",)):
        return pair.found.told + _error(pair)
    return f"has of {check.rows:,} rows " + ", ".join(told) if told else None


def _precision(pair: Pair, precise: bool) -> str | None:
    found, floor = pair.found, pair.served.floors.of(pair.found.boundary)
    stored = pair.served.stored
    if found.treatment == "imprecise" and pair.differs(("imprecise",)) and not pair.doubtful:
        return f"{found.told}{_error(pair)}: a quantised or another revision of the target"
    if found.median is None or found.treatment != "identity":
        return None
    if stored.startswith("float8") and pair.served.declared != stored:
        return (
            f"holds values of {stored} in {pair.served.declared}: "
            f"{'8' if '4' in stored else '4'} steps from one power of two to the next{_error(pair)}"
        )
    if precise and found.median > floor:
        return (
            f"errs by {found.median:.1e}, above the floor {floor:.1e} ({pair.served.floors.source})"
        )
    return None


def _where(pair: Pair, kind: str) -> str:
    place = pair.served.check.where.get(kind)
    return "" if place is None else f" (first: sequence {place[0]}, row {place[1]})"


def unjudged(pairs: Sequence[Pair], found: Sequence[Finding]) -> Iterator[tuple[int, str]]:
    """Slots of which nothing is said, and why."""
    named = {one.id for one in found}
    for pair in pairs:
        treatment = pair.found.treatment
        wanted = None if pair.plain is None else pair.plain.boundary
        nothing = "W119" in named and _nothing(pair) is not None
        tied = treatment == "tied" and wanted not in pair.found.tied
        if treatment == "few_rows" or tied or (treatment == "unknown" and not nothing):
            yield pair.slot, pair.found.told
        elif pair.doubtful and wanted is not None:
            yield (
                pair.slot,
                f"{pair.found.told}{_error(pair)}; it may be a half of {tap_name(wanted)}",
            )
        elif pair.absent and wanted is not None:
            yield pair.slot, f"{pair.found.told}; the reference does not hold {tap_name(wanted)}"
