"""The command line's frame: exit codes, what is printed where, and what is not imported."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from draftprobe import cli
from draftprobe.errors import InputError

COMMAND = str(Path(sys.executable).with_name("draftprobe"))


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, **options)


def test_help_loads_no_heavy_package():
    code = (
        "import sys; from draftprobe.cli import app; app(['--help'], standalone_mode=False);"
        "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown, _, loaded = done.stdout.partition("LOADED")
    assert "Usage" in shown
    assert "draftprobe" in loaded.split()
    heavy = {"torch", "transformers", "numpy", "scipy", "safetensors", "huggingface_hub"}
    assert heavy.isdisjoint(loaded.split())


def test_version_is_that_of_the_installed_package():
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"draftprobe {importlib.metadata.version('draftprobe')}\n"


def test_env_names_versions_and_machine(tmp_path):
    facts = json.loads(run("env", "--json", env={"DRAFTPROBE_CACHE": str(tmp_path)}).stdout)
    assert facts["torch"] == importlib.metadata.version("torch")
    assert facts["cache"] == str(tmp_path)
    assert facts["demo_target"] is None
    assert facts["cpus"] >= facts["threads"] >= 1


def test_env_prints_the_same_facts_as_its_json():
    facts, text = json.loads(run("env", "--json").stdout), run("env").stdout
    assert [line.split()[0] for line in text.splitlines()] == list(facts)
    assert re.search(rf"^torch +{re.escape(facts['torch'])}$", text, re.MULTILINE)


def test_unknown_command_is_bad_input():
    done = run("frobnicate")
    assert (done.returncode, done.stdout) == (2, "")
    assert "frobnicate" in done.stderr


@pytest.fixture
def failing(monkeypatch):
    """Let `draftprobe env` raise an exception; gives the exit code."""

    def end_with(error: BaseException) -> int:
        def fail():
            raise error

        monkeypatch.setattr("draftprobe.cli.env._python", fail)
        monkeypatch.setattr(sys, "argv", ["draftprobe", "env"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code

    return end_with


def test_bad_input_is_one_line(failing, capsys):
    assert failing(InputError("model.safetensors: expected 8 bytes,\nfound 3")) == 2
    assert capsys.readouterr() == ("", "error: model.safetensors: expected 8 bytes, found 3\n")


def test_internal_error_keeps_its_traceback_in_a_file(failing, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert failing(ZeroDivisionError("by nought")) == 4
    [kept] = tmp_path.iterdir()
    assert "Traceback" in kept.read_text()
    assert capsys.readouterr() == (
        "",
        f"internal error: ZeroDivisionError: by nought; the traceback lies in {kept}\n",
    )


def test_interrupt_is_one_line(failing, capsys):
    assert failing(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


def test_a_reader_that_goes_away_is_no_error(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # the last flush is what meets the gap
    process = subprocess.Popen(
        [COMMAND, "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0
