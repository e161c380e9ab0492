"""Served states against reference states, slot by slot: what is it, and is it what was wanted?

Knows dumps and reference files; makes a Comparison, prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from draftprobe.diagnose.compare.account import LIMIT, Account, Progress, account
from draftprobe.diagnose.compare.findings import Pair, Wanted, judge, made, unjudged
from draftprobe.diagnose.compare.floor import Floors, by_dtype, measured
from draftprobe.diagnose.compare.found import Found
from draftprobe.diagnose.compare.record import Comparison, RunnerUp, SlotReport
from draftprobe.diagnose.compare.rows import FOLLOWED
from draftprobe.diagnose.verdict import NotEvaluated
from draftprobe.drafter.wiring import Tap, check_taps, taps_name
from draftprobe.errors import InputError
from draftprobe.states.dumps import Options, open_dump
from draftprobe.states.dumps.identify import ROUNDING
from draftprobe.states.dumps.record import Dump, settle
from draftprobe.states.record import States

UNKNOWN = ("unknown", "few_rows", "tied", "not_finite")


@dataclass(frozen=True, slots=True)
class Asked:
    """What to compare.

    Attributes:
        served: the dump; reference: states of the same tokens.
        wanted: boundaries of its slots, or of all but the last hidden; None where not given.
        trained: the dump that the drafter was trained on.
        noise: the reference's tokens captured in another dtype, to measure the floor.
        precision: the dtype that the served states should be precise to.
        limit: rows of the sample.
    """

    served: Dump
    reference: States
    wanted: tuple[Tap, ...] | None = None
    trained: Dump | None = None
    noise: States | None = None
    precision: str | None = None
    limit: int = LIMIT


def compare(asked: Asked, progress: Progress = lambda done, total: None) -> Comparison:
    """Say what each served slot is, and where it differs from what was wanted.

    Raises:
        InputError: no common tokens, wanted boundaries that do not fit, files that do not belong
            together.
    """
    reference = asked.reference
    for dump in filter(None, (asked.served, asked.trained)):
        if dump.hidden != reference.provenance.hidden_size:
            return _another_width(dump, reference)
    layers = reference.provenance.layers
    served = settle(asked.served, layers)
    floors = _floors(asked)
    wanted = _named(asked, served)
    strict = asked.precision is not None
    found = account(served, reference, floors, asked.limit, strict, progress)
    trained: Account | None = None
    if asked.trained is not None:
        dump = settle(asked.trained, layers)
        trained = account(dump, reference, floors, asked.limit, strict, progress)
        wanted = _trained(trained, len(found.slots))
    pairs = [
        Pair(slot, one, wanted[slot], served.slots[slot].role, layers)
        for slot, one in enumerate(found.slots)
    ]
    findings = judge(pairs, asked.noise is not None or asked.precision is not None)
    silent = dict(unjudged(pairs, findings))
    if trained is not None:
        silent |= _silent_in_training(trained, silent, len(pairs))
    return Comparison(
        slots=_reports(found, wanted),
        trained=() if trained is None else _reports(trained, [None] * len(trained.slots)),
        findings=findings,
        undecided=tuple(sorted(silent)),
        not_evaluated=tuple(_not_evaluated(asked, found, trained, pairs, silent)),
        provenance=_provenance(asked, found, trained, floors),
    )


def _floors(asked: Asked) -> Floors:
    reference = asked.reference.provenance
    names = [reference.dtype, reference.compute]
    if asked.precision is not None:
        if asked.precision not in ROUNDING:
            raise InputError(
                f"--precision: expected one of {', '.join(ROUNDING)}, found {asked.precision!r}"
            )
        names.append(asked.precision)
    floors = by_dtype(names)
    return floors if asked.noise is None else measured(asked.reference, asked.noise, floors)


def _named(asked: Asked, served: Dump) -> list[Wanted | None]:
    """What each slot should hold: as given, else as the dump's format says."""
    recorded = asked.reference.boundaries
    wanted: list[Wanted | None] = [
        None
        if slot.boundary is None or slot.boundary == "L"
        else Wanted(Found(slot.boundary, "identity"), slot.how, slot.boundary in recorded)
        for slot in served.slots
    ]
    if asked.wanted is None:
        return wanted
    check_taps(asked.wanted, asked.reference.provenance.layers)
    aux = [number for number, slot in enumerate(served.slots) if slot.role == "aux"]
    places = list(range(len(served.slots))) if len(asked.wanted) == len(served.slots) else aux
    if len(places) != len(asked.wanted):
        raise InputError(
            f"--wanted: expected {len(aux)} boundaries for the slots of {served.path} that feed a "
            f"drafter, found {len(asked.wanted)} ({taps_name(asked.wanted)})"
        )
    for place, tap in zip(places, asked.wanted, strict=True):
        wanted[place] = Wanted(Found(tap, "identity"), "--wanted", tap in recorded)
    return wanted


def _trained(trained: Account, slots: int) -> list[Wanted | None]:
    """What training had in each slot; fc takes the first slots of a dump that holds more."""
    source = f"trained on {trained.dump.path}"
    held = [
        None if one.found.treatment in UNKNOWN else Wanted(one.found, source, True)
        for one in trained.slots
    ]
    return [*held, *[None] * slots][:slots]


def _silent_in_training(trained: Account, silent: dict[int, str], slots: int) -> dict[int, str]:
    return {
        number: f"in training: {one.found.told}"
        for number, one in enumerate(trained.slots[:slots])
        if one.found.treatment in UNKNOWN and number not in silent
    }


