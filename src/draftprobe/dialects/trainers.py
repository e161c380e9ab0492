"""Who trained a drafter, as far as its folder says, and what every wire but the taps meant there.

No tensor is read. Taps are given: one key means different layers to different trainers; what a
folder claims about them is in ``claims``. Sources, all read and not executed unless a rule says
otherwise: EAGLE git cb7e084, SpecForge git a6b6b023 and pull request 879, speculators wheel 0.9.0
(executed in the tests), ModelOpt git 03713649, TorchSpec git 11356816, AngelSlim git b99215f8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from draftprobe.dialects import rope_keys
from draftprobe.dialects.ids import NESTED
from draftprobe.dialects.keys import count, flag, layer_config, part
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout, layout_of
from draftprobe.drafter.wiring import Tap, Wiring
from draftprobe.errors import InputError

Version = Literal["", "before-879", "since-879"]
"""SpecForge's two meanings of ``norm_output``: before and since its pull request 879, merged on
2026-09-15. Empty: not known, or of no matter."""

MARK = "draftprobe_convert"
"""The key under which our own conversion says which layout it wrote."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """Whose folder it is, by what evidence in words; ``unknown`` is a value like the others."""

    name: str
    why: str
    version: Version = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


@dataclass(frozen=True, slots=True)
class Doubt:
    """A wire that the folder does not settle: what is taken, what else it may be, and why."""

    wire: str
    taken: Any
    other: Any
    why: str


@dataclass(frozen=True, slots=True)
class _Trainer:
    """What one trainer does with the keys that not all of them read.

    Attributes:
        residual: ``norm_before_residual`` decides it (absent: false), or it is always raw.
        feedback: ``norm_output`` decides it, or it is always the layer's output.
        head_norm: ``eagle_config.use_last_layernorm`` decides it, or it is always there.
        theta: the config's, or 10000 whatever it says.
    """

    residual: Literal["key", "raw"]
    feedback: Literal["key", "pre_norm", "by version"]
    head_norm: Literal["key", "always"]
    theta: Literal["config", "10000"]


TRAINERS: Mapping[str, _Trainer] = {
    "draftprobe": _Trainer("key", "key", "always", "config"),
    "eagle": _Trainer("raw", "pre_norm", "always", "config"),
    "specforge": _Trainer("raw", "by version", "always", "config"),
    "speculators": _Trainer("key", "key", "always", "config"),
    "modelopt": _Trainer("raw", "pre_norm", "key", "config"),
    "torchspec": _Trainer("raw", "key", "always", "config"),
    "angelslim": _Trainer("raw", "pre_norm", "always", "10000"),
    "unknown": _Trainer("key", "key", "always", "config"),
}
"""``unknown`` reads each key as its name says, as speculators and vLLM do."""

_MODELOPT_KEYS = ("next_layer_regular", "parallel_draft_step", "parallel_draft_heads_num_layers")
_ACTIVATIONS = ("silu", "swish")
_USELESS = re.compile(r"(^|\.)(rotary_emb\.|verifier_norm\.|verifier_lm_head\.)")


def parse_trainer(text: str) -> Recognised:
    """``NAME`` or ``NAME@before-879`` as a user gives it.

    Raises:
        InputError: an unknown name or version.
    """
    name, _, version = text.partition("@")
    if name not in TRAINERS or version not in ("", "before-879", "since-879"):
        raise InputError(
            f"--trainer: expected one of {', '.join(TRAINERS)}, or specforge@before-879 or "
            f"specforge@since-879, found {text!r}"
        )
    return Recognised(name, "given", version)


def recognise(checkpoint: Checkpoint, layout: Layout) -> Recognised:
    """Whose folder this is: the strongest evidence decides.

    Raises:
        InputError: a key that holds evidence is malformed.
    """
    config, where = checkpoint.config, checkpoint.folder / "config.json"
    nested = part(config, NESTED, where) or {}
    mark = part(config, MARK, where)
    if mark is not None:
        return _marked(mark, where)
    if "speculators_model_type" in config:
        return Recognised("speculators", "config.json has speculators_model_type")
    if "_torchspec_version" in config:
        return Recognised("torchspec", "config.json has _torchspec_version")
    for key in _MODELOPT_KEYS:
        if key in nested:
            return Recognised("modelopt", f"{NESTED}.{key}, which ModelOpt's export alone writes")
    if (checkpoint.folder / "golden.safetensors").is_file():
        return Recognised("draftprobe", "the folder carries a golden file")
    return _by_names(checkpoint, layout, nested)


def _marked(mark: dict[str, Any], where: Any) -> Recognised:
    name, norm_output = mark.get("to"), mark.get("norm_output")
    if name not in TRAINERS or norm_output not in (None, "feedback"):
        raise InputError(f"{where}: {MARK} names no layout that is known here; remove the key")
    version: Version = "since-879" if norm_output == "feedback" else ""
    return Recognised(str(name), f"config.json has {MARK}: converted by draftprobe", version)


def _by_names(checkpoint: Checkpoint, layout: Layout, nested: dict[str, Any]) -> Recognised:
    """By the architecture's name and by what tensors are there: weaker, and the words say so."""
    named = _architecture(checkpoint)
    middle = "midlayer" in layout.styles
    own, tables = "embed_tokens.weight" in layout, "d2t" in layout and "t2d" in layout
    if named == "Eagle3LlamaForCausalLM" and middle:
        return Recognised("angelslim", f"architecture {named} with tensors named midlayer.*")
    if named in ("LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"):
        if own and ("use_mtp_layernorm" in nested or "num_aux_hidden_states" in checkpoint.config):
            return Recognised(
                "torchspec", f"architecture {named}, its own embedding, and keys of its configs"
            )
        if middle and tables and not own:
            return Recognised(
                "specforge",
                f"architecture {named}, tensors named midlayer.*, d2t and t2d, no embedding: what "
                "its export writes",
            )
    if named in ("LlamaForCausalLM", "Qwen3ForCausalLM") and middle:
        return Recognised("eagle", f"architecture {named} with tensors named midlayer.*")
    return Recognised("unknown", f"architecture {named or 'not given'}: nothing names a trainer")


