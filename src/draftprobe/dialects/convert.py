"""A drafter's folder in another stack's layout: names, config and vocabulary, the wiring kept.

What the other layout cannot hold is refused, and named. The written folder is read back before it
gets its name: its wiring must be the one that went in. Runs no stack and reads no weight's value.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from draftprobe.dialects.engines import parse_engine
from draftprobe.dialects.families import family_of, text_part
from draftprobe.dialects.folder import Part, part_of, tensor_bytes, write_folder
from draftprobe.dialects.holds import FORMATS, Case, Format, refusals
from draftprobe.dialects.ids import Spelling
from draftprobe.dialects.keys import count
from draftprobe.dialects.layouts import dropped_keys, write_config
from draftprobe.dialects.meant import (
    GOLDEN,
    NOTHING_SAID,
    Target,
    Wish,
    against_golden,
    known_wiring,
    read_target,
)
from draftprobe.dialects.own_table import EMBEDDING, compare_embedding
from draftprobe.dialects.reading import Target as ServedWith
from draftprobe.dialects.recognise import Recognised, parse_trainer, recognise
from draftprobe.dialects.served import Served, what_engines_do
from draftprobe.dialects.trainers import claims, doubts, parse
from draftprobe.drafter.checkpoint import Checkpoint, open_checkpoint, read_json
from draftprobe.drafter.kind import check_eagle3
from draftprobe.drafter.layout import Layout, layout_of
from draftprobe.drafter.shape import shape_of
from draftprobe.drafter.wiring import Wiring, difference, taps_name
from draftprobe.errors import InputError


@dataclass(frozen=True, slots=True)
class Converted:
    """A folder in the other layout.

    Attributes:
        out: where it lies; to: its layout; source: whose folder it was made from.
        wiring: as it stands in both; but for an equal embedding table that was left out.
        ids: layer ids as written, ``level`` where; empty where the layout has none.
        tensors: how many; made: those that the source lacks and its d2t gives; left: those that
            the layout has no place for and d2t gives back.
        dropped: keys of the source's config that were not taken along.
        notes: what its user must know, a sentence each.
        served: what each engine does with the new folder; empty where no target was given, or its
            config does not hold the sizes.
    """

    out: Path
    to: Format
    source: Recognised
    wiring: Wiring
    ids: tuple[int, ...]
    level: str
    tensors: int
    made: tuple[str, ...]
    left: tuple[str, ...]
    dropped: tuple[str, ...]
    notes: tuple[str, ...]
    served: tuple[Served, ...]


def convert(draft: Path, to: str, out: Path, wish: Wish = NOTHING_SAID) -> Converted:
    """Write ``draft`` in the layout ``to`` into the new folder ``out``.

    Args:
        draft: the drafter's folder.
        to: a key of ``holds.FORMATS``.
        out: a folder that does not exist yet.
        wish: taps outright, or how the ids in the config are read (``output``, ``boundary``);
            whose folder it is; the target's config or folder; the verifier's name.

    Raises:
        InputError: bad input, a wire that is not known, or one that the layout cannot hold.
    """
    if to not in FORMATS:
        raise InputError(f"--to: expected one of {', '.join(FORMATS)}, found {to!r}")
    form = cast(Format, to)
    checkpoint = open_checkpoint(draft)
    layout = layout_of(checkpoint)
    check_eagle3(checkpoint, layout)
    target = None if wish.target is None else read_target(wish.target)
    who = parse_trainer(wish.trainer) if wish.trainer else recognise(checkpoint, layout)
    source = known_wiring(checkpoint, layout, who, wish, target)
    wiring, layout, spared = _without_spare(form, source, checkpoint, layout, wish)
    shape = shape_of(checkpoint, wiring, layout)
    case = Case(wiring, shape, layout, target.layers if target else None)
    if reasons := refusals(form, case):
        if spared:
            reasons = (*reasons, f"embedding: {spared}")
        raise InputError(f"{draft} cannot be written as {to}: " + "; ".join(reasons))
    ids, level, notes = _spelled(form, wiring, target)
    notes += [spared] if spared else []
    parts, made, left = _tensors(checkpoint, case, form)
    config = write_config(checkpoint, case, form, ids, who.name, _verifier(target, wish))
    golden = [checkpoint.folder / GOLDEN] if (checkpoint.folder / GOLDEN).is_file() else []
    with write_folder(out, config, parts, (checkpoint, layout), golden) as beside:
        if golden and wiring != source:
            _say_in_golden(beside, wiring)
        _check_written(beside, wiring, form)
    if form == "speculators":
        notes += _speculators_notes(config, wiring)
    notes += [f"{doubt.wire}: {doubt.why}" for doubt in doubts(checkpoint, layout, wish.trainer)]
    if "hidden_norm in later layers" in layout.styles:
        notes.append(
            "the later layers' hidden_norm is written as input_layernorm, as vLLM reads it; SGLang "
            "and TensorRT-LLM look for hidden_norm there"
        )
    if golden:
        notes += against_golden(checkpoint, layout, source, target)
    return Converted(
        out, form, who, wiring, ids, level, len(parts), made, left, dropped_keys(checkpoint),
        tuple(notes), _served(out, wish.target, wiring),
    )  # fmt: skip


def _without_spare(
    to: Format, wiring: Wiring, checkpoint: Checkpoint, layout: Layout, wish: Wish
) -> tuple[Wiring, Layout, str]:
    """Without the drafter's embedding table, where the layout drops it and the target has the same.

    Returns:
        wiring and layout as they are to be written, and what is to be said of the table; empty
        where the layout keeps it.
    """
    if wiring.embedding != "own" or "own" in FORMATS[to].embedding or EMBEDDING not in layout:
        return wiring, layout, ""
    found = compare_embedding(checkpoint, layout, wish.target)
    if not found.same:
        return wiring, layout, found.told
    kept = {name: source for name, source in layout.sources.items() if name != EMBEDDING}
    told = f"the embedding table is left out: its {found.rows:,} rows are the target's"
    return replace(wiring, embedding="target"), replace(layout, sources=kept), told


def _say_in_golden(folder: Path, wiring: Wiring) -> None:
    from draftprobe.drafter import golden

    golden.write(replace(golden.read(folder), wiring=wiring), folder)


def _served(out: Path, target: Path | None, wiring: Wiring) -> tuple[Served, ...]:
    """What engines do with the new folder; nothing where the target's sizes are not known."""
    if target is None:
        return ()
    where = target / "config.json" if target.is_dir() else target
    config = read_json(where)
    text = text_part(config)
    layers, hidden, vocabulary = (
        count(text, key, where) for key in ("num_hidden_layers", "hidden_size", "vocab_size")
    )
    if layers is None or hidden is None or vocabulary is None:
        return ()
    served_with = ServedWith(family_of(config, where), layers, hidden, vocabulary, text, str(where))
    return what_engines_do(out, served_with, wiring)


