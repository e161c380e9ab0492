"""Engines' own source, to run single functions of it: SGLang's out of its wheels, vLLM's out of an
environment that holds it.

An SGLang wheel is downloaded by pip, opened and removed again; nothing is installed. vLLM's wheel
has 130 MB and pins another torch: ``DRAFTPROBE_VLLM_PYTHON`` names the python of an environment
that has it (see tests/engines), or it stands beside draftprobe.
"""

import ast
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from draftprobe.dialects import sglang

RELEASES = sorted(sglang.EXECUTED)
_LOCATE = (
    "import importlib.util; found = importlib.util.find_spec('vllm'); "
    "print(found.submodule_search_locations[0] if found else '')"
)


def lifted(source, name, **names):
    """The last function ``name`` of a source text."""
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    function = found[-1]
    function.decorator_list, function.returns = [], None
    for argument in (*function.args.args, *function.args.kwonlyargs):
        argument.annotation = None
    scope = dict(names)
    module = ast.fix_missing_locations(ast.Module([function], []))
    exec(compile(module, name, "exec"), scope)  # the tests' own purpose
    return scope[name]


def _download(version, folder):
    """The opened wheel of an SGLang release, or None where it cannot be had."""
    command = [
        *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--retries", "0"),
        *("--only-binary=:all:", "--python-version", "3.12", "-d", str(folder)),
        *("--platform", "manylinux_2_34_x86_64", "--timeout", "10", f"sglang=={version}"),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=90)
        [path] = folder.glob("*.whl")
        return zipfile.ZipFile(path)
    except (subprocess.SubprocessError, ValueError, zipfile.BadZipFile):
        return None


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The source of a file of an SGLang release, by its path under srt; 60 MB in all."""
    folders = [tmp_path_factory.mktemp("wheel") for _ in RELEASES]
    with ThreadPoolExecutor() as pool:
        opened = dict(zip(RELEASES, pool.map(_download, RELEASES, folders), strict=True))

    def source(version, path):
        if opened[version] is None:
            pytest.skip(f"the wheel of sglang {version} cannot be had here")
        return opened[version].read(f"sglang/srt/{path}.py").decode()

    yield source
    for archive in filter(None, opened.values()):
        Path(archive.filename).unlink()


@cache
def _located(python):
    found = subprocess.run([python, "-c", _LOCATE], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def vllm_python():
    """The python of an environment that holds vLLM, and vLLM's folder in it; or a skip."""
    python = os.environ.get("DRAFTPROBE_VLLM_PYTHON", sys.executable)
    found = _located(python)
    if not found:
        pytest.skip(
            "vLLM is not installed here (its wheel has 130 MB and pins another torch); "
            "DRAFTPROBE_VLLM_PYTHON can name the python of an environment that has it"
        )
    return python, Path(found)


def vllm_source(file):
    """The source of a file of vLLM, by its path inside the package."""
    return (vllm_python()[1] / file).read_text()
