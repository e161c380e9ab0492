"""A drafter's sizes, from its weights first and from its config for what they cannot say. No torch.

Where both speak and differ, that is told with both numbers. Knows no wiring but the number of taps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout, layer_config, layout_of
from draftprobe.drafter.wiring import Wiring
from draftprobe.errors import InputError

FIRST = "layers.0.self_attn."
_GROUPS = {
    "attention_bias": ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa"),
    "mlp_bias": ("gate_proj", "up_proj", "down_proj"),
    "bias": ("fc",),
}


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of latent attention (MLA, arXiv 2412.19437 section 2.1.1).

    Attributes:
        query_rank: width of the compressed query, 0 where queries are not compressed.
        rank: width of the compressed keys and values.
        plain, rotary: channels of a query head without and with position.
        value: channels of a value head.
    """

    query_rank: int
    rank: int
    plain: int
    rotary: int
    value: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What a drafter is made of.

    Attributes:
        hidden: H of the drafter; target_hidden: width of one tap; taps: their number.
        heads, kv_heads, head_dim: attention; with ``latent`` head_dim is that of a query.
        intermediate: MLP width; draft_vocabulary: D; vocabulary: V; epsilon: of the norms.
        layers: decoder layers; only the first reads the embedding.
        latent: sizes of latent attention, None for plain heads.
        qk_norm: queries and keys are normed head by head.
        biases: projections that have one, by their last name (``q_proj``, ``fc``).
    """

    hidden: int
    target_hidden: int
    taps: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    draft_vocabulary: int
    vocabulary: int
    epsilon: float
    layers: int = 1
    latent: Latent | None = None
    qk_norm: bool = False
    biases: frozenset[str] = frozenset()

    @property
    def rotary(self) -> int:
        """Channels of a head that rope may turn."""
        return self.latent.rotary if self.latent else self.head_dim


def shape_of(checkpoint: Checkpoint, wiring: Wiring, layout: Layout | None = None) -> Shape:
    """Sizes of an EAGLE-3 drafter that is fed ``wiring.taps``.

    Raises:
        InputError: a size is missing, or weights, config and wiring contradict each other.
    """
    layout = layout or layout_of(checkpoint)
    where, config = checkpoint.folder / "config.json", layer_config(checkpoint.config)
    fc, gate = (_matrix(checkpoint, layout, n) for n in ("fc", "layers.0.mlp.gate_proj"))
    heads = integer(config, "num_attention_heads", where)
    wrong = contradictions(checkpoint, layout) + unread(checkpoint)
    if wrong:
        raise InputError("; ".join(wrong[:3]))
    latent = _latent(checkpoint, layout, heads) if layout.attention == "latent" else None
    q = _query(checkpoint, layout)
    if q[0] % heads:
        raise InputError(f"{where}: {heads} attention heads cannot share the query's {q[0]} rows")
    head_dim = q[0] // heads
    k = (q[0],) if latent else _matrix(checkpoint, layout, FIRST + "k_proj")
    if k[0] % head_dim or heads % (k[0] // head_dim):
        raise InputError(
            f"{where}: {heads} heads of {head_dim} in q_proj {q} do not fit k_proj {k}"
        )
    vocabulary = integer(config, "vocab_size", where)
    return Shape(
        hidden=fc[0],
        target_hidden=_tap_width(config, fc[1], len(wiring.taps), where),
        taps=len(wiring.taps),
        heads=heads,
        kv_heads=k[0] // head_dim,
        head_dim=head_dim,
        intermediate=gate[0],
        draft_vocabulary=_draft_vocabulary(checkpoint, layout, config) or vocabulary,
        vocabulary=vocabulary,
        epsilon=epsilon(config, where),
        layers=layout.layers,
        latent=latent,
        qk_norm=FIRST + "q_norm.weight" in layout,
        biases=_biases(layout),
    )


def contradictions(checkpoint: Checkpoint, layout: Layout) -> list[str]:
    """Where the config says one size and the weights another, one sentence each; empty is well."""
    where, config = checkpoint.folder / "config.json", layer_config(checkpoint.config)
    wrong = [
        f"{where}: {key} is {str(config[key])[:60]}, but {what}"
        for key, found, what in _found(checkpoint, layout, config)
        if config.get(key) is not None and (type(config[key]), config[key]) != (int, found)
    ]
    fc, width = _sizes(checkpoint, layout, "fc.weight"), config.get("target_hidden_size")
    if width is not None and (type(width) is not int or width <= 0):
        wrong.append(f"{where}: target_hidden_size is {str(width)[:60]}, not a positive integer")
    elif fc and width is not None and fc[1] % width:
        wrong.append(f"{where}: target_hidden_size is {width}, but fc reads {fc[1]} channels")
    if fc and (q := _sizes(checkpoint, layout, _first_query(layout))) and q[1] != 2 * fc[0]:
        wrong.append(
            f"{checkpoint.folder}: the first layer's query reads {q[1]} channels, where embedding "
            f"and hidden state have {fc[0]} each"
        )
    for key, names in _GROUPS.items():
        if config.get(key) is True and not _biases(layout) & set(names):
            wrong.append(f"{where}: {key} is true, but there is no bias tensor of {names[0]}")
    for name in ("d2t", "t2d"):
        sizes = _sizes(checkpoint, layout, name)
        wanted = (
            config.get("vocab_size")
            if name == "t2d"
            else (_sizes(checkpoint, layout, "lm_head.weight") or (None,))[0]
        )
        if sizes and wanted is not None and sizes[0] != wanted:
            what = "the vocabulary" if name == "t2d" else "lm_head"
            wrong.append(
                f"{checkpoint.folder}: {name} has {sizes[0]} entries, {what} {str(wanted)[:20]}"
            )
    return wrong


def unread(checkpoint: Checkpoint) -> list[str]:
    """What the config asks for and no reference drafter here computes, one sentence each."""
    where, config = checkpoint.folder / "config.json", layer_config(checkpoint.config)
    wrong, kinds = [], config.get("layer_types")
    if (act := config.get("hidden_act")) not in (None, "silu", "swish"):
        wrong.append(
            f"{where}: expected hidden_act silu, found {str(act)[:60]!r}: not computed here"
        )
    if isinstance(kinds, list) and any(kind != "full_attention" for kind in kinds):
        wrong.append(
            f"{where}: expected layer_types of full_attention only, found others: a sliding "
            "window is not computed here"
        )
    return wrong


def _found(
    checkpoint: Checkpoint, layout: Layout, config: dict[str, Any]
) -> Iterator[tuple[str, int, str]]:
    """What the weights say of a config's key: the key, the size, and a sentence's end for it."""
    yield "num_hidden_layers", layout.layers, f"there are {layout.layers} decoder layers"
    for key, name, axis in (
        ("hidden_size", "fc", 0),
        ("intermediate_size", "layers.0.mlp.gate_proj", 0),
        ("draft_vocab_size", "lm_head", 0),
        ("vocab_size", "embed_tokens", 0),
        ("q_lora_rank", FIRST + "q_a_proj", 0),
        ("kv_lora_rank", FIRST + "kv_b_proj", 1),
    ):
        sizes = _sizes(checkpoint, layout, name + ".weight")
        if sizes:
            yield key, sizes[axis], f"{name} has {sizes[axis]} {('rows', 'columns')[axis]}"
    heads = config.get("num_attention_heads")
    if type(heads) is not int or heads <= 0:
        return
    if layout.attention == "latent":
        if all(FIRST + name in layout for name in ("kv_b_proj.weight", "o_proj.weight")):
            found = _latent(checkpoint, layout, heads)
            yield "qk_rope_head_dim", found.rotary, f"the weights leave it {found.rotary}"
            yield "qk_nope_head_dim", found.plain, f"the weights leave it {found.plain}"
            yield "v_head_dim", found.value, f"the weights leave it {found.value}"
        return
    q, k = (_sizes(checkpoint, layout, f"{FIRST}{name}.weight") for name in ("q_proj", "k_proj"))
    if q and k and q[0] >= heads:
        size = q[0] // heads
        yield "head_dim", size, f"q_proj has {heads} heads of {q[0]} rows"
        yield "num_key_value_heads", k[0] // size, f"k_proj has {k[0]} rows, {size} a head"


def _latent(checkpoint: Checkpoint, layout: Layout, heads: int) -> Latent:
    """Sizes that the weights leave no choice in, given the number of heads."""
    low, high, out = (
        _matrix(checkpoint, layout, FIRST + name)
        for name in ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    )
    q, rank = _query(checkpoint, layout), high[1]
    compressed = FIRST + "q_a_proj.weight" in layout
    rotary, value = low[0] - rank, out[1] // heads
    plain = q[0] // heads - rotary
    if min(rotary, plain, value) <= 0 or high[0] != heads * (plain + value) or rotary % 2:
        raise InputError(
            f"{checkpoint.folder}: {heads} heads do not fit latent attention of query {q}, "
            f"kv_a_proj_with_mqa {low}, kv_b_proj {high}, o_proj {out}"
        )
    return Latent(q[1] if compressed else 0, rank, plain, rotary, value)


def _first_query(layout: Layout) -> str:
    """The projection of the first layer's input to queries, or to what they are made of."""
    low = FIRST + "q_a_proj.weight"
    return low if low in layout else FIRST + "q_proj.weight"