def _spelled(
    to: Format, wiring: Wiring, target: Target | None
) -> tuple[tuple[int, ...], str, list[str]]:
    """The ids as the layout means them, where they stand, and what must be said of them."""
    taps = tuple(tap for tap in wiring.taps if isinstance(tap, int))
    if to == "eagle":
        return (), "", ["EAGLE's code captures the layers by itself: the config has no ids"]
    if to == "speculators":
        return taps, "top", []
    outputs, unknown = tuple(tap - 1 for tap in taps), "" if target else "give --target"
    if to != "specforge":
        return outputs, "nested", []
    if target is not None:
        spelling = parse_engine("sglang").spell(wiring.taps, target.family, target.layers)
        if isinstance(spelling, Spelling):
            outputs = spelling.ids
        elif spelling.rule is not None:
            raise InputError(f"specforge: wire taps: {spelling.reason}")
        else:
            unknown = f"SGLang's rule for {target.family} targets is not known"
    if min(outputs) < 0:
        hint = "" if target else "; on DeepSeek's family id 0 names it: give --target"
        raise InputError(f"specforge: wire taps: h[0] would be id -1, which it refuses{hint}")
    note = f"ids are outputs of layers, as SGLang's rule for most families has it; {unknown}"
    return outputs, "nested", [note] if unknown else []