def _architecture(checkpoint: Checkpoint) -> str:
    names = checkpoint.config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


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
    _refuse_unread(config, nested, where)
    _refuse_unknown(checkpoint, layout)
    feedback, head_norm = _after_the_layer(config, nested, who, where)
    rope = rope_keys.read_rope(config, where, interleaved=layout.attention == "latent")
    normed = flag(config, "norm_before_residual", where) and rule.residual == "key"
    return Wiring(
        taps=taps,
        pre_fc_norm=_pre_fc_norm(config, nested, layout, where),
        half_order="embedding_first",
        embedding_norm=True,
        hidden_norm=True,
        residual="normed" if normed else "raw",
        head_norm=head_norm,
        feedback=feedback,
        token_shift=1,
        position_start=0,
        position_advance=1,
        rope=replace(rope, theta=rope_keys.DEFAULT_THETA) if rule.theta == "10000" else rope,
        vocabulary=_vocabulary(checkpoint, layout, config, where),
        embedding="own" if "embed_tokens.weight" in layout else "target",
        embedding_scale=1.0,
        head=_head(layout, config, where),
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
    theta = rope_keys.read_rope(config, where).theta
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


def _refuse_unread(config: dict[str, Any], nested: dict[str, Any], where: Any) -> None:
    """Facts that change the drafter and that no Wiring holds."""
    act = config.get("hidden_act")
    if act is not None and act not in _ACTIVATIONS:
        raise InputError(
            f"{where}: expected hidden_act to be one of {', '.join(_ACTIVATIONS)}, found "
            f"{str(act)[:60]!r}; another activation is not computed here"
        )
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and "sliding_attention" in kinds:
        raise InputError(
            f"{where}: layer_types has sliding_attention: a window, which is not computed here"
        )
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


def _refuse_unknown(checkpoint: Checkpoint, layout: Layout) -> None:
    """Tensors that mean nothing here may be half of the drafter: nothing is computed without them.

    Tables of the rotation and copies of the verifier's norm and head are of no use to a drafter.
    """
    unread = [name for name in layout.unknown if not _USELESS.search(name)]
    if unread:
        raise InputError(
            f"{checkpoint.folder}: expected an EAGLE-3 drafter's tensors (fc, one or more layers, "
            f"norm, lm_head, d2t), found also {', '.join(unread[:5])}; this layout is not read yet"
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
