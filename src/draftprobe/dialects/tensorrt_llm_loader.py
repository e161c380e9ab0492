"""TensorRT-LLM: what becomes of a drafter's folder: keys, tensors, embedding and head. No taps.

Weights are fetched module by module: a name that no module asks for is dropped without a word, a
parameter that no name fills is a KeyError. Read at commit 00679c66 of ``modeling_speculative.py``
and 000a01de of ``modeling_utils.py``; nothing was executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from draftprobe.dialects.ids import Rule, nested_of
from draftprobe.dialects.loading import (
    HEADS,
    LATENT,
    LATENT_NORMS,
    Folder,
    compare,
    layer_parameters,
    pre_fc_norm,
    unread_ids,
    width,
)
from draftprobe.dialects.reading import Effect, Target
from draftprobe.dialects.tensorrt_llm import NAME, OPTION, RULE
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout

_RULE = Rule(
    text="unasked names are dropped, unfilled parameters are a KeyError",
    source="tensorrt_llm/_torch/models/modeling_speculative.py at 00679c66, modeling_utils.py at "
    "000a01de",
    how="read",
)


def effects(
    checkpoint: Checkpoint, layout: Layout, target: Target, version: str
) -> tuple[Effect, ...]:
    """What TensorRT-LLM ignores, drops, defaults, replaces or refuses of this folder.

    What it makes of a folder in speculators format is not known: of that, the ids alone are told.
    """
    folder = Folder(NAME, version, checkpoint.config, checkpoint, target)
    found = unread_ids(folder, (), RULE, f"TensorRT-LLM takes ids from the option {OPTION}")
    if "transformer_layer_config" in checkpoint.config:
        text = "what TensorRT-LLM makes of a folder in speculators format is not known here"
        return (*found, folder.effect("is not known", "transformer_layer_config", text, _RULE))
    return (*found, *_keys(folder), *_tensors(folder), *_sharing(folder))


def _keys(folder: Folder) -> Iterator[Effect]:
    if folder.flag("norm_before_residual"):
        text = "TensorRT-LLM does not read norm_before_residual: the residual is fc's raw output"
        wire = ("residual", "raw")
        yield folder.effect("ignores key", "norm_before_residual", text, _RULE, *wire)
    if folder.flag("norm_before_fc") and not nested_of(folder.config).get("norm_before_fc"):
        text = "TensorRT-LLM reads norm_before_fc inside eagle_config alone"
        wire = ("pre_fc_norm", _served(folder))
        yield folder.effect("ignores key", "norm_before_fc", text, _RULE, *wire)
    written = folder.count("draft_vocab_size")
    size, draft = written or folder.count("vocab_size"), folder.rows("lm_head.weight")
    if draft is not None and size is not None and draft != size:
        text = f"TensorRT-LLM builds a head of {size} rows, the file has {draft}"
        subject = "lm_head.weight" if written else "draft_vocab_size"
        yield folder.effect("refuses", subject, text, _RULE)


def _flags(folder: Folder) -> tuple[bool, bool]:
    """The whole norm and the norms per tap; where both are set, the latter alone is applied."""
    per_tap = folder.flag("fc_norm")
    return bool(nested_of(folder.config).get("norm_before_fc")), per_tap


def _served(folder: Folder) -> str | None:
    whole, per_tap = _flags(folder)
    return pre_fc_norm(whole and not per_tap, per_tap)


def _tensors(folder: Folder) -> Iterator[Effect]:
    layers = folder.layers()
    names = compare(
        folder.checkpoint.tensors,
        lambda name: _rename(name, layers),
        _parameters(folder, layers),
    )
    for name in names.left:
        if name == "embed_tokens.weight":
            continue  # told with what is shared
        norm = re.search(r"(^|\.)(input_norm|fc_norm)\.", name)
        text = f"no module of TensorRT-LLM's asks for {name} under this config: it is dropped"
        wire = ("pre_fc_norm", _served(folder)) if norm else ()
        yield folder.effect("ignores tensor", name, text, _RULE, *wire)
    for name in names.unfilled:
        text = f"no tensor fills TensorRT-LLM's {name}: a KeyError"
        yield folder.effect("refuses", name, text, _RULE)
    if folder.columns("fc.weight") != _hidden_in(folder):
        yield from width(folder, 3, _hidden_in(folder), _RULE)
    elif name := folder.holds("fc.weight"):
        text = (
            f"with one layer under {OPTION} TensorRT-LLM has no fc and drops the drafter's; with "
            "more, by default three, loading fails"
        )
        yield folder.effect("ignores tensor", name, text, _RULE)


def _hidden_in(folder: Folder) -> int | None:
    return folder.count("target_hidden_size") or folder.count("hidden_size")


def _parameters(folder: Folder, layers: int) -> list[str]:
    whole, per_tap = _flags(folder)
    latent = folder.count("kv_lora_rank") is not None
    attention = (*LATENT, *LATENT_NORMS) if latent else HEADS
    found = [
        "fc.weight",
        "norm.weight",
        *(["fc.bias"] if folder.flag("bias") else []),
        *(["input_norm.weight"] if whole else []),
        *([f"fc_norm.{tap}.weight" for tap in range(3)] if per_tap else []),
        *(["embed_tokens.weight"] if _hidden_in(folder) != folder.count("hidden_size") else []),
    ]
    regular = nested_of(folder.config).get("next_layer_regular", True)
    for number in range(layers):
        embedding = number == 0 or not regular
        norms = ("hidden_norm", "post_attention_layernorm")
        norms = ("input_layernorm", *norms) if embedding else norms
        found += layer_parameters(number, norms, attention)
        if folder.flag("attention_bias") and not latent:
            found += [f"layers.{number}.self_attn.{part}.bias" for part in HEADS]
        if folder.flag("mlp_bias"):
            found += [f"layers.{number}.mlp.{part}_proj.bias" for part in ("gate", "up", "down")]
    return found


def _rename(name: str, layers: int) -> str | None:
    if name in ("t2d", "d2t") or "lm_head" in name:
        return None  # t2d serves training alone; the others are told with what is shared
    if layers == 1:
        return re.sub(r"^midlayer\.(?!\d)", "layers.0.", name)
    return re.sub(r"^midlayer\.(\d+)\.", r"layers.\1.", name)


def _sharing(folder: Folder) -> Iterator[Effect]:
    own = folder.holds("embed_tokens.weight")
    shared = _hidden_in(folder) == folder.count("hidden_size")
    if own and shared:
        text = "TensorRT-LLM uses the target's embedding wherever the widths agree"
        yield folder.effect("replaces", own, text, _RULE, "embedding", "target")
    if folder.holds("lm_head.weight") is None:
        text = "no lm_head comes: TensorRT-LLM uses the target's head"
        yield folder.effect("defaults", "lm_head.weight", text, _RULE, "head", "target")
    size, draft = folder.count("vocab_size"), folder.count("draft_vocab_size")
    smaller = draft is not None and size is not None and draft != size
    found = folder.holds("d2t")
    if smaller and found is None:
        text = f"no d2t comes for {draft} of {size} tokens: a KeyError"
        yield folder.effect("refuses", "d2t", text, _RULE)
    if found and not smaller:
        text = "the config's draft vocabulary is its whole vocabulary: d2t is dropped"
        yield folder.effect("ignores tensor", found, text, _RULE, "vocabulary", "identity")
