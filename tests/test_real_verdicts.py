"""What `diagnose` says, from the command line, of trained drafters of a real target."""

import json
import re

import pytest
import real
from typer.testing import CliRunner

from draftprobe.cli import app


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    return real.held_out(tmp_path_factory.mktemp("held_out") / "states.safetensors")


def diagnosed(states, *arguments):
    result = CliRunner().invoke(
        app, ["diagnose", "--states", str(states.path), "--json", *map(str, arguments)]
    )
    assert result.exit_code in (0, 1, 3), result.output
    start = result.output.index("{\n")
    return result.exit_code, json.loads(result.output[start : result.output.rindex("}") + 1])


def test_a_momentary_drafter_is_weak_and_never_miswired(states, tmp_path):
    folder = real.DATA / "moment"
    some = real.cut(states, tmp_path / "some.safetensors", sequences=24, counted=20)
    for served in ("0,3,16", "3,16,28"):
        code, verdict = diagnosed(some, folder, "--served", served)
        assert (code, verdict["verdict"]) == (3, "undecided")
    claim = ("--claimed-accuracy", "0.45")
    code, verdict = diagnosed(some, folder, "--served", "3,16,28", *claim)
    assert (code, verdict["verdict"]) == (1, "quality")


def test_a_good_drafter_is_healthy_and_its_neighbour_is_not(states, tmp_path):
    folder = real.DATA / "t3_16_28"
    code, verdict = diagnosed(states, folder, "--served", "3,16,28", "--out", tmp_path / "run")
    assert (code, verdict["verdict"]) == (0, "healthy")
    assert verdict["mend"] == []
    assert json.loads((tmp_path / "run" / "verdict.json").read_text()) == verdict
    code, verdict = diagnosed(states, folder, "--served", "0,3,16")
    assert (code, verdict["verdict"]) == (1, "wiring")
    assert verdict["findings"][0]["id"] == "W103"
    assert {mend["engine"] for mend in verdict["mend"]} == {"sglang", "vllm"}


def test_one_sequence_is_undecided_and_asks_for_sixteen(states, tmp_path):
    one = real.cut(states, tmp_path / "one.safetensors", sequences=1, counted=32)
    code, verdict = diagnosed(one, real.DATA / "t3_16_28", "--served", "3,16,28")
    assert (code, verdict["verdict"]) == (3, "undecided")
    assert "no interval" in verdict["headline"]
    assert "at least 16 sequences" in verdict["headline"]


def test_sixty_four_tokens_are_undecided_and_say_what_would_decide(states, tmp_path):
    few = real.cut(states, tmp_path / "few.safetensors", sequences=16, counted=4)
    code, verdict = diagnosed(few, real.DATA / "t3_16_28", "--served", "3,16,28")
    assert (code, verdict["verdict"]) == (3, "undecided")
    assert re.search(r"about \d+ tokens of \d+ sequences would decide", verdict["headline"])
