"""A dump as a States file: n - 1 rows for n tokens, our mask, and where all of it comes from.

Streams: one group of sequences is in memory at a time, and the file is moved into place when whole.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftprobe.dialects.families import text_part
from draftprobe.drafter.checkpoint import read_json
from draftprobe.drafter.wiring import Tap, tap_name
from draftprobe.errors import InputError
from draftprobe.states.dumps import own
from draftprobe.states.dumps.record import Dump, Sequence
from draftprobe.states.record import SOURCES, Provenance, States, merge_parts

if TYPE_CHECKING:
    import torch

COUNTS = ("marked", "trained", "all")
_GROUP = 64 << 20
_STORED = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a States file says of its target: L, H, V, and what it is."""

    layers: int
    hidden: int
    vocabulary: int
    model: str
    model_type: str
    digest: str


def facts_of(target: Path) -> Facts:
    """Facts from a target's folder or its ``config.json``.

    Raises:
        InputError: no such file, or a size is missing from it.
    """
    from draftprobe.states.target import config_digest

    path = target / "config.json" if target.is_dir() else target
    config = text_part(read_json(path))

    def size(key: str) -> int:
        value = config.get(key)
        if type(value) is not int or value < 1:
            raise InputError(f"{path}: expected a size under {key!r}, found {value!r}")
        return value

    return Facts(
        layers=size("num_hidden_layers"),
        hidden=size("hidden_size"),
        vocabulary=size("vocab_size"),
        model=str(path.parent),
        model_type=str(config.get("model_type", "")),
        digest=config_digest(config),
    )


def facts_from(reference: States) -> Facts:
    """The same facts from states that were captured from the target."""
    p = reference.provenance
    return Facts(p.layers, p.hidden_size, p.vocab_size, p.model, p.model_type, p.config_digest)


def counted(one: Sequence, count: str, lag: int | None, where: Any) -> torch.Tensor:
    """Our mask, bool [n], True on tokens whose prediction counts.

    Args:
        one: the sequence.
        count: ``marked``: the tokens that the file marks, which are the answer's own. ``trained``:
            x_t where the file marks x_{t - lag}, as the producer's trainer counts. ``all``: all.
        lag: see ``Layout``.
        where: for messages.

    Raises:
        InputError: there is no mask, or no trainer whose count is known.
    """
    import torch

    if count not in COUNTS:
        raise InputError(f"--mask: expected one of {', '.join(COUNTS)}, found {count!r}")
    if count == "all":
        return torch.ones(len(one.tokens), dtype=torch.bool)
    if one.mask is None:
        raise InputError(
            f"{where}: a sequence has no loss mask, so which tokens count is not known; choose "
            "--mask all, or give the mask's entry (--mask-key) or dataset (--dataset)"
        )
    if count == "marked":
        return one.mask
    if lag is None:
        raise InputError(
            f"{where}: no trainer of this format is known; choose --mask marked or all"
        )
    late = torch.zeros_like(one.mask)
    late[lag:] = one.mask[: max(0, len(late) - lag)]
    return late


def write_states(
    dump: Dump,
    out: Path,
    facts: Facts,
    count: str,
    source: str | None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    compute: str | None = None,
) -> tuple[Tap, ...]:
    """Write the known boundaries of ``dump``; they are returned. Never overwrites.

    Args:
        dump: an open dump.
        out: the new file.
        facts: of the target.
        count: see :func:`counted`.
        source: of the text: a word of ``SOURCES``; None takes the format's, else ``dataset``.
        progress: called with sequences done, of all.
        compute: dtype that the target ran in; None for not known, which no dump says.

    Raises:
        InputError: an aux slot is unknown, the target does not fit, or ``out`` exists.
    """
    taps = _taps(dump, out)
    _check(dump, out, facts, source, compute)
    folder = Path(tempfile.mkdtemp(prefix=out.name + ".", suffix=".parts", dir=out.parent))
    try:
        parts: list[Path] = []
        sequences = done = 0
        for group in _groups(dump):
            done += len(group)
            group = [one for one in group if len(one.tokens) > 1]
            if group:
                parts.append(folder / f"{len(parts):06d}.safetensors")
                _write_part(parts[-1], dump, group, taps, count, facts)
                sequences += len(group)
            progress(done, len(dump))
        if not parts:
            raise InputError(f"{dump.path}: every sequence is shorter than 2 tokens")
        whole = folder / "whole"
        merge_parts(parts, whole, _provenance(dump, facts, sequences, source, compute))
        _check_free(out)
        os.replace(whole, out)
    finally:
        shutil.rmtree(folder)
    return tuple(taps)


