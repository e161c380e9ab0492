"""Who trained a drafter, as far as its folder says, and what every wire but the taps meant there.

No tensor is read. Taps are given: one key means different layers to different trainers; what a
folder claims about them is told by :func:`claims`. Sources, read and not executed: EAGLE git
cb7e084, SpecForge git a6b6b023 and pull request 879, ModelOpt git 03713649, TorchSpec git 11356816,
AngelSlim git b99215f8. Executed in the tests: speculators wheel 0.9.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from draftprobe.dialects import rope_keys, sglang
from draftprobe.dialects.ids import KEY, NESTED, layer_ids
from draftprobe.dialects.keys import count, flag, layer_config, part
from draftprobe.dialects.recognise import MARK, Recognised, parse_trainer, recognise
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout, layout_of
from draftprobe.drafter.wiring import Rope, Tap, Wiring
from draftprobe.errors import InputError


@dataclass(frozen=True, slots=True)
class Doubt:
    """A wire that the folder does not settle: what is taken, what else it may be, and why."""

    wire: str
    taken: Any
    other: Any
    why: str


@dataclass(frozen=True, slots=True)
class TapClaim:
    """A list of layer ids in a config, and what it may mean: a claim, not the answer.

    Attributes:
        key: where it stands, such as ``eagle_config.eagle_aux_hidden_state_layer_ids``.
        level: ``top`` or ``nested``; ``mark`` for the boundaries that our own conversion notes.
        ids: as written.
        as_output: boundaries if id k means layer k's output, h[k + 1]; None where one of them
            does not exist.
        as_boundary: boundaries if id k means h[k].
        meant: what the recognised trainer means by it; None where that is not known.
        why: by what rule.
    """

    key: str
    level: Literal["top", "nested", "mark"]
    ids: tuple[int, ...]
    as_output: tuple[int, ...] | None
    as_boundary: tuple[int, ...] | None
    meant: tuple[int, ...] | None
    why: str


@dataclass(frozen=True, slots=True)
class _Trainer:
    """What one trainer does with the keys that not all of them read.

    Attributes:
        residual: ``norm_before_residual`` decides it (absent: false), or it is always raw.
        feedback: ``norm_output`` decides it, or it is always the layer's output.
        head_norm: ``eagle_config.use_last_layernorm`` decides it, or it is always there.
        theta: the config's, or 10000 whatever it says.
        partial: ``partial_rotary_factor`` is read, or all of a head turns; ``scaled``: it is read
            by the scalings of transformers, but not by its plain rope (speculators executed).
    """

    residual: Literal["key", "raw"]
    feedback: Literal["key", "pre_norm", "by version"]
    head_norm: Literal["key", "always"]
    theta: Literal["config", "10000"]
    partial: Literal["config", "all", "scaled"]


TRAINERS: Mapping[str, _Trainer] = {
    "draftprobe": _Trainer("key", "key", "always", "config", "config"),
    "eagle": _Trainer("raw", "pre_norm", "always", "config", "all"),
    "specforge": _Trainer("raw", "by version", "always", "config", "all"),
    "speculators": _Trainer("key", "key", "always", "config", "scaled"),
    "modelopt": _Trainer("raw", "pre_norm", "key", "config", "scaled"),
    "torchspec": _Trainer("raw", "key", "always", "config", "all"),
    "angelslim": _Trainer("raw", "pre_norm", "always", "10000", "all"),
    "unknown": _Trainer("key", "key", "always", "config", "config"),
}
"""``unknown`` reads each key as its name says, as speculators and vLLM do."""


def wiring_of(checkpoint: Checkpoint, taps: tuple[Tap, ...], trainer: str | None = None) -> Wiring:
    """:func:`parse` of a folder whose layout nobody has made yet."""
    return parse(checkpoint, layout_of(checkpoint), taps, trainer)


def parse(
    checkpoint: Checkpoint, layout: Layout, taps: tuple[Tap, ...], trainer: str | None = None
) -> Wiring:
    """Every wire but the taps, as the trainer meant it; the taps are given.

    Args:
        checkpoint: the folder.
        layout: where it keeps its tensors.
        taps: boundaries in slot order.
        trainer: a name of :data:`TRAINERS`, with ``@before-879`` or ``@since-879`` for SpecForge;
            recognised if None.

    Raises:
        InputError: a malformed value, flags and tensors that contradict each other, or a wire
            that the folder cannot say and that ``trainer`` would settle.
    """
    who = recognise(checkpoint, layout) if trainer is None else parse_trainer(trainer)
    rule, where = TRAINERS[who.name], checkpoint.folder / "config.json"
    config = layer_config(checkpoint.config, where)
    nested = part(checkpoint.config, NESTED, where) or {}
    _refuse_other_forms(nested, where)
    feedback, head_norm = _after_the_layer(config, nested, who, where)
    rope = rope_keys.read_rope(config, where, interleaved=layout.attention == "latent")
    normed = flag(config, "norm_before_residual", where) and rule.residual == "key"
    return Wiring(
        taps=taps,
        state_shift=0,
        tap_norm="none",
        pre_fc_norm=_pre_fc_norm(config, nested, layout, where),
        half_order="embedding_first",
        embedding_norm=True,
        hidden_norm=True,
        residual="normed" if normed else "raw",
        head_norm=head_norm,
        feedback=feedback,
        token_shift=1,
        token_advance=1,
        position_start=0,
        position_advance=1,
        position_limit=None,
        window=None,
        rope=_trained(rope, rule),
        vocabulary=_vocabulary(checkpoint, layout, config, where),
        embedding="own" if "embed_tokens.weight" in layout else "target",
        embedding_scale=1.0,
        head=_head(layout, config, where),
        initial=frozenset(),
    )


def doubts(checkpoint: Checkpoint, layout: Layout, trainer: str | None = None) -> tuple[Doubt, ...]:
    """The wires that :func:`parse` settles by the trainer's habit although the config says more.

    Raises:
        InputError: a malformed value.
    """
    who = recognise(checkpoint, layout) if trainer is None else parse_trainer(trainer)
    rule, where = TRAINERS[who.name], checkpoint.folder / "config.json"
    config = layer_config(checkpoint.config, where)
    found: list[Doubt] = []
    if flag(config, "norm_before_residual", where) and rule.residual == "raw":
        why = f"norm_before_residual is true, which {who.name} does not read; vLLM and others do"
        found.append(Doubt("residual", "raw", "normed", why))
    rope = rope_keys.read_rope(config, where)
    theta, partial = rope.theta, _trained(rope, rule).partial
    if partial != rope.partial:
        why = f"{who.name}'s training code turns all of a head whatever partial_rotary_factor says"
        found.append(Doubt("rope", partial, rope.partial, why))
    if rule.theta == "10000" and theta != rope_keys.DEFAULT_THETA:
        why = f"{who.name}'s training code takes 10000 whatever rope_theta says; servers read it"
        found.append(Doubt("rope", rope_keys.DEFAULT_THETA, theta, why))
    if who.name == "eagle" and theta != rope_keys.DEFAULT_THETA:
        why = "EAGLE's inference code reads rope_theta, its training code takes 10000 always"
        found.append(Doubt("rope", theta, rope_keys.DEFAULT_THETA, why))
    if two := rope_keys.conflict(config, where):
        why = "rope_theta stands twice, with two values; stacks differ in which they take"
        found.append(Doubt("rope", *two, why))
    return tuple(found)


def _trained(rope: Rope, rule: _Trainer) -> Rope:
    """The rope that the trainer's code computes under a config that says ``rope``."""
    if rule.theta == "10000":
        rope = replace(rope, theta=rope_keys.DEFAULT_THETA)
    whole = rule.partial == "all" or (rule.partial == "scaled" and not rope.scaling)
    return replace(rope, partial=1.0) if whole else rope


