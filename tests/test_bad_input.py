"""Bad input ends with one line on stderr, exit code 2, no traceback and nothing written."""

import json
import os
import pickle
import subprocess
import sys

import pytest
import tiny
import tiny_targets
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from draftprobe.drafter.golden import NAME


class _Evil:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.fixture
def world(tmp_path):
    """A good drafter, its states, its target's table: every command below works on them."""
    made = tiny.drafter()
    tiny.planted_states(tmp_path / "states.safetensors", made)
    tiny.save_drafter(tmp_path / "draft", made)
    tiny.save_target(tmp_path / "target", made.embedding)
    return tmp_path


def run(world, *arguments):
    command = [sys.executable, "-c", "from draftprobe.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=world, capture_output=True, text=True, timeout=300)


def replay(world, draft="draft", states="states.safetensors", taps="0,2,N"):
    return run(world, "replay", draft, "--states", states, "--taps", taps, "--target", "target")


def listing(world):
    return sorted(os.path.join(d, f) for d, _, files in os.walk(world) for f in files)


def refused(world, result, *words):
    assert result.returncode == 2, result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_the_good_case_is_good(world):
    result = replay(world)
    assert result.returncode == 0, result.stderr


def _missing_folder(world):
    return replay(world, draft="nowhere"), ["nowhere", "expected a checkpoint folder"]


def _another_target(world):
    path = world / "target" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 77}))
    return replay(world), ["num_hidden_layers 77", "captured from"]


def _truncated(world):
    path = world / "draft" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return replay(world), ["model.safetensors", "truncated"]


def _truncated_states(world):
    path = world / "states.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return replay(world), ["states.safetensors", "truncated"]


def _pickle(world):
    data = pickle.dumps(_Evil(str(world / "owned")))
    (world / "draft" / "model.safetensors").write_bytes(data)
    return replay(world), ["model.safetensors", "a pickle is never loaded"]


def _other_hidden_size(world):
    generator = torch.Generator().manual_seed(0)
    h = {tap: torch.randn(9, 8, generator=generator) for tap in tiny.TAPS}
    text = (torch.arange(10), torch.ones(10, dtype=torch.bool), h)
    tiny.save_states(world / "other.safetensors", [text], hidden_size=8)
    return replay(world, states="other.safetensors"), ["other.safetensors", "hidden size 16"]


def _taps_out_of_range(world):
    return replay(world, taps="0,2,99"), ["h[99]"]


def _taps_malformed(world):
    return replay(world, taps="0,2,-1"), ["'-1'"]


def _nan_states(world):
    generator = torch.Generator().manual_seed(0)
    h = {tap: torch.randn(9, 16, generator=generator) for tap in tiny.TAPS}
    h[2][3, 4] = torch.nan
    text = (torch.arange(10), torch.ones(10, dtype=torch.bool), h)
    tiny.save_states(world / "nan.safetensors", [text])
    return replay(world, states="nan.safetensors"), ["nan.safetensors", "h[2]", "NaN"]


def _empty_prompts(world):
    (world / "prompts.txt").write_text("\n \n")
    tiny_targets.build("llama").save_pretrained(world / "chat")
    words = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(world / "chat")
    command = ["capture", "chat", "--prompts", "prompts.txt", "--out", "out.safetensors"]
    return run(world, *command), ["prompts.txt", "empty"]


def _other_vocabulary(world):
    config = json.loads((world / "draft" / "config.json").read_text()) | {"vocab_size": 41}
    (world / "draft" / "config.json").write_text(json.dumps(config))
    return replay(world), ["41"]


def _crafted_index(world):
    (world / "secret.safetensors").write_bytes((world / "states.safetensors").read_bytes())
    index = {"weight_map": {"fc.weight": "../secret.safetensors"}}
    (world / "draft" / "model.safetensors.index.json").write_text(json.dumps(index))
    return replay(world), ["index.json", "inside"]


def _golden_missing(world):
    result = run(world, "selftest", "draft")
    return result, [NAME, "--taps"]


CASES = [
    _missing_folder, _another_target, _truncated, _truncated_states, _pickle, _other_hidden_size,
    _taps_out_of_range, _taps_malformed, _nan_states, _empty_prompts, _other_vocabulary,
    _crafted_index, _golden_missing,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__[1:])
def test_bad_input(world, case):
    result, words = case(world)
    before = listing(world)
    refused(world, result, *words)
    assert not (world / "owned").exists()
    assert not [f for f in before if f.endswith((".partial", ".parts", "out.safetensors"))]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--rate", "nan"), ("--rate", "-1"), ("--clip", "inf"), ("--decay", "0"), ("--seed", "-1")],
)
def test_odd_numbers_of_a_training_run(world, option, value):
    given = ("--target", "target", "--states", "states.safetensors", "--taps", "0,2")
    result = run(world, "train", *given, "--out", "new", f"{option}={value}")
    assert result.returncode == 2
    assert option in result.stderr
    assert "Traceback" not in result.stderr
    assert not (world / "new").exists()


def test_a_plan_prints_the_cost_and_does_nothing(world):
    given = ("draft", "--states", "states.safetensors", "--target", "target")
    before = listing(world)
    result = run(world, "diagnose", *given, "--plan", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["stages"]
    result = run(world, "diagnose", *given, "--plan", "--out", "new")
    assert "at least" in result.stdout
    assert listing(world) == before
