"""Checks of tensor names and shapes against what a drafter needs and what its config says.

Reads headers only. Knows EAGLE-3's shapes: the first layer's attention reads two halves of H.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from draftprobe.diagnose.checks.catalogue import finding
from draftprobe.diagnose.checks.subject import Subject
from draftprobe.diagnose.verdict import Finding

_NEEDED = (
    "fc.weight", "norm.weight", "layers.0.hidden_norm.weight", "layers.0.input_layernorm.weight",
    "layers.0.post_attention_layernorm.weight", "layers.0.self_attn.o_proj.weight",
    "layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight",
    "layers.0.mlp.down_proj.weight",
)  # fmt: skip
_ATTENTION = {
    "heads": ("q_proj", "k_proj", "v_proj"),
    "latent": ("q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"),
}
_HARMLESS = re.compile(r"(^|\.)(rotary_emb\.|verifier_norm\.|verifier_lm_head\.)")
"""Tables that every engine computes anew, and copies of what is the target's."""


def check(subject: Subject) -> Iterator[Finding]:
    """W313 to W315."""
    unknown = [name for name in subject.layout.unknown if not _HARMLESS.search(name)]
    if unknown:
        yield finding("W313", f"{_some(unknown)}: no layout that is known here has such names")
    if subject.layout.twice:
        twice = _some(list(subject.layout.twice))
        yield finding("W313", f"{twice}: another tensor has the same place already")
    missing = list(_missing(subject))
    if missing:
        yield finding("W314", f"expected also {_some(missing)}")
    for told in _contradictions(subject):
        yield finding("W315", told)


def _some(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _missing(subject: Subject) -> Iterator[str]:
    sources = subject.layout.sources
    other = any(".mlp." in name for name in subject.layout.unknown)  # such as a mixture of experts
    for name in _NEEDED:
        if name not in sources and not (other and ".mlp." in name):
            yield name
    for part in _ATTENTION[subject.layout.attention]:
        name = f"layers.0.self_attn.{part}.weight"
        if name not in sources:
            yield name
    reduced = subject.number("draft_vocab_size") or 0
    if "lm_head.weight" not in sources and 0 < reduced < (subject.vocabulary or 0):
        yield f"lm_head.weight (of {reduced} rows: no target has such a head)"


def _contradictions(subject: Subject) -> Iterator[str]:
    layers = subject.number("num_hidden_layers")
    if layers is not None and subject.layout.layers not in (0, layers):
        yield f"num_hidden_layers is {layers}, the weights hold {subject.layout.layers}"
    for name, wanted, why in _expected(subject):
        shape = subject.shape(name)
        if shape is not None and None not in wanted and shape != wanted:
            told = f"{subject.file_name(name)} is {list(shape)}"
            yield f"{told}: expected {list(wanted)} ({why})"


_Expected = tuple[str, tuple[int | None, ...], str]


def _expected(subject: Subject) -> Iterator[_Expected]:
    """Inside name, shape by the config (None in it: the config does not say), and the keys."""
    hidden, key = subject.number("hidden_size"), "hidden_size"
    yield from (_fusion(subject, hidden))
    for name in ("norm", "layers.0.hidden_norm", "layers.0.input_layernorm"):
        yield f"{name}.weight", (hidden,), key
    head = subject.number("draft_vocab_size")
    yield "lm_head.weight", (head, hidden), f"draft_vocab_size, {key}"
    yield "embed_tokens.weight", (subject.number("vocab_size"), hidden), f"vocab_size, {key}"
    for layer in range(subject.layout.layers):
        width = None if hidden is None else hidden * (1 if layer else 2)
        stem = f"layers.{layer}"
        parts = _latent if subject.layout.attention == "latent" else _heads
        for name, shape, why in parts(subject, hidden, width):
            yield f"{stem}.self_attn.{name}", shape, why
        inner, why = subject.number("intermediate_size"), f"intermediate_size, {key}"
        yield f"{stem}.mlp.gate_proj.weight", (inner, hidden), why
        yield f"{stem}.mlp.up_proj.weight", (inner, hidden), why
        yield f"{stem}.mlp.down_proj.weight", (hidden, inner), why


def _fusion(subject: Subject, hidden: int | None) -> Iterator[_Expected]:
    shape = subject.shape("fc.weight")
    if shape and len(shape) == 2:  # its width is W111's
        yield "fc.weight", (hidden, shape[1]), "hidden_size"


def _heads(subject: Subject, hidden: int | None, width: int | None) -> Iterator[_Expected]:
    heads = subject.number("num_attention_heads")
    groups = subject.number("num_key_value_heads") or heads
    size, told = subject.number("head_dim"), "head_dim"
    if size is None and heads and hidden:
        size, told = hidden // heads, "hidden_size over heads, as there is no head_dim"
    rows = None if heads is None or size is None else heads * size
    shared = None if groups is None or size is None else groups * size
    yield "q_proj.weight", (rows, width), f"{heads} heads of {size}: num_attention_heads, {told}"
    for name in ("k_proj.weight", "v_proj.weight"):
        yield name, (shared, width), f"{groups} heads of {size}: num_key_value_heads, {told}"
    yield "o_proj.weight", (hidden, rows), f"{heads} heads of {size}: num_attention_heads, {told}"
    for name in ("q_norm.weight", "k_norm.weight"):
        yield name, (size,), told


def _latent(subject: Subject, hidden: int | None, width: int | None) -> Iterator[_Expected]:
    heads, rank = subject.number("num_attention_heads"), subject.number("kv_lora_rank")
    turned, plain = subject.number("qk_rope_head_dim"), subject.number("qk_nope_head_dim")
    value, low = subject.number("v_head_dim"), subject.number("q_lora_rank")
    why = "kv_lora_rank, q_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim, heads"

    def total(*sizes: int | None) -> int | None:
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def times(size: int | None) -> int | None:
        return None if heads is None or size is None else heads * size

    yield "q_a_proj.weight", (low, width), why
    yield "q_b_proj.weight", (times(total(plain, turned)), low), why
    yield "kv_a_proj_with_mqa.weight", (total(rank, turned), width), why
    yield "kv_b_proj.weight", (times(total(plain, value)), rank), why
    yield "kv_a_layernorm.weight", (rank,), why
    yield "o_proj.weight", (hidden, times(value)), why