def _refuse_other_forms(nested: dict[str, Any], where: Any) -> None:
    """Flags of ModelOpt and TensorRT-LLM that make it another drafter, which no Wiring holds."""
    for key, usual in (
        ("use_input_layernorm_in_first_layer", True),
        ("use_mtp_layernorm", False),
        ("eh_proj_before_attn", False),
    ):
        value = flag(nested, key, where)
        if value is not None and value is not usual:
            raise InputError(
                f"{where}: {NESTED}.{key} is {str(value).lower()}: a drafter of another form, "
                "which is not read here"
            )


def _after_the_layer(
    config: dict[str, Any], nested: dict[str, Any], who: Recognised, where: Any
) -> tuple[Literal["pre_norm", "post_norm"], bool]:
    """What is fed back, and whether the final norm stands before the head."""
    rule, value = TRAINERS[who.name], flag(config, "norm_output", where)
    last = flag(nested, "use_last_layernorm", where)
    head_norm = last is not False if rule.head_norm == "key" else True
    if rule.feedback == "pre_norm" or value is None:
        return "pre_norm", head_norm
    if rule.feedback == "by version" and who.version == "":
        raise InputError(
            f"{where}: norm_output is {str(value).lower()} in a folder that looks like SpecForge's "
            f"({who.why}). Before its pull request 879 (2026-09-15) the key switched the norm "
            "before lm_head and the fed-back state was never normed; since then it says that the "
            "fed-back state is. The folder does not tell which: give --trainer "
            "specforge@before-879 or specforge@since-879"
        )
    if who.version == "before-879":
        return "pre_norm", value
    return ("post_norm" if value else "pre_norm"), head_norm


