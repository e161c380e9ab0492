"""Which files of a folder are the dump: by name families first, then by content; links stay out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from draftprobe.errors import InputError
from draftprobe.states.dumps.container import SUFFIXES

_FAMILIES = (
    re.compile(r"hs_[0-9]+\.safetensors"),
    re.compile(r".+\.ckpt(\.gz)?"),
    re.compile(r".+\.safetensors"),
    re.compile(r".+\.(pt|pth)"),
    re.compile(r".+\.npy"),
    re.compile(r".+\.jsonl"),
    re.compile(r".+\.json"),
)


BESIDE = ".tokens"
"""``NAME.tokens.npy`` holds the token ids of the states in ``NAME.npy``."""


def tokens_beside(path: Path) -> Path | None:
    """The file of token ids that lies beside a file of states; None if none does."""
    for suffix in dict.fromkeys((path.suffix, ".npy")):
        beside = path.with_name(f"{path.stem}{BESIDE}{suffix}")
        if beside.is_file() and not path.stem.endswith(BESIDE):
            return beside
    return None


def _is_beside(path: Path, names: set[Path]) -> bool:
    """Whether a file holds the token ids of another one of the folder."""
    if not path.stem.endswith(BESIDE):
        return False
    stem = path.stem.removesuffix(BESIDE)
    return any(path.with_name(stem + suffix) in names for suffix in (path.suffix, *SUFFIXES))


def families(path: Path) -> Iterator[list[Path]]:
    """The files that may be the dump, family by family, each in natural order.

    Raises:
        InputError: nothing there, or no file with a known suffix.
    """
    if path.is_file():
        yield [path]
        return
    if not path.is_dir():
        raise InputError(f"{path}: expected a file or folder of states, found none; check the path")
    files = [
        Path(root) / name
        for root, folders, names in os.walk(path)
        if not folders.sort()
        for name in names
        if name.endswith(SUFFIXES) and not (Path(root) / name).is_symlink()
    ]
    names = set(files)
    files = [file for file in files if not _is_beside(file, names)]
    if not files:
        raise InputError(f"{path}: expected files named *{', *'.join(SUFFIXES)}, found none")
    for family in _FAMILIES:
        some = [file for file in files if family.fullmatch(file.name)]
        if some:
            yield sorted(some, key=_natural)


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """hs_2 before hs_10, folder by folder."""
    parts = re.split(r"([0-9]+)", str(path))
    return [(1, int(p[:18]), p) if p.isdigit() else (0, 0, p) for p in parts]
