"""The short form of benchmarks/fault_matrix.py: one good drafter of the test world, some cuts."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from fault_matrix import (  # noqa: E402
    faults,
    main,
    open_case,
    pairs,
    per_wire,
    run,
    summary,
    tap_faults,
)
from world import make  # noqa: E402

CUTS = {
    "half_order": "hidden_first", "feedback": "post_norm", "token_advance": "0",
    "state_shift": "-1", "rope.style": "interleaved", "vocabulary": "absolute",
}  # fmt: skip
HARMLESS = {"position_start": "1"}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """DRAFT:STATES:TARGET of the world's first drafter, states captured here."""
    work = tmp_path_factory.mktemp("world")
    states = make.states("llama", (80, 30_000_001), "short", work)
    return f"{ROOT / 'tests/world/l2_5_7'}:{states}:{ROOT / 'tests/world/llama'}"


@pytest.fixture(scope="module")
def subject(given):
    return open_case(given)


def cut(subject, wire, value):
    (found,) = [case for case in faults(subject) if case[0] == {wire: value}]
    return found


@pytest.mark.parametrize("wire", CUTS)
def test_a_cut_wire_is_named(wire, subject):
    planted, served = cut(subject, wire, CUTS[wire])
    case = run(subject, served, "single", planted, 0)
    assert case.severity > 0.05
    assert (case.verdict, case.named, case.outcome) == ("wiring", (wire,), "exact")


@pytest.mark.parametrize("wire", HARMLESS)
def test_what_costs_nothing_is_not_accused(wire, subject):
    planted, served = cut(subject, wire, HARMLESS[wire])
    case = run(subject, served, "single", planted, 0)
    assert abs(case.severity) < 0.01
    assert case.named == ()


def test_taps_one_layer_late_are_named(subject):
    words, served = next(iter(tap_faults(subject)))
    case = run(subject, served, "single", {"taps": words}, 1)
    assert case.named == ("taps",)
    assert case.outcome in ("exact", "tied")


def test_two_cuts_are_both_named(subject):
    (planted, served), *_ = pairs(subject, 1)
    case = run(subject, served, "pair", planted, 0)
    assert case.outcome in ("exact", "tied"), case


def test_healthy_twins_are_never_accused_and_the_counts_say_so(subject):
    done = [run(subject, subject.truth, "healthy", {}, seed) for seed in range(3)]
    planted, served = cut(subject, "feedback", "post_norm")
    done.append(run(subject, served, "single", planted, 0))
    counts = summary(done)
    assert counts["healthy"] == 3
    assert counts["false_alarms"] == 0
    assert counts["called_healthy"] == 3
    assert (counts["single"], counts["exact"], counts["wrong"]) == (1, 1, 0)
    assert per_wire(done)["feedback"]["harmful"] == {"exact": 1}


def test_what_an_outcome_is_called(subject):
    """The labels themselves: another wire accused is wrong, one of two is partly."""
    planted, served = cut(subject, "feedback", "post_norm")
    assert run(subject, served, "single", {"token_shift": "0"}, 0).outcome == "wrong"
    both = planted | {"token_shift": "0"}
    assert run(subject, served, "pair", both, 0).outcome == "partly"
    assert run(subject, served, "healthy", {}, 0).outcome == "false alarm"


def test_the_command_prints_its_counts(given, monkeypatch, capsys):
    options = ["--short", "--faults", "1", "--healthy", "0", "--pairs", "0", "--json"]
    monkeypatch.setattr(sys, "argv", ["fault_matrix.py", given, *options])
    main()
    out = json.loads(capsys.readouterr().out)
    assert out["summary"]["false_alarms"] == 0
    assert out["summary"]["wrong"] == 0
    assert len(out["cases"]) == out["summary"]["single"] >= 1
