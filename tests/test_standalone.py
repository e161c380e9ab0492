"""examples/standalone.py: a second implementation of the test, equal to `draftprobe replay`."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch

from draftprobe.cli.replay import replay

FILE = Path(__file__).parent.parent / "examples" / "standalone.py"
STEPS = 3


@pytest.fixture(scope="module")
def standalone():
    spec = importlib.util.spec_from_file_location("standalone", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def folders(tmp_path, **wires):
    """Draft folder, states with planted texts, a plain one and a chat of two answers, target."""
    made = tiny.drafter(**wires)
    generator = torch.Generator().manual_seed(3)
    texts = []
    for prompt in (2, 3, 4, 5, 3):
        tokens, h, _ = tiny.plant(made, prompt, 20 + 2 * prompt, STEPS, generator)
        texts.append((tokens, torch.arange(len(tokens)) >= prompt, h))
    texts[0][1][:] = True
    texts[-1][1][10:14] = False
    tiny.save_states(tmp_path / "states", texts)
    draft = tiny.save_drafter(tmp_path / "draft", made)
    return draft, tmp_path / "states", tiny.save_target(tmp_path / "target", made.embedding)


def replayed(capsys, draft, states, target, **options):
    taps = ",".join(map(str, options.pop("taps", tiny.TAPS)))
    replay(
        draft, states, target, taps, steps=STEPS, limit=None, device="cpu", as_json=True, **options
    )
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "wires",
    [
        {},
        {"feedback": "post_norm", "pre_fc_norm": "whole"},
        {"residual": "normed", "pre_fc_norm": "per_tap"},
        {"embedding": "own"},
        {"taps": ("N", 0, 2)},
    ],
    ids=str,
)
def test_the_standalone_file_counts_what_replay_counts(tmp_path, capsys, standalone, wires):
    draft, states, target = folders(tmp_path, **wires)
    taps = wires.get("taps", tiny.TAPS)
    n, hits, joint, walked = standalone.main(draft, states, target, taps, STEPS)
    capsys.readouterr()
    found = replayed(capsys, draft, states, target, taps=taps)
    assert [step["n"] for step in found["steps"]] == n
    for name, counts in (("top1", hits), ("joint", joint)):
        shares = [count / total for count, total in zip(counts, n, strict=True)]
        assert [step[name] for step in found["steps"]] == pytest.approx(shares)
        assert min(shares) > 0.05  # planted: not vacuous
    assert (found["acceptance"]["rounds"], found["acceptance"]["emitted"]) == walked
    assert 1.5 < found["expected_acceptance"] == pytest.approx(walked[1] / walked[0])


def test_it_is_one_file_that_runs_alone(tmp_path, capsys):
    draft, states, target = folders(tmp_path)
    source = FILE.read_text()
    assert len(source.splitlines()) < 200
    assert "import draftprobe" not in source
    assert "from draftprobe" not in source
    # -I: no environment, no user site; draftprobe itself is made impossible to import.
    code = (
        "import sys, runpy; sys.modules['draftprobe'] = None; sys.argv = sys.argv[1:];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    arguments = [FILE, draft, states, target, ",".join(map(str, tiny.TAPS)), STEPS]
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, *map(str, arguments)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = replayed(capsys, draft, states, target)
    lines = done.stdout.splitlines()
    assert len(lines) == STEPS + 1
    for line, step in zip(lines, found["steps"], strict=False):
        assert f"right {step['top1']:.3f}, with all before {step['joint']:.3f}" in line
    assert f"acceptance length {found['expected_acceptance']:.3f}" in lines[-1]
