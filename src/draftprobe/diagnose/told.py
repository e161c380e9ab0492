"""What a verdict says: headline, findings, and what was not judged, in sentences with numbers.

Knows evidence and the word it was judged to; judges nothing.
"""

from __future__ import annotations

from draftprobe.diagnose.claims import accuracy_met, beats
from draftprobe.diagnose.evidence import Evidence
from draftprobe.diagnose.taps import taps_finding
from draftprobe.diagnose.verdict import Finding, Kind, NotEvaluated
from draftprobe.diagnose.wire_evidence import WireEvidence
from draftprobe.drafter.wiring import Tap, taps_name
from draftprobe.measure.interval import Estimate
from draftprobe.measure.summary import Paired


def headline(kind: Kind, evidence: Evidence) -> str:
    """The first line that people read, without the verdict's name."""
    best, fed = evidence.best.steps[0].top1, evidence.fed
    text = f"the weights want {taps_name(evidence.wanted)}"
    if evidence.missing:
        text = f"of the {evidence.recorded} boundaries recorded {text}"
    text += f": next token {best.value:.3f}"
    if evidence.served is None:
        text += "; what the server feeds is not known"
    elif fed:
        same = "cannot be told apart, " if evidence.served_tied else ""
        text += f"; served {taps_name(evidence.served)}: {same}{fed.steps[0].top1.value:.3f}"
    if kind == "undecided":
        return f"{_why_undecided(evidence)}; so far {text}"
    if evidence.cut and kind in ("wiring", "several"):
        text = "; ".join(map(_cut, evidence.cut)) + f"; {text}"
    elif kind == "wiring" and not (evidence.served_tied is False and evidence.worse):
        return f"another wire remains, or the engine: {_off(evidence)}; {text}"
    if kind in ("quality", "several"):
        text += f"; claimed {evidence.claims.accuracy:.3f} is not reached under any wiring"
    return text


def _why_undecided(evidence: Evidence) -> str:
    if evidence.over_guess.low is None:
        return evidence.undecided or "one sequence has no interval: record at least 16 sequences"
    if not beats(evidence.over_guess):
        guess = evidence.over_guess
        return (
            "under its best wiring the drafter does not beat guessing the most frequent token "
            f"({guess.value:+.3f}, {guess.low:+.3f} to {guess.high:+.3f}), so no wire can be judged"
        )
    if evidence.served is None:
        return "no served wiring to judge (give --served or --engine)"
    if evidence.place == "above" and evidence.served_tied is False:
        fed = taps_name(evidence.served or ())
        return f"the server does not feed {fed}, or drafts otherwise: {_off(evidence)}"
    if evidence.served_tied is False:
        return "the served wiring is another one, but no loss was measured"
    if evidence.missing:
        return (
            f"{evidence.missing} boundaries of the target were not recorded, and any may be "
            "wanted: capture with --boundaries all"
        )
    if evidence.unclear:
        return "; ".join(map(_unclear, evidence.unclear))
    return evidence.undecided or "the tie set is too wide to call the served wiring right"


def _off(evidence: Evidence) -> str:
    walk = (evidence.fed or evidence.best).acceptance
    return (
        f"the walk predicts {walk.value:.2f} ({walk.low:.2f} to {walk.high:.2f}) tokens per pass, "
        f"served {evidence.claims.acceptance:.2f}"
    )


def findings(evidence: Evidence) -> list[Finding]:
    """What is wrong: taps, other wires, quality, the engine."""
    found: list[Finding] = []
    if evidence.served_tied is False and evidence.served and evidence.difference:
        found.append(_taps_finding(evidence, evidence.served, evidence.difference))
    if evidence.place != "above":
        found += [_wire_finding(wire, evidence.losses.get(wire.wire)) for wire in evidence.cut]
    if not evidence.missing and accuracy_met(evidence.claims.accuracy, evidence.best) is False:
        found.append(_quality_finding(evidence))
    if evidence.place == "above" and evidence.served_tied is False:
        found.append(
            Finding(
                id="E102",
                title="the server accepts more than the served taps allow",
                wire=None,
                severity=None,
                served=f"{evidence.claims.acceptance:.2f}",
                wanted=None,
                evidence=_off(evidence)
                + ": it feeds other taps, or drafts a tree, or the text is not comparable",
            )
        )
    if evidence.place == "below" and beats(evidence.over_guess):
        found.append(
            Finding(
                id="E101",
                title="the server accepts less than its own wiring allows",
                wire=None,
                severity=None,
                served=f"{evidence.claims.acceptance:.2f}",
                wanted=f"{(evidence.fed or evidence.best).acceptance.value:.2f}",
                evidence=_off(evidence)
                + ": another wire than the taps is cut, or the engine's state is wrong",
            )
        )
    return found


