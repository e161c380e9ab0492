"""What each training stack's layout can hold of a drafter: one table, and what it refuses.

Knows neither how a folder is written nor what an engine would do with it. Read at the versions that
``trainers`` and ``recognise`` name; not executed but for speculators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from draftprobe.dialects.ids import default_taps, in_layer_order
from draftprobe.drafter.layout import Layout
from draftprobe.drafter.shape import Shape
from draftprobe.drafter.wiring import Rope, Tap, Wiring, eagle3, tap_name, taps_name

Format = Literal["specforge", "speculators", "eagle", "modelopt", "torchspec"]


@dataclass(frozen=True, slots=True)
class Case:
    """A drafter that is to be written: its wires, sizes and tensors; ``layers`` is L or None."""

    wiring: Wiring
    shape: Shape
    layout: Layout
    layers: int | None

    @property
    def scaling(self) -> str:
        """The kind of rope scaling, ``default`` for none."""
        items = dict(self.wiring.rope.scaling)
        return str(items.get("rope_type", items.get("type", "default")))


@dataclass(frozen=True, slots=True)
class Holds:
    """What one layout holds.

    Attributes:
        pre_fc_norm, residual, feedback, embedding, head: values of these wires that it can say.
        head_norm: values of that wire.
        taps: how many; None for any number.
        lowest: the lowest boundary that its ids can name.
        scaling: kinds of rope scaling that its code computes; None for whatever transformers does.
        latent, several, qk_norm, biases: MLA, more than one layer, norms of q and k, biases of the
            attention or the MLP.
        narrow: a drafter whose hidden size is not the target's.
    """

    pre_fc_norm: tuple[str, ...]
    residual: tuple[str, ...]
    feedback: tuple[str, ...]
    embedding: tuple[str, ...]
    head: tuple[str, ...]
    head_norm: tuple[bool, ...]
    taps: int | None
    lowest: int
    scaling: tuple[str, ...] | None
    latent: bool
    several: bool
    qk_norm: bool
    biases: bool
    narrow: bool


FORMATS: Mapping[Format, Holds] = {
    "specforge": Holds(
        pre_fc_norm=("none", "per_tap"), residual=("raw",), feedback=("pre_norm", "post_norm"),
        embedding=("target",), head=("own",), head_norm=(True,), taps=3, lowest=0,
        scaling=("default", "linear", "dynamic", "llama3", "yarn"), latent=False,
        several=False, qk_norm=False, biases=False, narrow=True,
    ),
    "eagle": Holds(
        pre_fc_norm=("none",), residual=("raw",), feedback=("pre_norm",),
        embedding=("own", "target"), head=("own",), head_norm=(True,), taps=3, lowest=0,
        scaling=("default", "linear", "dynamic"), latent=False, several=False,
        qk_norm=False, biases=False, narrow=True,
    ),
    "speculators": Holds(
        pre_fc_norm=("none", "whole", "per_tap"), residual=("raw", "normed"),
        feedback=("pre_norm", "post_norm"), embedding=("own", "target"), head=("own",),
        head_norm=(True,), taps=None, lowest=0, scaling=None, latent=False,
        several=True, qk_norm=True, biases=True, narrow=False,
    ),
    "modelopt": Holds(
        pre_fc_norm=("none",), residual=("raw",), feedback=("pre_norm",), embedding=("target",),
        head=("own",), head_norm=(True, False), taps=3, lowest=1, scaling=None,
        latent=True, several=True, qk_norm=False, biases=True, narrow=False,
    ),
    "torchspec": Holds(
        pre_fc_norm=("none", "per_tap"), residual=("raw",), feedback=("pre_norm", "post_norm"),
        embedding=("own", "target"), head=("own",), head_norm=(True,), taps=None, lowest=1,
        scaling=("default", "linear", "dynamic", "llama3", "yarn"), latent=True,
        several=False, qk_norm=False, biases=False, narrow=True,
    ),
}  # fmt: skip

_WHY = {
    "pre_fc_norm": "its module has no such norm",
    "residual": "its residual is always fc's output: it does not read norm_before_residual",
    "feedback": "it always feeds back the layer's output",
    "embedding": "its export drops the embedding table",
    "head": "it needs a head of the drafter's own",
    "head_norm": "its final norm always stands before the head",
}

_WORDS = {
    ("pre_fc_norm", "none"): "no norm before fc",
    ("pre_fc_norm", "whole"): "one norm over the whole input of fc",
    ("pre_fc_norm", "per_tap"): "a norm for each tap before fc",
    ("residual", "raw"): "fc's output as its residual",
    ("residual", "normed"): "the normed state as its residual (norm_before_residual)",
    ("residual", "embedding"): "the embedding as its residual",
    ("residual", "none"): "no residual",
    ("feedback", "pre_norm"): "the layer's output fed back",
    ("feedback", "post_norm"): "the output of its final norm fed back (norm_output)",
    ("feedback", "stale"): "its first step's input fed back at every step",
    ("embedding", "own"): "an embedding table of its own",
    ("embedding", "target"): "no embedding table",
    ("head", "own"): "a head of its own",
    ("head", "target"): "no head: the target's is meant",
    ("head", "tied"): "its embedding table for a head",
    ("head_norm", True): "a final norm before the head",
    ("head_norm", False): "no final norm before the head",
}
"""Values of the wires in :data:`_WHY`, in words."""

_PAPER = eagle3((), Rope(1.0))
_FREE = {*_WHY, "taps", "rope", "vocabulary"}
_FIXED = tuple(field.name for field in fields(Wiring) if field.name not in _FREE)
"""Wires that no config of these stacks can say: their code does as the paper does."""


def refusals(to: Format, case: Case) -> tuple[str, ...]:
    """Why the layout cannot hold the drafter, one sentence for each thing; empty where it can."""
    return tuple(f"{to}: {reason}" for reason in _refusals(FORMATS[to], to, case))


def _refusals(holds: Holds, to: Format, case: Case) -> Iterator[str]:
    wiring, shape, rope = case.wiring, case.shape, case.wiring.rope
    for wire, why in _WHY.items():
        value, held = getattr(wiring, wire), getattr(holds, wire)
        if value not in held:
            yield f"the drafter has {_WORDS[wire, value]} (wire {wire}): {why}"
    for wire in _FIXED:
        value, fixed = getattr(wiring, wire), getattr(_PAPER, wire)
        if value != fixed:
            yield f"wire {wire} is {value}, which every stack fixes as {fixed}"
    if wiring.vocabulary == "absolute":
        yield "wire vocabulary is absolute: every stack here reads d2t as an offset"
    if (rope.style == "interleaved") != (shape.latent is not None):
        yield f"wire rope is {rope.style}: stacks turn halves, and neighbours in MLA only"
    if holds.scaling is not None and case.scaling not in holds.scaling:
        yield f"wire rope has scaling {case.scaling}, it computes {', '.join(holds.scaling)}"
    if to == "eagle" and rope.scaling and "type" not in dict(rope.scaling):
        yield "wire rope: its code looks for the scaling's kind under 'type' alone"
    if rope.partial != 1:
        yield f"wire rope turns {rope.partial:g} of each head, where training code turns all of it"
    yield from _anatomy(holds, case)
    yield from taps_refused(holds, to, wiring.taps, case.layers)


def _anatomy(holds: Holds, case: Case) -> Iterator[str]:
    shape, has = case.shape, case.layout
    bias = sorted(shape.biases)
    checks: tuple[tuple[bool, bool, str], ...] = (
        (shape.latent is not None, holds.latent, "latent attention (MLA)"),
        (shape.layers > 1, holds.several, f"{shape.layers} decoder layers"),
        (shape.qk_norm, holds.qk_norm, "norms of queries and keys"),
        (bool(bias), holds.biases, f"biases ({', '.join(bias)})"),
        ("fc" in bias, False, "a bias of fc"),
        (not _whole_groups(shape), not holds.biases, f"biases of {', '.join(bias)} alone"),
        ("mask_hidden" in has, False, "mask_hidden: P-EAGLE is another model"),
        (
            shape.hidden != shape.target_hidden,
            holds.narrow,
            f"a hidden size of {shape.hidden} on taps of {shape.target_hidden}",
        ),
    )
    for there, held, what in checks:
        if there and not held:
            yield f"it has no place for {what}"


def _whole_groups(shape: Shape) -> bool:
    """One flag stands for the biases of all attention projections, one for the MLP's."""
    groups = ({"q_proj", "k_proj", "v_proj", "o_proj"}, {"gate_proj", "up_proj", "down_proj"})
    return all(shape.biases & group in (set(), group) for group in groups)


