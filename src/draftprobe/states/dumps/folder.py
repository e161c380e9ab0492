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
