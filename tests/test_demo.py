"""The story on the real model, and the walk along its text against real decoding.

These tests fetch the demo's target once (93 MB) and convert it into the cache.
"""

import json
import os
import subprocess
import sys

import pytest

from draftprobe.demo import story
from draftprobe.demo.prompts import prompts
from draftprobe.demo.target import prepare
from draftprobe.diagnose.taps import taps_finding
from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter import golden
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import load_drafter
from draftprobe.measure.acceptance import walk
from draftprobe.measure.decode import compare
from draftprobe.measure.replay import observe
from draftprobe.states.capture import Plan, capture
from draftprobe.states.record import open_states
from draftprobe.states.target import embedding_table, load_target

SHIPPED_BYTES = 16_000_000
PROMPTS, NEW, STEPS = 16, 32, 5


def draftprobe(*arguments):
    command = [sys.executable, "-c", "from draftprobe.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1200)


@pytest.fixture(scope="module")
def folder():
    return prepare(print)


@pytest.fixture(scope="module")
def told(folder):
    result = draftprobe("demo", "--json")
    assert result.returncode == 0, result.stderr
    assert "demo: capturing" in result.stderr
    return json.loads(result.stdout)


def test_prepare_prints_the_folder_last(folder):
    result = draftprobe("demo", "--prepare")
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == str(folder)
    assert os.path.isfile(folder / "config.json")


def test_the_verdict_is_wiring_with_both_lists_and_accuracies(told):
    assert told["schema_version"] == 1
    assert told["verdict"] == "wiring"
    assert told["wanted"] == [0, 3, 16]
    assert told["served"] == [3, 16, 28]
    assert "h[0], h[3], h[16]" in told["headline"]
    assert "h[3], h[16], h[28]" in told["headline"]
    (finding,) = told["findings"]
    assert finding["id"] == "W103"
    assert finding["severity"]["low"] > 0.2
    right, wrong = told["replay"]
    assert right["steps"][0]["top1"] > 0.4 > 0.2 > wrong["steps"][0]["top1"]
    assert right["steps"][0]["n"] == wrong["steps"][0]["n"] > 1000
    assert right["acceptance"]["exact"] is True


def test_the_proof_leaves_the_text_unharmed(told):
    decode = told["decode"]
    assert decode["same_text"] is True
    assert decode["n"] >= 8
    for name in ("plain", "right", "wrong"):
        assert decode[name]["prompts"] == decode["n"]
        assert decode[name]["emitted"] == decode["plain"]["emitted"]
        assert decode[name]["tokens_per_s"] > 0
    assert decode["plain"]["acceptance_length"] == 1.0
    assert decode["right"]["acceptance_length"] > 1.4
    assert decode["wrong"]["acceptance_length"] < 1.25
    assert decode["right"]["drafted"] == STEPS * decode["right"]["rounds"]


@pytest.fixture(scope="module")
def walked(folder, tmp_path_factory):
    """The shipped drafter on 16 held-out prompts: decoded, and replayed on states of batch 1."""
    work = tmp_path_factory.mktemp("walk")
    target = load_target(folder)
    kinds = ("chat", "code", "extraction")
    chosen = [prompts(kind, "held_out")[32 + i] for i in range(6) for kind in kinds][:PROMPTS]
    items = story.items_of(chosen, target, work)
    wiring = golden.read(story.DRAFTER).wiring
    plan = Plan(wiring.taps, "float32", batch=1, greedy=NEW)
    capture(target, items, plan, work / "s.safetensors")
    states = open_states(work / "s.safetensors")
    checkpoint = open_checkpoint(story.DRAFTER)
    drafter = load_drafter(checkpoint, wiring_of(checkpoint, wiring.taps), embedding_table(folder))
    compared = compare(target, [i.tokens for i in items], {"drafter": drafter}, STEPS, NEW)
    return items, states, drafter, compared


def test_speculative_text_is_plain_text(walked):
    compared = walked[3]
    # A parting is allowed only where two tokens are nearer than a wider pass moves their gap.
    noise = compared.noise("drafter")
    assert noise < 1e-3
    for parting in compared.partings("drafter"):
        assert min(parting.plain_gap, parting.speculative_gap) < noise, parting


def test_the_walk_is_the_decode_round_by_round(walked):
    items, states, drafter, compared = walked
    steps = walk(observe(drafter, states, STEPS))
    rounds = dict(zip(steps.sequences, steps.rounds, strict=True))
    decoded = compared.drafted["drafter"].texts
    parted = {p.prompt for p in compared.partings("drafter")}
    checked = 0
    start = 0
    for index, (item, text) in enumerate(zip(items, decoded, strict=True)):
        recorded = states.tokens[start : start + states.lengths[index]].tolist()
        start += states.lengths[index]
        if index in parted or recorded != [*item.tokens, *text.tokens]:
            continue  # a tie fell the other way; the test above bounds how near it must be
        assert rounds.get(index, 0) == text.rounds, f"prompt {index}"
        checked += 1
    assert checked >= PROMPTS - 1


def test_what_is_shipped_is_small_and_carries_its_test():
    assert (story.DRAFTER / "model.safetensors").stat().st_size < SHIPPED_BYTES
    assert (story.DRAFTER / golden.NAME).stat().st_size < 1_000_000
    assert draftprobe("selftest", str(story.DRAFTER)).returncode == 0


@pytest.mark.parametrize(
    ("served", "wanted", "identifier"),
    [
        ((3, 16, 28), (0, 3, 16), "W103"),
        ((0, 3, 16), (3, 16, 28), "W103"),
        ((3, 0, 16), (0, 3, 16), "W102"),
        ((1, 4, 17), (0, 3, 16), "W104"),
        ((2, 15, 27), (3, 16, 28), "W104"),
        ((2, 15, 27), (0, 3, 16), "W101"),
        ((2, 15, "N"), (2, 15, 30), "W101"),
    ],
)
def test_patterns_of_wrong_taps(served, wanted, identifier):
    assert taps_finding(served, wanted)[0] == identifier