def _cut(wire: WireEvidence) -> str:
    return f"{wire.wire} is served as {wire.served}, the weights want {_wants(wire)}"


def _wants(wire: WireEvidence) -> str:
    """The wanted value, and those that cannot be told from it."""
    tied = (value.value for value in wire.tied if value.value != wire.served)
    return " or ".join((wire.wanted, *tied))


def _unclear(wire: WireEvidence) -> str:
    text = f"{_cut(wire)}, perhaps"
    if wire.rivals:
        return f"{text}: {' or '.join(wire.rivals[:3])} would explain the text as well"
    return f"{text}; about {wire.needed:,} tokens would decide" if wire.needed else text


def _wire_finding(wire: WireEvidence, loss: Estimate | None) -> Finding:
    gain = wire.gain
    told = _signed(gain, 2) if gain else "not measured"
    n, clusters = (gain.n, gain.clusters) if gain else (0, 0)
    return Finding(
        id=wire.finding,
        title=wire.title,
        wire=wire.wire,
        severity=loss or wire.loss,
        served=wire.served,
        wanted=_wants(wire),
        evidence=(
            f"{_cut(wire)}: log-likelihood {told} nats per chain of drafts, paired on {n:,} "
            f"chains of {clusters} sequences"
        ),
    )


def _taps_finding(evidence: Evidence, served: tuple[Tap, ...], gain: Paired) -> Finding:
    identifier, title = taps_finding(served, evidence.wanted)
    accuracy, likelihood = gain.accuracy[0], gain.log_likelihood[0]
    return Finding(
        id=identifier,
        title=title,
        wire="taps",
        severity=gain.acceptance,
        served=taps_name(served),
        wanted=taps_name(evidence.wanted),
        evidence=(
            f"paired on the same {accuracy.n:,} tokens of {accuracy.clusters} sequences: "
            f"next token {_signed(accuracy, 3)}, log-likelihood {_signed(likelihood, 2)} nats"
        ),
    )


def _quality_finding(evidence: Evidence) -> Finding:
    top = evidence.best.steps[0].top1
    return Finding(
        id="Q101",
        title="training's accuracy is not reached under any wiring",
        wire=None,
        severity=None,
        served=None,
        wanted=f"{evidence.claims.accuracy:.3f}",
        evidence=(
            f"next token {top.value:.3f} (at most {top.high:.3f}) under the best wiring, claimed "
            f"{evidence.claims.accuracy:.3f}; the draft vocabulary holds "
            f"{evidence.best.coverage.value:.3f} of this text's tokens"
        ),
    )


def _signed(estimate: Estimate, digits: int) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "not measured"
    return (
        f"{estimate.value:+.{digits}f} ({estimate.low:+.{digits}f} to {estimate.high:+.{digits}f})"
    )


def unjudged(evidence: Evidence) -> list[NotEvaluated]:
    """What was not judged, and why."""
    out = []
    if evidence.served is None:
        out.append(NotEvaluated("served wiring", "give --served or --engine"))
    if evidence.joint is None:
        out.append(NotEvaluated("other wires", "too little counted text to replay them"))
    if evidence.claims.accuracy is None:
        out.append(NotEvaluated("quality", "no claim to hold it to (--claimed-accuracy)"))
    if evidence.claims.acceptance is None:
        out.append(NotEvaluated("served acceptance", "not given (--served-acceptance)"))
    elif not (evidence.fed or evidence.best).exact:
        why = "the text is not the target's own greedy text, so the walk is an estimate"
        out.append(NotEvaluated("served acceptance", why))
    return out