def taps_refused(holds: Holds, to: Format, taps: tuple[Tap, ...], layers: int | None) -> list[str]:
    """Why these taps cannot be named in the layout."""
    numbers = in_layer_order(taps)
    if isinstance(numbers, str):
        return [f"wire taps: {numbers}"]
    wrong = []
    if holds.taps is not None and len(numbers) != holds.taps:
        wrong.append(f"wire taps: {len(numbers)} taps, its fc reads {holds.taps}")
    if numbers[0] < holds.lowest:
        wrong.append(
            f"wire taps: {tap_name(numbers[0])} cannot be named: its ids are outputs of layers"
        )
    if layers is not None and numbers[-1] > layers - (to in ("specforge", "torchspec")):
        wrong.append(
            f"wire taps: {tap_name(numbers[-1])} cannot be captured of a target of {layers} layers"
        )
    if to == "eagle":
        wrong += _eagle_taps(numbers, layers)
    return wrong


def _eagle_taps(numbers: tuple[int, ...], layers: int | None) -> list[str]:
    """EAGLE's code has no ids: the taps follow from the number of the target's layers."""
    if layers is None:
        return ["wire taps: its code fixes them by the target's layers: give --target"]
    if numbers == default_taps(layers):
        return []
    return [f"wire taps: {taps_name(numbers)}, its code fixes {taps_name(default_taps(layers))}"]
