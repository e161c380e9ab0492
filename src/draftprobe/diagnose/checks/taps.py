"""Checks of the layer ids as they stand in the config, and of fc's width against them.

Knows the two readings of an id (boundary, or output of a layer), not which engine uses which.
"""

from __future__ import annotations

from collections.abc import Iterator

from draftprobe.diagnose.checks.catalogue import finding
from draftprobe.diagnose.checks.subject import Subject
from draftprobe.diagnose.verdict import Finding
from draftprobe.dialects.engines import parse_engine
from draftprobe.dialects.ids import KEY, NESTED, Spelling, is_ids, layer_ids, nested_of
from draftprobe.dialects.recognise import MARK
from draftprobe.drafter.wiring import taps_name

_SAYS_ITS_READING = frozenset({"LlamaForCausalLMEagle4"})
"""Architectures of one trainer only, whose ids are outputs of layers (eagle-harness 0.1.3)."""


def lists(subject: Subject) -> dict[str, list[int]]:
    """Every list of layer ids in the config: where it stands -> ids.

    Raises:
        InputError: one is not a list of integers.
    """
    nested = nested_of(subject.checkpoint.config)
    places = {KEY: subject.checkpoint.config, f"{NESTED}.{KEY}": nested}
    found = {place: layer_ids(config, subject.where) for place, config in places.items()}
    return {place: ids for place, ids in found.items() if ids is not None}


def check(subject: Subject) -> Iterator[Finding]:
    """W107 to W111, W121 and S106."""
    found = lists(subject)
    for place, ids in found.items():
        if len(set(ids)) < len(ids):
            yield finding("W109", f"{place} is {ids}: every engine captures a layer once")
        elif ids != sorted(ids) and not _on_purpose(subject, place, ids):
            yield finding(
                "W108",
                f"{place} is {ids}: SGLang, vLLM, TensorRT-LLM and OpenVINO GenAI capture in the "
                "order of the layers, llama.cpp keeps the order of its array",
            )
        yield from _out_of_range(subject, place, ids)
    yield from _ambiguous(subject, found)
    yield from _width(subject, found)
    nested = subject.checkpoint.config.get(NESTED)
    if isinstance(nested, dict) and nested.get("use_aux_hidden_state", True) is not True:
        yield finding(
            "S106",
            f"{NESTED}.use_aux_hidden_state is {nested['use_aux_hidden_state']!r}: SGLang and vLLM "
            "capture no states then, and fc is skipped or fed one state",
        )


def admissible(ids: list[int], layers: int | None) -> tuple[bool, bool]:
    """Can the ids be boundaries (0..L)? outputs of layers (-1..L-1, -1 the embedding)?"""
    top = layers if layers is not None else max(ids) + 1
    return min(ids) >= 0 and max(ids) <= top, min(ids) >= -1 and max(ids) < top


def _out_of_range(subject: Subject, place: str, ids: list[int]) -> Iterator[Finding]:
    layers = subject.target.layers if subject.target else None
    boundaries, outputs = admissible(ids, layers)
    if boundaries or (outputs and place != KEY):
        return
    told = f"the target has {layers} layers" if layers is not None else "an id is negative"
    yield finding(
        "W110",
        f"{place} is {ids}, {told}: expected boundaries in 0..{'L' if layers is None else layers}"
        " (at top level), or outputs of layers one lower (nested)",
    )


def readings_of(subject: Subject, place: str, ids: list[int]) -> list[tuple[int, ...]]:
    """The boundaries that a list can mean, in its own order: none, one or two.

    Top-level lists are boundaries to all who read them. A nested list may be of boundaries or of
    outputs; a first id of 1 is an output (the default's first boundary is 2, and SGLang pull
    request 25454 rests its rule on that), except to ModelOpt, whose dump for vLLM takes the same
    numbers as boundaries.
    """
    layers = subject.target.layers if subject.target else None
    boundaries, outputs = admissible(ids, layers)
    if place == KEY:
        return [tuple(ids)] if boundaries else []
    names = subject.checkpoint.config.get("architectures")
    told = isinstance(names, list) and not _SAYS_ITS_READING.isdisjoint(map(str, names))
    if outputs and (told or (ids[0] == 1 and subject.trainer != "modelopt")):
        boundaries = False
    raised = [tuple(i + 1 for i in ids)] if outputs else []
    return [*([tuple(ids)] if boundaries else []), *raised]


def _noted(subject: Subject) -> tuple[int, ...] | None:
    """The boundaries that our own conversion noted."""
    mark = subject.checkpoint.config.get(MARK)
    ids = mark.get(KEY) if isinstance(mark, dict) else None
    return tuple(ids) if isinstance(ids, list) and is_ids(ids) else None


def _on_purpose(subject: Subject, place: str, ids: list[int]) -> bool:
    """Whether SGLang's rule for this target asks for that order: with 1 in front it adds 1."""
    if subject.target is None or place == KEY:
        return False
    target, sglang = subject.target, parse_engine("sglang")
    spelled = sglang.spell(tuple(sorted(ids)), target.family, target.layers)
    return isinstance(spelled, Spelling) and spelled.ids == tuple(ids)


def _ambiguous(subject: Subject, found: dict[str, list[int]]) -> Iterator[Finding]:
    """W107: a nested list that both readings admit, and nothing beside it that settles which.

    W121: lists, or a list and what our own conversion noted, that cannot mean the same.
    """
    noted, place = _noted(subject), f"{NESTED}.{KEY}"
    admitted = {where: readings_of(subject, where, ids) for where, ids in found.items()}
    if noted is not None:
        admitted[f"{MARK}.{KEY}"] = [noted]
    sets = [set(taps) for taps in admitted.values() if taps]
    common = set[tuple[int, ...]].intersection(*sets) if sets else set()
    if len(sets) > 1 and not common:
        told = "; ".join(
            f"{where}: {' or '.join(map(taps_name, taps))}" for where, taps in admitted.items()
        )
        yield finding("W121", told)
    if len(sets) != 1 or len(common) != 2:
        return
    ids = found[place]
    yield finding(
        "W107",
        f"{place} is {ids}: as boundaries (vLLM's V1 runner, SGLang on the DeepSeek family "
        f"since 0.5.13) {taps_name(ids)}; as outputs of layers (SpecForge, ModelOpt, TorchSpec; "
        f"SGLang on most families) {taps_name([i + 1 for i in ids])}; only the weights can tell",
    )


def slots(subject: Subject) -> int | None:
    """Slots of fc: its input width over the width of a tap; None where that is not whole."""
    shape, hidden = subject.shape("fc.weight"), subject.target_hidden
    if not shape or len(shape) != 2 or hidden is None or shape[1] % hidden:
        return None
    return shape[1] // hidden


def _width(subject: Subject, found: dict[str, list[int]]) -> Iterator[Finding]:
    shape, hidden = subject.shape("fc.weight"), subject.target_hidden
    if not shape or hidden is None:
        return
    count = slots(subject)
    if count is None:
        yield finding(
            "W111",
            f"{subject.file_name('fc.weight')} is {list(shape)}: its width is no multiple of the "
            f"tap width {hidden} that the config gives (target_hidden_size, else hidden_size)",
        )
        return
    told = {place: len(ids) for place, ids in found.items()}
    for key in ("num_aux_hidden_states", "num_aux_layers"):
        number = subject.number(key)
        if number is not None:
            told[key] = number
    for place, number in told.items():
        if number != count:
            yield finding(
                "W111",
                f"{subject.file_name('fc.weight')} is {list(shape)}, {count} taps of {hidden}; "
                f"{place} says {number}",
            )