def _pre_fc_norm(
    config: dict[str, Any], nested: dict[str, Any], layout: Layout, where: Any
) -> Literal["none", "whole", "per_tap"]:
    """By tensors; by flags where there are none: loading then names the tensor that is missing."""
    whole = any(flag(level, "norm_before_fc", where) for level in (config, nested))
    each = any(
        flag(level, key, where) for level in (config, nested) for key in ("fc_norm", "use_aux_norm")
    )
    tensors = ("input_norm.weight" in layout, "fc_norm.0.weight" in layout)
    if any(tensors):
        whole, each = tensors
    if whole and each:
        raise InputError(
            f"{where}: expected one norm before fc, over the whole input or one per tap, found "
            "both; no stack trains both at once"
        )
    return "whole" if whole else "per_tap" if each else "none"


def _vocabulary(
    checkpoint: Checkpoint, layout: Layout, config: dict[str, Any], where: Any
) -> Literal["offset", "identity"]:
    """Identity where the head has a row for each of the target's tokens and no table is there."""
    vocabulary, said = (count(config, key, where) for key in ("vocab_size", "draft_vocab_size"))
    if "lm_head.weight" in layout:
        rows = checkpoint.info(layout.sources["lm_head.weight"].name).shape[:1]
        if said is not None and rows and rows[0] != said:
            raise InputError(f"{where}: draft_vocab_size is {said}, but lm_head has {rows[0]} rows")
        said = rows[0] if rows else said
    if "d2t" in layout:
        return "offset"
    return "identity" if said is None or said == vocabulary else "offset"


def _head(layout: Layout, config: dict[str, Any], where: Any) -> Literal["own", "target", "tied"]:
    """A head in the file is the one that was trained, whatever a copied flag says."""
    tied = flag(config, "tie_word_embeddings", where)
    if "lm_head.weight" in layout:
        return "own"
    return "tied" if tied and "embed_tokens.weight" in layout else "target"


_MEANT: Mapping[tuple[str, str], tuple[Literal["output", "boundary"], str]] = {
    ("draftprobe", "top"): ("boundary", "draftprobe's trainer writes boundaries at top level"),
    ("specforge", "nested"): (
        "output",
        "SpecForge hands the ids to SGLang, where an id is a layer's output on most families",
    ),
    ("speculators", "top"): ("boundary", "speculators hands the ids to vLLM as they stand"),
    ("modelopt", "nested"): ("output", "ModelOpt hooks the output of each layer that is named"),
    ("torchspec", "nested"): ("output", "TorchSpec's ids are outputs; it adds 1 for vLLM"),
    ("angelslim", "nested"): ("output", "AngelSlim's ids are outputs (embed_offset 1)"),
}
"""What a trainer means by a list at a level, and how that is known: read, not executed."""


