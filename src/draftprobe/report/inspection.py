"""An Inspection as lines for a terminal: each engine's answer first, then what is wrong, and why.

At most 100 columns, except for a diff and for commands. Where rules come from is told only if it is
asked for. Knows the record, no check.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from draftprobe.drafter.wiring import tap_name, taps_name
from draftprobe.report.lines import LABEL, labelled
from draftprobe.report.text import clean

if TYPE_CHECKING:
    from draftprobe.diagnose.checks.answers import Answer
    from draftprobe.diagnose.checks.inspection import Inspection
    from draftprobe.diagnose.verdict import Mend, NotEvaluated
    from draftprobe.dialects.reading import Effect, Reading
    from draftprobe.drafter.wiring import Wiring


_SOURCE = re.compile(r" \([^()]*; (?:executed|read|inferred)\)")
"""Where a rule comes from, as it ends a sentence."""

_WIRES = {
    ("pre_fc_norm", "none"): "no norm in front of fc",
    ("pre_fc_norm", "whole"): "one norm over all that fc reads",
    ("pre_fc_norm", "per_tap"): "a norm for each tap in front of fc",
    ("residual", "raw"): "the layer adds to fc's output as it is",
    ("residual", "normed"): "the layer adds to fc's normed output",
    ("feedback", "pre_norm"): "the next step reads the state before the final norm",
    ("feedback", "post_norm"): "the next step reads the state after the final norm",
    ("head_norm", True): "the head reads normed states",
    ("head_norm", False): "no norm in front of the head",
    ("vocabulary", "offset"): "draft ids are mapped by d2t",
    ("vocabulary", "identity"): "draft ids are the target's",
    ("vocabulary", "absolute"): "d2t holds the target's ids themselves",
}
"""Wire and value in words."""


def render(found: Inspection, verbose: bool = False) -> Iterator[str]:
    """Lines without markup or control characters; the first ones say what matters."""
    for line in _lines(found, verbose):
        yield clean(line if verbose else line.rstrip())


def _lines(found: Inspection, verbose: bool) -> Iterator[str]:
    yield from _answers(found)
    for finding in found.findings:
        yield from labelled(finding.id, finding.title)
        if verbose or not any(
            a.status == "refuses" and a.text in finding.evidence for a in found.answers
        ):
            yield from labelled("", _short(finding.evidence, verbose))
    yield from _readings(found, verbose)
    yield from _drafter(found, verbose)
    if verbose:
        yield from _effects(found.effects)
    yield from _mends(found, verbose)
    yield from _not_run(found.not_evaluated, verbose)
    yield from _next(found)


def _short(text: str, verbose: bool) -> str:
    return text if verbose else _SOURCE.sub("", text)


def _answers(found: Inspection) -> Iterator[str]:
    """What is wrong with the files, whoever serves them; then a line for each engine."""
    told = {identifier for answer in found.answers for identifier in answer.findings} | {"W113"}
    ids = [f for f in found.findings if not found.accused or f.id not in told]
    if ids:
        others = list(dict.fromkeys(f.id for f in ids if f.id != ids[0].id))
        also = f"; also {', '.join(others)}" if others else ""
        yield from labelled("FINDINGS", f"{ids[0].title} ({ids[0].id}){also}")
    elif not found.answers and found.undecided:
        yield from labelled("UNDECIDED"[:LABEL], found.not_evaluated[0].why)
    elif not found.accused:
        yield from labelled("FILES OK", _files_ok(found))
    for answer in found.answers:
        ids_told = f" [{', '.join(answer.findings)}]" if answer.findings else ""
        note = f" ({answer.note})" if answer.note else ""
        verb = ": " if not answer.text.startswith("feeds ") else " "
        text = _SOURCE.sub("", answer.text)
        yield from labelled(answer.status.upper(), f"{answer.name}{note}{verb}{text}{ids_told}")


def _files_ok(found: Inspection) -> str:
    told = [f"nothing wrong in the files of this {_kind(found.facts)}"]
    for status, what in (("refuses", "refuses them"), ("undecided", "is not known")):
        who = [answer.name for answer in found.answers if answer.status == status]
        if who:
            told.append(f"{', '.join(who)} {what}")
    return "; ".join(told)


def _kind(facts: dict[str, Any]) -> str:
    family = "" if facts["family"] == "unknown" else f"{facts['family']} "
    return f"{family}drafter ({facts['trainer']})"


def _drafter(found: Inspection, verbose: bool) -> Iterator[str]:
    facts = found.facts
    yield from labelled("drafter", f"{_kind(facts)}: {facts['trainer_why']}")
    heads = f"{facts['heads']} heads ({facts['kv_heads'] or facts['heads']} of keys)"
    attention = "latent attention (MLA), " if facts["attention"] == "latent" else ""
    layers = f"{facts['layers']} layer{'s' if facts['layers'] != 1 else ''}"
    yield from labelled(
        "",
        f"{layers}, {attention}{heads}, hidden {facts['hidden_size']}, MLP "
        f"{facts['intermediate_size']}; {facts['parameters'] / 1e6:,.1f} million parameters, "
        f"{', '.join(facts['dtypes'])}",
    )
    yield from labelled(
        "",
        f"fc reads {facts['slots']} taps of {facts['target_hidden_size']}; draft vocabulary "
        f"{facts['draft_vocab_size']} of {facts['vocab_size']}; embedding {facts['embedding']}, "
        f"head {facts['head']}",
    )
    scaling = (facts["rope_scaling"] or {"type": "none"})["type"]
    yield from labelled(
        "",
        f"rope theta {_known(facts['rope_theta'])}, scaling {scaling}, "
        f"positions {_known(facts['max_position_embeddings'])}",
    )
    if found.coverage is not None:
        yield from labelled("", f"the draft vocabulary covers {found.coverage:.3f} of the counts")
    if found.wiring is not None:
        yield from labelled("trained", _in_words(found.wiring))
    yield from _ids(facts, verbose)
    for name, alike in found.alike.items():
        if not isinstance(alike, str):
            told = f"{alike.equal} of {alike.rows} rows equal the target's, mean cosine "
            yield from labelled("tables", f"{name}: {told}{alike.cosine:.3f}")
    if found.target is not None:
        t = found.target
        sizes = f"{t.layers} layers, hidden {t.hidden}, vocabulary {t.vocabulary}"
        yield from labelled("target", f"{t.family}, {sizes}; {t.where}")


def _in_words(wiring: Wiring) -> str:
    wires = dict.fromkeys(wire for wire, _ in _WIRES)
    values = [(wire, getattr(wiring, wire)) for wire in wires]
    return "; ".join(_WIRES.get(pair, f"{pair[0]} {pair[1]}") for pair in values)


def _known(value: float | None) -> str:
    if value is None:
        return "not given"
    if isinstance(value, int) and value >= 10**15:
        return f"about 10^{len(str(value)) - 1}"
    return f"{value:g}"


def _ids(facts: dict[str, Any], verbose: bool) -> Iterator[str]:
    if not facts["claims"]:
        yield from labelled("ids", "no layer ids in the config: every engine takes its default")
    for claim in facts["claims"]:
        told = f"{claim['key']} {list(claim['ids'])}"
        if claim["meant"] is not None and not verbose:
            yield from labelled("ids", f"{told}: {taps_name(claim['meant'])}; {claim['why']}")
            continue
        read = [
            f"{taps_name(claim[key])} as {what}"
            for key, what in (("as_boundary", "boundaries"), ("as_output", "outputs of layers"))
            if claim[key] is not None
        ]
        meant = "" if claim["meant"] is None else f"; meant {taps_name(claim['meant'])}"
        told += f": {' or '.join(read) or 'no layers of it'}{meant}"
        yield from labelled("ids", f"{told}; {claim['why']}")


def _readings(found: Inspection, verbose: bool) -> Iterator[str]:
    """A table of what arrives at which slot; on demand, below it where each rule comes from."""
    readings = found.readings
    if not readings:
        return
    refusing = {(a.engine, a.version) for a in found.answers if a.status == "refuses"}
    most = max(len(reading.taps or (None,)) for reading in readings)
    rows = [("engine", *(f"slot {n}" for n in range(most)), "ids from", "how")]
    rules: list[str] = []
    for group in _alike(readings):
        reading = group[0]
        taps = [tap_name(tap) for tap in reading.taps or ()]
        how, place = "-" if reading.rule is None else reading.rule.how, reading.found
        if (reading.engine, reading.version) in refusing:
            taps, how, place = ["refuses"], "-", "-"
        elif reading.taps is None:
            taps = [_NO_TAPS[reading.outcome]]
        taps += [""] * (most - len(taps))
        variants = [r.variant for r in group if r.variant]
        who = " ".join((reading.engine, reading.version, "+".join(variants))).strip()
        if verbose and reading.rule is not None:
            how = f"{how} {_number(rules, str(reading.rule))}"
        rows.append((who, *taps, place, how))
    yield from _table(rows)
    yield from (line for n, text in enumerate(rules, 1) for line in labelled(f"  [{n}]", text))


def _alike(readings: Sequence[Reading]) -> Iterator[list[Reading]]:
    """Runners of one engine that are fed alike, from ids of the same place, stand in one row."""
    groups: dict[tuple[object, ...], list[Reading]] = {}
    for r in readings:
        groups.setdefault((r.engine, r.version, r.taps, r.problem, r.found), []).append(r)
    yield from groups.values()


_NO_TAPS = {"unknown": "unknown", "fails": "fails", "feeds no boundary": "none"}
"""What stands in the table where no boundary arrives; why is told in the first lines."""


def _number(known: list[str], text: str) -> str:
    if text not in known:
        known.append(text)
    return f"[{known.index(text) + 1}]"


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _effects(effects: Sequence[Effect]) -> Iterator[str]:
    """What each engine does, one entry for each text, however many tensors it is about."""
    groups: dict[tuple[str, str, str], list[Effect]] = {}
    for effect in effects:
        groups.setdefault(
            (f"{effect.engine} {effect.version}", effect.did, effect.text), []
        ).append(effect)
    last = ""
    for (who, did, text), group in groups.items():
        if who != last:
            yield f"{who}:"
        last = who
        subjects = list(dict.fromkeys(effect.subject for effect in group))
        more = f" and {len(subjects) - 3} more" if len(subjects) > 3 else ""
        rule = group[0].rule
        yield from labelled(
            "", f"{did} {', '.join(subjects[:3])}{more}: {text} ({rule.source}; {rule.how})"
        )


def _mends(found: Inspection, verbose: bool) -> Iterator[str]:
    """One entry for all engines that the same config serves."""
    groups: dict[str, list[Mend]] = {}
    unjudged = {(a.engine, a.version) for a in found.answers if a.status == "undecided"}
    for n, mend in enumerate(found.mend):
        idle = (mend.engine, mend.version) in unjudged or mend.note.startswith("nothing to change")
        if idle and not mend.diff and found.wanted_by == "config":
            continue
        lines = mend.diff.splitlines()
        groups.setdefault("\n".join([*lines[:1], *lines[2:]]) or str(n), []).append(mend)
    if found.wanted_by == "config" and any(mend.diff for mend in found.mend):
        yield from labelled("mend", "if the config means what it says (no replay has proved it):")
    for group in groups.values():
        for mend in group:
            note = _short(mend.note, verbose)
            note = note if verbose else note.split("; unsafe: not proved by replay")[0]
            yield from labelled("mend", f"{mend.engine} {mend.version}: {note}")
        if len(group) > 1:
            yield from labelled("", "one config for all of these")
        lines = group[0].diff.splitlines()
        yield from (" " * LABEL + line for line in lines if not line.startswith("\\"))


def _not_run(points: Sequence[NotEvaluated], verbose: bool) -> Iterator[str]:
    if verbose:
        for entry in points:
            yield from labelled("not run", f"{entry.what}: {entry.why}")
    elif points:
        needs = [option for option in _OPTIONS if any(option in entry.why for entry in points)]
        told = f"; {', '.join(needs)} would run some" if needs else ""
        count = f"{len(points)} check{'s' * (len(points) != 1)}"
        yield from labelled("not run", f"{count}{told} (--verbose names them)")


_OPTIONS = ("--deep", "--histogram", "--target")


def _next(found: Inspection) -> Iterator[str]:
    """The command to go on with, on one line so that it can be copied."""
    folder = found.facts["folder"]
    bad = [answer for answer in found.answers if answer.status in ("refuses", "wrong")]
    doubt = [answer for answer in found.answers if answer.meant is None and answer.fed]
    if found.target is not None and not found.wanted and (bad or (doubt and found.accused)):
        shown = _ordered(found.answers if found.accused else bad)
        options = [part for who in shown for part in ("--engine", who)]
        command = ["draftprobe", "inspect", folder, "--target", found.target.where, *options]
        yield shlex.join([*command, "--wanted", _candidate(found)] if found.accused else command)
    if found.findings:
        yield f"draftprobe explain {found.findings[0].id}"


def _ordered(answers: Iterable[Answer]) -> list[str]:
    """Engines by name, those whose ids stand in the drafter's config if there are any."""
    names = list(dict.fromkeys(f"{answer.engine}@{answer.version}" for answer in answers))
    by_config = [name for name in names if name.startswith(("sglang", "vllm"))]
    return by_config or names


def _candidate(found: Inspection) -> str:
    """What the ids may mean, to be put after --wanted; the first of several."""
    for claim in found.facts["claims"]:
        for key in ("meant", "as_output", "as_boundary"):
            if claim[key] is not None:
                return ",".join(map(str, claim[key]))
    return "H,H,H"