def _query(checkpoint: Checkpoint, layout: Layout) -> tuple[int, ...]:
    compressed = FIRST + "q_a_proj.weight" in layout
    return _matrix(checkpoint, layout, FIRST + ("q_b_proj" if compressed else "q_proj"))


def _draft_vocabulary(checkpoint: Checkpoint, layout: Layout, config: dict[str, Any]) -> int:
    """Rows of the head, else entries of d2t, else what the config says; 0 if nothing does."""
    for name in ("lm_head.weight", "d2t"):
        if sizes := _sizes(checkpoint, layout, name):
            return sizes[0]
    said = config.get("draft_vocab_size")
    return said if type(said) is int and said > 0 else 0


def _tap_width(config: dict[str, Any], reads: int, taps: int, where: Path) -> int:
    if reads % taps:
        raise InputError(
            f"{where.parent}: fc reads {reads} channels, which {taps} taps cannot share evenly; "
            "give as many taps as the drafter has slots"
        )
    width = config.get("target_hidden_size")
    if width is not None and width != reads // taps:
        raise InputError(
            f"{where}: fc reads {reads} channels, {reads / width:g} taps of target_hidden_size "
            f"{width}, and {taps} taps were given"
        )
    return reads // taps


def _biases(layout: Layout) -> frozenset[str]:
    names = (name for name in layout.sources if name.endswith(".bias"))
    return frozenset(name.split(".")[-2] for name in names)