def _tensors(
    checkpoint: Checkpoint, case: Case, to: Format
) -> tuple[list[Part], tuple[str, ...], tuple[str, ...]]:
    """Every tensor under the layout's name; t2d made or left where only one side has it."""
    layout, made, left = case.layout, [], []
    _check_d2t(checkpoint, layout)
    middle = to in ("specforge", "eagle", "torchspec")
    parts = []
    for inside in layout.sources:
        if inside == "t2d" and to == "modelopt":
            left.append(inside)
            continue
        name = inside.replace("layers.0.", "midlayer.", 1) if middle else inside
        parts.append(part_of(checkpoint, layout, inside, name))
    if "d2t" in layout and (left or ("t2d" not in layout and to != "modelopt")):
        table = _t2d(checkpoint, case)
        if left and b"".join(tensor_bytes(checkpoint, layout, "t2d")) != table:
            raise InputError(
                f"{checkpoint.folder}: t2d and d2t disagree, and {to} keeps d2t alone: mend them"
            )
        if not left:
            made.append("t2d")
            parts.append(Part("t2d", "BOOL", (len(table),), len(table), made=table))
    elif left:
        raise InputError(f"{checkpoint.folder}: has t2d without d2t, which {to} has no place for")
    return parts, tuple(made), tuple(left)


_CODES = {"I64": "q", "I32": "i"}


def _check_d2t(checkpoint: Checkpoint, layout: Layout) -> None:
    if "d2t" not in layout:
        return
    info = checkpoint.info(layout.sources["d2t"].name)
    if info.dtype not in _CODES or len(info.shape) != 1:
        raise InputError(
            f"{info.file}: expected d2t as one row of integers (I64, I32), found {info.dtype} "
            f"{list(info.shape)}; write it anew as offsets"
        )


def _t2d(checkpoint: Checkpoint, case: Case) -> bytes:
    """t2d as d2t gives it, one byte for each of the target's tokens.

    Raises:
        InputError: d2t names a token outside the vocabulary.
    """
    info = checkpoint.info(case.layout.sources["d2t"].name)
    offsets = array(_CODES[info.dtype], b"".join(tensor_bytes(checkpoint, case.layout, "d2t")))
    if sys.byteorder == "big":
        offsets.byteswap()
    table = bytearray(case.shape.vocabulary)
    for index, offset in enumerate(offsets):
        if not 0 <= index + offset < len(table):
            raise InputError(
                f"{info.file}: d2t sends draft token {index} to {index + offset}, outside "
                f"0..{len(table) - 1}"
            )
        table[index + offset] = 1
    return bytes(table)


def _verifier(target: Target | None, wish: Wish) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if wish.verifier is not None:
        known["name_or_path"] = wish.verifier
    if target is not None:
        known["architectures"] = list(target.architectures)
    return known


def _speculators_notes(config: dict[str, Any], wiring: Wiring) -> list[str]:
    """What speculators' own loader does with a folder that is not of its own making; executed."""
    notes, verifier = [], config["speculators_config"]["verifier"]
    if not isinstance(verifier.get("name_or_path"), str):
        notes.append("speculators loads only with its verifier's name in the config: --verifier")
    if wiring.embedding == "target":
        notes.append(
            "no embedding in the file: vLLM takes the target's; speculators 0.9.0 itself (with "
            "transformers 5.19) takes it only where the memory that it got holds a NaN by chance"
        )
    return notes


def _check_written(folder: Path, wiring: Wiring, to: Format) -> None:
    """Read the new folder back: the wiring must be the one that went in."""
    written = open_checkpoint(folder)
    layout = layout_of(written)
    found = parse(written, layout, wiring.taps)
    if wires := difference(wiring, found):
        told = "; ".join(f"{wire} was {a}, would be {b}" for wire, (a, b) in wires.items())
        raise InputError(f"{to}: cannot say these wires, read back they differ: {told}")
    marked = [claim.meant for claim in claims(written, None) if claim.level == "mark"]
    if marked != [wiring.taps]:
        raise InputError(f"{to}: cannot say the taps {taps_name(wiring.taps)}")