def _taps(dump: Dump, out: Path) -> dict[Tap, int]:
    """Which slot holds each known boundary."""
    taps: dict[Tap, int] = {}
    for number, slot in enumerate(dump.slots):
        if slot.boundary is None and slot.role == "aux":
            raise InputError(
                f"{out}: expected to know every boundary, found slot {number} unknown "
                f"({slot.how}); give --boundaries, or --reference with states of the same tokens"
            )
        if slot.boundary == "L":
            raise InputError(f"{out}: h[L] needs the number of layers; name the target: --target")
        if slot.boundary is not None:
            taps.setdefault(slot.boundary, number)
    return taps


def _check(dump: Dump, out: Path, facts: Facts, source: str | None, compute: str | None) -> None:
    if facts.hidden != dump.hidden:
        raise InputError(
            f"{dump.path}: expected states of hidden size {facts.hidden}, as {facts.model} has, "
            f"found {dump.hidden}; is it another target's dump?"
        )
    if compute is not None and compute not in _STORED:
        raise InputError(f"--compute: expected one of {', '.join(_STORED)}, found {compute!r}")
    if source is not None and source not in SOURCES:
        raise InputError(f"--source: expected one of {', '.join(SOURCES)}, found {source!r}")
    if dump.format == own.NAME:
        raise InputError(f"{dump.path}: is a states file already; there is nothing to write")
    _check_free(out)
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: expected a folder to write to, found none; create it")


def _check_free(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise InputError(f"{out}: exists already and is not overwritten; choose another --out")


def _groups(dump: Dump) -> Iterator[list[Sequence]]:
    """Sequences together until they are large; one alone may be larger."""
    group: list[Sequence] = []
    size = 0
    for one in dump.stream():
        bytes_of_one = sum(slot.numel() * slot.element_size() for slot in one.slots)
        if group and size + bytes_of_one > _GROUP:
            yield group
            group, size = [], 0
        group.append(one)
        size += bytes_of_one
    if group:
        yield group


def _write_part(
    part: Path, dump: Dump, group: list[Sequence], taps: dict[Tap, int], count: str, facts: Facts
) -> None:
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    for tap, number in taps.items():
        rows = [one.slots[number][: len(one.tokens) - 1] for one in group]
        states = torch.cat(rows)
        if dump.dtype not in _STORED:
            states = states.float()  # FP8 came as float32 times its scale; float64 is cut
        if not torch.isfinite(states).all():
            raise InputError(f"{dump.path}: {tap_name(tap)} holds NaN or infinite states")
        tensors[tap_name(tap)] = states.contiguous()
    tokens = torch.cat([one.tokens for one in group])
    if int(tokens.max()) >= facts.vocabulary:
        raise InputError(
            f"{dump.path}: expected token ids below {facts.vocabulary}, as {facts.model} has, "
            f"found {int(tokens.max())}; is it another target's dump?"
        )
    masks = [counted(one, count, dump.layout.lag, dump.path) for one in group]
    tensors["tokens"] = tokens.to(torch.int32)
    tensors["loss_mask"] = torch.cat(masks).to(torch.uint8)
    tensors["lengths"] = torch.tensor([len(one.tokens) for one in group], dtype=torch.int32)
    save_file(tensors, part)


def _provenance(
    dump: Dump, facts: Facts, sequences: int, source: str | None, compute: str | None
) -> Provenance:
    packages = ("draftprobe", "torch", "safetensors")
    return Provenance(
        source=source or dump.layout.source or "dataset",
        model=facts.model,
        model_type=facts.model_type,
        config_digest=facts.digest,
        layers=facts.layers,
        hidden_size=facts.hidden,
        vocab_size=facts.vocabulary,
        dtype=dump.dtype if dump.dtype in _STORED else "float32",
        compute=compute or "unknown",
        batch=0,
        template=None,
        kinds=("",) * sequences,
        versions={name: version(name) for name in packages}
        | {"dump": f"{dump.producer} ({dump.format}, {dump.dtype})"},
    )