def _sizes(checkpoint: Checkpoint, layout: Layout, name: str) -> tuple[int, ...] | None:
    """A tensor's sizes where it is there, has the usual number of them, and none is zero."""
    if name not in layout:
        return None
    sizes = layout.shape(checkpoint, name)
    usual = 1 if name in ("d2t", "t2d") else 2
    return sizes if len(sizes) == usual and 0 not in sizes else None


def _matrix(checkpoint: Checkpoint, layout: Layout, name: str) -> tuple[int, ...]:
    sizes = layout.shape(checkpoint, name + ".weight")
    if len(sizes) != 2 or 0 in sizes:
        raise InputError(
            f"{checkpoint.folder}: expected a two-dimensional weight {name} that is not empty, "
            f"found {sizes}"
        )
    return sizes


def epsilon(config: dict[str, Any], where: Any) -> float:
    """The norms' epsilon; 1e-6, as transformers has it, where the config has none."""
    value = config.get("rms_norm_eps", 1e-6)
    if not isinstance(value, float) or not 0 < value < 1:
        raise InputError(f"{where}: expected rms_norm_eps between 0 and 1, found {value!r}")
    return value


def integer(config: dict[str, Any], key: str, where: Any) -> int:
    """A positive integer that the config must hold; InputError otherwise."""
    value = config.get(key)
    if type(value) is not int or value <= 0:
        raise InputError(f"{where}: expected a positive integer {key!r}, found {value!r}")
    return value
