"""Capture: texts, chat prompts or token ids in, a States file out; bounded memory, resumable.

Each batch is one part file, moved into place when whole; an interrupted run skips the parts that
are there. The greedy continuation is transformers' own ``generate``, recorded on the way.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draftprobe.drafter.checkpoint import read_header
from draftprobe.drafter.wiring import Tap, check_taps, tap_name
from draftprobe.errors import InputError
from draftprobe.states.record import Provenance, merge_parts
from draftprobe.states.target import Recorder, Target, config_digest

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Item:
    """One sequence to feed: token ids, the mask of tokens that count, a label."""

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to record and how.

    Attributes:
        boundaries: boundaries to store.
        dtype: of stored states (float32, float16 or bfloat16).
        batch: sequences per pass.
        greedy: new tokens of the target's own argmax continuation; 0 records the text as it is.
        source: where the tokens come from, if not from the target itself.
        template: digest of the chat template, if one was applied.
    """

    boundaries: tuple[Tap, ...]
    dtype: str
    batch: int
    greedy: int
    source: str = "dataset"
    template: str | None = None


def capture(
    target: Target,
    items: Sequence[Item],
    plan: Plan,
    out: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Record ``items`` into the States file ``out``; calls ``progress(batches done, of)``.

    Raises:
        InputError: nothing to record, boundaries out of range, tokens outside the vocabulary,
            states that overflow the chosen dtype, an output that exists, or parts of another job.
    """
    _check(target, items, plan, out)
    folder = _open_parts(target, items, plan, out)
    batches = [items[i : i + plan.batch] for i in range(0, len(items), plan.batch)]
    parts = [folder / f"{index:06d}.safetensors" for index in range(len(batches))]
    for index, (batch, part) in enumerate(zip(batches, parts, strict=True)):
        if not part.exists():
            _write_part(part, *_record(target, batch, plan))
        progress(index + 1, len(batches))
    kept = [part for part in parts if "lengths" in read_header(part)[0]]
    if not kept:
        raise InputError(f"{out}: every sequence was shorter than 2 tokens; nothing was recorded")
    whole = folder / "whole"
    merge_parts(kept, whole, _provenance(target, items, plan, kept))
    os.replace(whole, out)
    shutil.rmtree(folder)


def _check(target: Target, items: Sequence[Item], plan: Plan, out: Path) -> None:
    vocabulary = target.text_config.vocab_size
    if not items:
        raise InputError("expected at least one sequence to record, found none; check the input")
    check_taps(plan.boundaries, len(target.structure.layers))
    if plan.dtype not in DTYPES:
        raise InputError(f"dtype: expected one of {', '.join(DTYPES)}, found {plan.dtype!r}")
    for number, item in enumerate(items):
        if not item.tokens or not all(0 <= token < vocabulary for token in item.tokens):
            raise InputError(
                f"sequence {number}: expected token ids in 0..{vocabulary - 1}, found "
                f"{'none' if not item.tokens else 'others'}; are they of another vocabulary?"
            )
    if out.exists() or out.is_symlink():
        raise InputError(f"{out}: exists already and is not overwritten; choose another --out")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: expected a folder to write to, found none; create it")


def _open_parts(target: Target, items: Sequence[Item], plan: Plan, out: Path) -> Path:
    folder = out.with_name(out.name + ".parts")
    work = [[item.tokens, item.mask, item.kind] for item in items]
    job = {
        "target": target.name,
        "config": config_digest(target.text_config),
        "work": hashlib.sha256(json.dumps(work).encode()).hexdigest(),
        "plan": asdict(plan) | {"boundaries": list(plan.boundaries)},
        "compute": str(target.model.dtype),
    }
    record = folder / "job.json"
    folder.mkdir(exist_ok=True)
    parts = {entry.name for entry in folder.iterdir()} - {record.name}
    if parts and (not record.is_file() or record.read_text() != json.dumps(job)):
        raise InputError(
            f"{folder}: holds parts of another capture, or something else; move it away, or "
            "choose another --out"
        )
    record.write_text(json.dumps(job))
    return folder


def _record(
    target: Target, batch: Sequence[Item], plan: Plan
) -> tuple[list[Item], dict[Tap, list[torch.Tensor]]]:
    """The batch's sequences as recorded, and their rows [n - 1, H] per boundary."""
    recorder = Recorder(target.structure, plan.boundaries, DTYPES[plan.dtype], "cpu")
    width = max(len(item.tokens) for item in batch)
    pads = [width - len(item.tokens) for item in batch]
    left = plan.greedy > 0
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    seen = torch.zeros_like(ids)
    for row, (item, pad) in enumerate(zip(batch, pads, strict=True)):
        where = slice(pad, None) if left else slice(0, width - pad)
        ids[row, where] = torch.tensor(item.tokens)
        seen[row, where] = 1
    with torch.inference_mode(), recorder:
        if left:
            output = _continue(target, ids, seen, plan.greedy)
            done = [
                _grown(item, output[row, width:].tolist(), target) for row, item in enumerate(batch)
            ]
        else:
            _forward(target, ids, seen)
            done = list(batch)
        states = recorder.take()
    rows: dict[Tap, list[torch.Tensor]] = {}
    for tap, state in states.items():
        starts = pads if left else [0] * len(batch)
        rows[tap] = [
            state[row, start : start + len(item.tokens) - 1]
            for row, (start, item) in enumerate(zip(starts, done, strict=True))
            if len(item.tokens) > 1
        ]
        for sequence in rows[tap]:
            if not torch.isfinite(sequence).all():
                raise InputError(
                    f"{tap_name(tap)}: states are NaN or overflow {plan.dtype}; "
                    "choose --dtype bfloat16 or float32"
                )
    return [item for item in done if len(item.tokens) > 1], rows


def _continue(target: Target, ids: torch.Tensor, seen: torch.Tensor, new: int) -> torch.Tensor:
    from transformers import GenerationConfig

    config = GenerationConfig(
        max_new_tokens=new,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        eos_token_id=stop_ids(target),
        pad_token_id=(stop_ids(target) or [0])[0],
    )
    model: Any = target.model
    own, model.generation_config = model.generation_config, config
    try:  # generate fills gaps from the model's own, and a repetition penalty is no argmax
        return model.generate(
            input_ids=ids.to(target.device),
            attention_mask=seen.to(target.device),
            generation_config=config,
        ).cpu()
    finally:
        model.generation_config = own


def stop_ids(target: Target) -> list[int]:
    """End-of-sequence ids of the target's generation config, else of its tokenizer."""
    generation: Any = target.model.generation_config
    ids = getattr(generation, "eos_token_id", None)
    if ids is None and target.tokenizer is not None:
        ids = target.tokenizer.eos_token_id
    return [ids] if isinstance(ids, int) else list(ids or [])


def _grown(item: Item, new: list[int], target: Target) -> Item:
    stops = set(stop_ids(target))
    end = next((i + 1 for i, token in enumerate(new) if token in stops), len(new))
    tokens = item.tokens + tuple(new[:end])
    return Item(tokens, (False,) * len(item.tokens) + (True,) * end, item.kind)


def _forward(target: Target, ids: torch.Tensor, seen: torch.Tensor) -> None:
    model: Any = target.model
    extra = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        extra["logits_to_keep"] = 1
    device = target.device
    model(input_ids=ids.to(device), attention_mask=seen.to(device), use_cache=False, **extra)


def _write_part(part: Path, items: list[Item], rows: dict[Tap, list[torch.Tensor]]) -> None:
    tensors: dict[str, torch.Tensor] = {}
    if items:
        tensors = {tap_name(tap): torch.cat(states).contiguous() for tap, states in rows.items()}
        tensors["tokens"] = torch.tensor([t for i in items for t in i.tokens], dtype=torch.int32)
        tensors["loss_mask"] = torch.tensor([m for i in items for m in i.mask]).to(torch.uint8)
        tensors["lengths"] = torch.tensor([len(i.tokens) for i in items], dtype=torch.int32)
    beside = part.with_suffix(".partial")
    save_file(tensors, beside, metadata={"kinds": json.dumps([item.kind for item in items])})
    os.replace(beside, part)


def _provenance(
    target: Target, items: Sequence[Item], plan: Plan, parts: Sequence[Path]
) -> Provenance:
    config = target.text_config
    kinds = [kind for part in parts for kind in json.loads(read_header(part)[1]["kinds"])]
    packages = ("draftprobe", "torch", "transformers", "safetensors")
    return Provenance(
        source="greedy" if plan.greedy else plan.source,
        model=target.name,
        model_type=config.model_type,
        config_digest=config_digest(config),
        layers=len(target.structure.layers),
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        dtype=plan.dtype,
        compute=str(target.model.dtype).removeprefix("torch."),
        batch=plan.batch,
        template=plan.template,
        kinds=tuple(kinds),
        versions={name: version(name) for name in packages}
        | {"python": ".".join(map(str, sys.version_info[:3]))},
    )