def claims(
    checkpoint: Checkpoint,
    layers: int | None,
    trainer: str | None = None,
    family: str | None = None,
) -> tuple[TapClaim, ...]:
    """Every list of layer ids in the config with its readings; empty where there is none.

    Args:
        checkpoint: the folder.
        layers: L of the target; None leaves the ids' upper end unchecked.
        trainer: see :func:`parse`.
        family: the target's ``model_type``; SpecForge's ids depend on it.

    Raises:
        InputError: a list that is none of integers.
    """
    config, where = checkpoint.config, checkpoint.folder / "config.json"
    who = parse_trainer(trainer) if trainer else recognise(checkpoint, layout_of(checkpoint))
    nested = part(config, NESTED, where) or {}
    found: list[TapClaim] = []
    places: tuple[tuple[Literal["top", "nested"], dict[str, Any], str], ...]
    places = (("top", config, KEY), ("nested", nested, f"{NESTED}.{KEY}"))
    for level, holder, key in places:
        ids = layer_ids(holder, where)
        if ids is not None:
            claim = _claim(key, level, tuple(ids), layers, who, checkpoint)
            if who.name == "specforge" and level == "nested" and family and layers:
                claim = _by_sglang(claim, family, layers)
            found.append(claim)
    mark = part(config, MARK, where) or {}
    if KEY in mark:
        taps = tuple(layer_ids(mark, where) or ())
        fits = _existing(taps, layers)
        why = "boundaries that draftprobe's conversion noted"
        found.append(TapClaim(f"{MARK}.{KEY}", "mark", taps, None, fits, fits, why))
    return tuple(found)


def _claim(
    key: str,
    level: Literal["top", "nested"],
    ids: tuple[int, ...],
    layers: int | None,
    who: Recognised,
    checkpoint: Checkpoint,
) -> TapClaim:
    output, boundary = _existing(tuple(i + 1 for i in ids), layers), _existing(ids, layers)
    rule, why = _MEANT.get((who.name, level), (None, f"no rule for {who.name} at this level"))
    exported = who.name == "torchspec" and not any(
        name.startswith("midlayer.") for name in checkpoint.tensors
    )
    if exported and checkpoint.config.get("model_type") == "kimi_k2":
        rule, why = None, "TorchSpec's export for vLLM adds 1 to the ids of kimi_k2, or does not"
    meant = {"output": output, "boundary": boundary, None: None}[rule]
    if rule is not None and meant is None:
        why += f"; that cannot be here, as the target has {layers} layers"
    return TapClaim(key, level, ids, output, boundary, meant, why)


def _by_sglang(claim: TapClaim, family: str, layers: int) -> TapClaim:
    """What SpecForge means on this target: what SGLang's rules for its family agree on."""
    found = sglang.meanings(claim.ids, family, layers)
    if len(found) == 1:
        [(taps, why)] = found.items()
        why = f"SpecForge hands the ids to SGLang: {why}"
        taps = tuple(sorted(taps))  # its states arrive in the order of the layers
        return replace(claim, meant=_existing(taps, layers), why=why)
    told = ", or ".join(found.values()) or f"no rule for {family} targets is known here"
    more = "by version, " if found else ""
    return replace(claim, meant=None, why=f"SpecForge hands the ids to SGLang: {more}{told}")


def _existing(taps: tuple[int, ...], layers: int | None) -> tuple[int, ...] | None:
    """The boundaries, or None where one of them is none: below h[0] or beyond h[L]."""
    good = all(tap >= 0 and (layers is None or tap <= layers) for tap in taps)
    return taps if good else None
