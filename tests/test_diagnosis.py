"""The table of cases: from evidence to verdict, each row written by hand."""

from dataclasses import replace

import pytest

from draftprobe.diagnose.claims import Claims, parse_claims
from draftprobe.diagnose.diagnosis import Evidence, _findings, _headline, judge, verdict_of
from draftprobe.diagnose.slots import SlotEvidence, confidence
from draftprobe.errors import InputError
from draftprobe.measure.acceptance import Walk
from draftprobe.measure.interval import Estimate
from draftprobe.measure.summary import Paired, Step, Summary

WANTED, SERVED = (0, 3, 16), (3, 16, 28)


def about(value, half=0.02):
    return Estimate(value, value - half, value + half, 2000, 48)


def summary(top1, length, source="greedy"):
    step = Step(1, about(top1), about(top1), about(top1), about(2.0))
    steps = Walk(5, (0,), (10,), (15,), (5,))
    return Summary("x", (step,), (), about(0.95), about(length, 0.1), steps, source, 2000, 48)


def slots(*pairs):
    return tuple(
        SlotEvidence(i, replay, weights, None if weights else "null not exceeded")
        for i, (replay, weights) in enumerate(pairs)
    )


SURE = slots(((0, 1, 2, 3, 4), (0,)), ((3,), (3,)), ((16, 17), (16,)))
GAIN = Paired((about(0.3),), (about(5.0),), about(0.4))
NO_GAIN = Paired((about(0.0),), (about(0.0),), about(0.0))
LOSS = Paired((about(-0.3),), (about(-5.0),), about(-0.4))


def evidence(**changes):
    """Wired wrong as in the founding case; ``changes`` make the other cases."""
    base = Evidence(
        slots=SURE,
        wanted=WANTED,
        served=SERVED,
        best=summary(0.5, 1.6),
        fed=summary(0.1, 1.1),
        difference=GAIN,
        over_guess=about(0.4),
        undecided=None,
        spread=about(0.0, 0.01),
        claims=Claims(),
    )
    return replace(base, **changes)


RIGHT = {"served": WANTED, "fed": summary(0.5, 1.6), "difference": NO_GAIN}
TIED = {"served": (0, 3, 16), "fed": summary(0.5, 1.6), "difference": NO_GAIN}
UNKNOWN = {"served": None, "fed": None, "difference": None}
FEW = {"missing": 29, "recorded": 3}
WEAK = {"best": summary(0.05, 1.05), "over_guess": about(0.0)}

