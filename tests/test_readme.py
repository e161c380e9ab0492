"""The README's commands, run one after the other as they stand, and its tree against the tree."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_commands(tmp_path):
    (block,) = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    for name in ("src", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    binary = tmp_path / "bin"
    binary.mkdir()
    start = "-c 'from draftprobe.cli import main; main()'"
    for name, code in (("python", ""), ("draftprobe", start)):
        (binary / name).write_text(f'#!/bin/sh\nexec {sys.executable} {code} "$@"\n')
        (binary / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{binary}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", block],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    assert "expected acceptance length" in result.stdout


def test_tree_names_what_is_there():
    listed = set(re.findall(r"^      (\w+)/ ", README, flags=re.MULTILINE))
    package = ROOT / "src" / "draftprobe"
    there = {p.name for p in package.iterdir() if p.is_dir() and not p.name.startswith("_")}
    assert listed == there


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}\b.*:", makefile, flags=re.MULTILINE), target
