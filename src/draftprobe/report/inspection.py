"""An Inspection as lines for a terminal: what is wrong first, then what the drafter is.

At most 100 columns, except for a diff. Knows the record, no check.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from draftprobe.drafter.wiring import tap_name, taps_name

if TYPE_CHECKING:
    from draftprobe.diagnose.checks.inspection import Inspection
    from draftprobe.dialects.reading import Effect, Reading

LABEL = 9
WIDTH = 100


def render(found: Inspection) -> Iterator[str]:
    """Lines without markup; the first one says what matters."""
    yield from _line(*_headline(found))
    for finding in found.findings:
        yield from _line(finding.id, finding.title)
        yield from _line("", finding.evidence)
    yield from _drafter(found)
    yield from _readings(found.readings)
    yield from _effects(found.effects)
    for mend in found.mend:
        yield from _line("mend", f"{mend.engine} {mend.version}: {mend.note}")
        yield from (" " * LABEL + line for line in mend.diff.splitlines())
    for entry in found.not_evaluated:
        yield from _line("not run", f"{entry.what}: {entry.why}")
    if found.findings:
        yield f"draftprobe explain {found.findings[0].id}"


def _headline(found: Inspection) -> tuple[str, str]:
    if not found.findings:
        left = len(found.not_evaluated)
        return "CLEAN", (
            f"nothing wrong in the files of this {_kind(found.facts)}; {left} checks not run"
        )
    ids = list(dict.fromkeys(finding.id for finding in found.findings))
    first, more = found.findings[0].title, len(ids) - 1
    told = f"; also {', '.join(ids[1:])}" if more else ""
    return "FINDINGS", f"{first}{told}"


def _kind(facts: dict[str, Any]) -> str:
    family = "" if facts["family"] == "unknown" else f"{facts['family']} "
    return f"{family}drafter ({facts['trainer']})"


def _drafter(found: Inspection) -> Iterator[str]:
    facts = found.facts
    yield from _line("drafter", f"{_kind(facts)}: {facts['trainer_why']}")
    heads = f"{facts['heads']} heads ({facts['kv_heads'] or facts['heads']} of keys)"
    attention = "latent attention (MLA), " if facts["attention"] == "latent" else ""
    layers = f"{facts['layers']} layer{'s' if facts['layers'] != 1 else ''}"
    yield from _line(
        "",
        f"{layers}, {attention}{heads}, hidden {facts['hidden_size']}, MLP "
        f"{facts['intermediate_size']}; {facts['parameters'] / 1e6:,.1f} million parameters, "
        f"{', '.join(facts['dtypes'])}",
    )
    yield from _line(
        "",
        f"fc reads {facts['slots']} taps of {facts['target_hidden_size']}; draft vocabulary "
        f"{facts['draft_vocab_size']} of {facts['vocab_size']}; embedding {facts['embedding']}, "
        f"head {facts['head']}",
    )
    scaling = (facts["rope_scaling"] or {"type": "none"})["type"]
    yield from _line(
        "",
        f"rope theta {_known(facts['rope_theta'])}, scaling {scaling}, "
        f"positions {_known(facts['max_position_embeddings'])}",
    )
    if found.coverage is not None:
        yield from _line("", f"the draft vocabulary covers {found.coverage:.3f} of the counts")
    if found.wiring is not None:
        w = found.wiring
        yield from _line(
            "meant",
            f"norm before fc: {w.pre_fc_norm}; residual {w.residual}; fed back {w.feedback}; "
            f"norm before the head: {'yes' if w.head_norm else 'no'}; vocabulary {w.vocabulary}",
        )
    yield from _ids(facts)
    for name, alike in found.alike.items():
        if not isinstance(alike, str):
            told = f"{alike.equal} of {alike.rows} rows equal the target's, mean cosine "
            yield from _line("tables", f"{name}: {told}{alike.cosine:.3f}")
    if found.target is not None:
        t = found.target
        sizes = f"{t.layers} layers, hidden {t.hidden}, vocabulary {t.vocabulary}"
        yield from _line("target", f"{t.family}, {sizes}; {t.where}")


def _known(value: float | None) -> str:
    return "not given" if value is None else f"{value:g}"


def _ids(facts: dict[str, Any]) -> Iterator[str]:
    if not facts["claims"]:
        yield from _line("ids", "no layer ids in the config: every engine takes its default")
    for claim in facts["claims"]:
        read = [
            f"{taps_name(claim[key])} as {what}"
            for key, what in (("as_boundary", "boundaries"), ("as_output", "outputs of layers"))
            if claim[key] is not None
        ]
        told = f"{claim['key']} {list(claim['ids'])}: {' or '.join(read) or 'no layers of it'}"
        meant = "" if claim["meant"] is None else f"; meant {taps_name(claim['meant'])}"
        yield from _line("ids", f"{told}{meant}: {claim['why']}")


def _readings(readings: Sequence[Reading]) -> Iterator[str]:
    """A table of what arrives at which slot, and below it where each rule comes from."""
    if not readings:
        return
    most = max(len(reading.taps or (None,)) for reading in readings)
    rows = [("engine", *(f"slot {n}" for n in range(most)), "ids from", "how", "rule")]
    rules: list[str] = []
    problems: list[str] = []
    for reading in readings:
        rule = "-" if reading.rule is None else _number(rules, str(reading.rule))
        taps = [tap_name(tap) for tap in reading.taps or ()]
        if reading.taps is None:
            taps = [_number(problems, reading.problem, "!")]
        taps += [""] * (most - len(taps))
        who = " ".join(p for p in (reading.engine, reading.version, reading.variant) if p)
        how = "-" if reading.rule is None else reading.rule.how
        rows.append((who, *taps, reading.found, how, rule))
    yield from _table(rows)
    yield from (line for n, text in enumerate(problems, 1) for line in _line(f"  !{n}", text))
    yield from (line for n, text in enumerate(rules, 1) for line in _line(f"  [{n}]", text))


def _number(known: list[str], text: str, mark: str = "") -> str:
    if text not in known:
        known.append(text)
    index = known.index(text) + 1
    return f"{mark}{index}" if mark else f"[{index}]"


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
        yield from _line(
            "", f"{did} {', '.join(subjects[:3])}{more}: {text} ({rule.source}; {rule.how})"
        )


def _line(label: str, text: str) -> list[str]:
    """A labelled line, wrapped; words are never cut."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{label:{LABEL - 1}} ",
        subsequent_indent=" " * LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [label]