CASES = {
    "served otherwise and worse": ({}, "wiring"),
    "served otherwise, claim met": ({"claims": Claims(0.5)}, "wiring"),
    "served otherwise, claim missed too": ({"claims": Claims(0.747)}, "several"),
    "founding claims, served taps allow 1.1": ({"claims": Claims(0.747, 1.8)}, "quality"),
    "founding claims, no served taps": (UNKNOWN | {"claims": Claims(0.747, 1.8)}, "quality"),
    "served more than these taps allow": ({"claims": Claims(0.5, 1.6)}, "undecided"),
    "served what these taps allow": ({"claims": Claims(0.5, 1.1)}, "wiring"),
    "right, served above the walk": (RIGHT | {"claims": Claims(0.5, 1.9)}, "healthy"),
    "right": (RIGHT, "healthy"),
    "right, claim met": (RIGHT | {"claims": Claims(0.51)}, "healthy"),
    "right, both claims met": (RIGHT | {"claims": Claims(0.5, 1.6)}, "healthy"),
    "right, claim missed": (RIGHT | {"claims": Claims(0.747)}, "quality"),
    "right, served below the walk": (RIGHT | {"claims": Claims(0.5, 1.2)}, "wiring"),
    "right, served below the walk, no accuracy": (RIGHT | {"claims": Claims(None, 1.2)}, "wiring"),
    "right, below the walk and claim missed": (RIGHT | {"claims": Claims(0.747, 1.2)}, "quality"),
    "right, below an estimate only": (
        RIGHT
        | {"fed": summary(0.5, 1.6, "dataset"), "best": summary(0.5, 1.6, "dataset")}
        | {"claims": Claims(0.5, 1.2)},
        "healthy",
    ),
    "served unknown": (UNKNOWN, "undecided"),
    "served unknown, claim met": (UNKNOWN | {"claims": Claims(0.5)}, "undecided"),
    "served unknown, claim missed": (UNKNOWN | {"claims": Claims(0.747)}, "quality"),
    "served unknown, below the walk": (UNKNOWN | {"claims": Claims(0.5, 1.2)}, "wiring"),
    "weak, no claim": (WEAK, "undecided"),
    "weak, claim": (WEAK | {"claims": Claims(0.45)}, "quality"),
    "weak, wired right": (WEAK | RIGHT, "undecided"),
    "weak, right, below the walk": (WEAK | RIGHT | {"claims": Claims(None, 1.0)}, "undecided"),
    "other taps, nothing lost": ({"difference": NO_GAIN}, "undecided"),
    "other taps, and better": ({"difference": LOSS}, "undecided"),
    "one sequence": ({"over_guess": Estimate(0.4, None, None, 32, 1)}, "undecided"),
    "right, but the tie set is wide": (
        RIGHT
        | {"slots": slots(((0, 1, 2, 3, 4), ()), ((3,), (3,)), ((16,), (16,)))}
        | {"spread": about(0.1, 0.1)},
        "undecided",
    ),
    "right, a wide tie set that costs nothing": (
        RIGHT | {"slots": slots(((0, 1, 2, 3, 4), ()), ((3,), (3,)), ((16,), (16,)))},
        "healthy",
    ),
    "right among few boundaries": (RIGHT | FEW, "undecided"),
    "right among few, claim missed": (RIGHT | FEW | {"claims": Claims(0.747)}, "undecided"),
    "served otherwise, few boundaries": (FEW | {"claims": Claims(0.747)}, "wiring"),
    "a tied wiring is served": (TIED | {"served": (0, 3, 17), "slots": slots(
        ((0,), ()), ((3,), ()), ((16, 17), ()))}, "healthy"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_verdict(name):
    changes, expected = CASES[name]
    case = evidence(**changes)
    assert judge(case) == expected
    assert _headline(judge(case), case)


def test_unrecorded_boundaries_leave_doubt():
    told = verdict_of(evidence(**FEW), [], {})
    assert (told.verdict, told.confidence, told.provenance["proved"]) == ("wiring", "low", False)
    assert told.headline.startswith("of the 3 boundaries recorded the weights want")
    told = verdict_of(evidence(**RIGHT, **FEW), [], {})
    assert told.headline.startswith("29 boundaries of the target were not recorded")


def test_findings_name_what_is_wrong():
    found = {f.id for f in _findings(evidence(claims=Claims(0.747, 1.01)))}
    assert found == {"W103", "Q101"}  # 1.01 is what the served wiring's own walk allows, 1.0..1.2
    found = {f.id for f in _findings(evidence(claims=Claims(0.5, 0.9 + 0.05)))}
    assert found == {"W103", "E101"}
    found = {f.id for f in _findings(evidence(claims=Claims(0.5, 1.8)))}
    assert found == {"W103", "E102"}
    assert _findings(evidence(**RIGHT)) == []
    (remains,) = _findings(evidence(**RIGHT, claims=Claims(None, 1.2)))
    assert remains.id == "E101"
    assert "predicts 1.60" in remains.evidence
    assert "served 1.20" in remains.evidence


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ((((0, 1), (0,)), ((3,), (3,)), ((16,), (16,))), "high"),
        ((((0, 1), (0,)), ((3, 4), (3,)), ((16,), (16,))), "high"),
        ((((0, 1), (0,)), ((3, 4), (3,)), ((16, 17), (16,))), "medium"),  # nowhere both decided
        ((((0, 1), ()), ((3,), (3,)), ((16,), (16,))), "medium"),  # nobody decides slot 0
        ((((0,), ()), ((3,), (3,)), ((16,), ())), "high"),
        ((((0,), (5,)), ((3,), (3,)), ((16,), (16,))), "low"),  # a disagreement
        ((((0,), (0, 1)), ((3,), (3, 4)), ((16,), (16, 17))), "medium"),
    ],
)
def test_confidence(pairs, expected):
    assert confidence(slots(*pairs)) == expected


@pytest.mark.parametrize(
    ("claims", "statuses"),
    [
        (Claims(), []),
        (Claims(0.5), ["met"]),
        (Claims(0.6, 1.0), ["missed", "within"]),
        (Claims(None, 1.8), ["above"]),
        (Claims(None, 0.9), ["below"]),
    ],
)
def test_every_claim_leaves_a_trace(claims, statuses):
    case = evidence(claims=claims)
    told = verdict_of(case, [], {}).claims
    assert [claim.status for claim in told] == statuses


def test_a_disagreement_keeps_what_replay_says():
    (slot,) = slots(((3, 4), (9,)))
    assert slot.disagree
    assert slot.tied == (3, 4)


@pytest.mark.parametrize(
    ("text", "steps", "expected"),
    [
        ("1.8", 5, Claims(None, 1.8)),
        ("1", 5, Claims(None, 1.0)),
        (".36,.02,.01", 5, Claims(None, 1.39, (0.36, 0.02, 0.01))),
        ("0.5", 5, Claims(None, 1.5, (0.5,))),
    ],
)
def test_served_acceptance(text, steps, expected):
    found = parse_claims(None, text, steps)
    assert found.rates == expected.rates
    assert found.acceptance == pytest.approx(expected.acceptance)


@pytest.mark.parametrize("text", ["7", "x", ".2,.3", "-.1", "1.2,.3", ".5,.4,.3,.2,.1,.1", "nan"])
def test_malformed_acceptance(text):
    with pytest.raises(InputError):
        parse_claims(None, text, 5)


@pytest.mark.parametrize("claim", [0.0, 1.2, -1.0, float("nan")])
def test_malformed_accuracy(claim):
    with pytest.raises(InputError):
        parse_claims(claim, None, 5)