def _reports(found: Account, wanted: Sequence[Wanted | None]) -> tuple[SlotReport, ...]:
    reports: list[SlotReport] = []
    for number, one in enumerate(found.slots):
        what, check, ask = one.found, one.check, wanted[number]
        median, largest, first = check.spread()
        rival = what.rival
        reports.append(
            SlotReport(
                slot=number,
                role=found.dump.slots[number].role,
                boundary=what.boundary,
                treatment=what.treatment,
                shift=what.shift,
                scale=what.scale,
                median=what.median if median is None else median,
                largest=largest,
                first=first,
                runner_up=None
                if rival is None or not isfinite(rival.median)
                else RunnerUp(rival.boundary, rival.branch, rival.shift, rival.median),
                floor=one.floors.of(what.boundary),
                floor_source=one.floors.source,
                stored=one.stored,
                tied=what.tied,
                rows=check.rows,
                moved=dict(check.moved),
                zero=check.zero,
                not_finite=check.not_finite,
                odd=check.odd,
                wanted=None if ask is None else ask.found.boundary,
                wanted_by=None if ask is None else ask.source,
                told=what.told,
            )
        )
    return tuple(reports)


def _not_evaluated(
    asked: Asked, found: Account, trained: Account | None, pairs: Sequence[Pair],
    silent: dict[int, str],
):  # fmt: skip
    for number, why in sorted(silent.items()):
        yield NotEvaluated(f"slot {number}", why)
    for name, one in (("served", found), ("trained", trained)):
        if one is not None and one.matched.unmatched:
            numbers = ", ".join(map(str, one.matched.unmatched[:5]))
            more = len(one.matched.unmatched) - 5
            yield NotEvaluated(
                f"{len(one.matched.unmatched)} sequences of the {name} dump",
                f"the reference holds no states of their tokens ({numbers}"
                + (f" and {more} more)" if more > 0 else ")"),
            )
        if one is not None and one.matched.cut:
            yield NotEvaluated(
                f"the end of {one.matched.cut} sequences of the {name} dump",
                "the reference's tokens go on otherwise, or not at all",
            )
    for pair in pairs:
        what = pair.found
        if what.boundary is not None and what.treatment not in FOLLOWED:
            yield NotEvaluated(
                f"the rows of slot {pair.slot} one by one",
                "what was done to them cannot be undone without its weights",
            )
        odd = pair.served.check.odd
        if odd:
            yield NotEvaluated(
                f"{odd:,} of {pair.served.check.rows:,} rows of slot {pair.slot}",
                "they err far more than the rest and are no other row of their sequence; experts "
                "chosen otherwise by rounding do that, and so do states of other tokens",
            )
    missing = _missing(asked.reference)
    if missing:
        yield NotEvaluated(
            f"boundaries {taps_name(missing[:4])}" + (" and more" if len(missing) > 4 else ""),
            "the reference does not hold them: a slot cannot be named one of them, and branches "
            "next to them are not seen; capture it with --boundaries all",
        )
    if all(pair.wanted is None for pair in pairs):
        yield NotEvaluated(
            "whether these are the right boundaries",
            "nothing says which are wanted (--wanted, or --trained)",
        )
    if trained is not None and len(trained.slots) != len(pairs):
        yield NotEvaluated(
            "the count of slots",
            f"the trained dump holds {len(trained.slots)}, the served one {len(pairs)}: compared "
            "are the first of each, as trainers take them for fc",
        )


def _missing(reference: States) -> list[Tap]:
    every: list[Tap] = [*range(reference.provenance.layers + 1), "N"]
    return [tap for tap in every if tap not in reference.boundaries]


def _provenance(
    asked: Asked, found: Account, trained: Account | None, floors: Floors
) -> dict[str, Any]:
    from draftprobe import __version__

    facts = asked.reference.provenance
    told: dict[str, Any] = {
        "draftprobe": __version__,
        "served": _about(found),
        "trained": None if trained is None else _about(trained),
        "reference": {
            "path": str(asked.reference.path),
            "model": facts.model,
            "dtype": facts.dtype,
            "compute": facts.compute,
            "boundaries": list(asked.reference.boundaries),
        },
        "noise": None if asked.noise is None else str(asked.noise.path),
        "floor": {"general": floors.general, "source": floors.source},
        "sample": asked.limit,
    }
    return told


def _about(one: Account) -> dict[str, Any]:
    return {
        "path": str(one.dump.path),
        "format": one.dump.format,
        "dtype": one.dump.dtype,
        "sequences": len(one.dump),
        "matched_sequences": one.matched.sequences,
        "compared_rows": one.matched.rows,
        "unmatched": one.matched.unmatched,
    }


def _another_width(dump: Dump, reference: States) -> Comparison:
    """The finding beside which nothing else can be compared."""
    width, hidden = dump.hidden, reference.provenance.hidden_size
    rest = f"{width // hidden} slots of it joined" if width % hidden == 0 else "no multiple of it"
    finding = made(
        "S107",
        f"{dump.path} holds states of {width} numbers; a slot of this target has {hidden}, and "
        f"{width} is {rest}",
        str(width),
        f"{hidden} for each slot",
    )
    why = NotEvaluated("every slot", "their width is not the target's")
    return Comparison((), (), (finding,), (), (why,), {"reference": str(reference.path)})


def open_served(path: Path, options: Options, reference: States, progress: Progress) -> Dump:
    """Open a dump whose concatenations are split by the reference's hidden size.

    A dump of plain rows whose width is no multiple of it comes back as one slot of that width.

    Raises:
        InputError: it cannot be read at all.
    """
    hidden = reference.provenance.hidden_size
    try:
        return open_dump(path, replace(options, hidden=hidden, ragged=True), progress)
    except InputError as error:
        try:
            single = open_dump(path, replace(options, hidden=1, ragged=True))
        except InputError:
            raise error from None
        width = len(single.slots) * single.hidden
        if single.hidden != 1 or width % hidden == 0:
            raise
        return replace(single, hidden=width)
