"""llama.cpp: what becomes of a drafter's folder at conversion and loading. No taps.

The converter takes a folder for an EAGLE-3 drafter by ``draft_vocab_size`` and one layer. Read at
commit 0274f0fc; nothing was executed. That a tensor without a place is an error, at conversion or
at loading, is inferred.
"""

from __future__ import annotations

from collections.abc import Iterator

from draftprobe.dialects.ids import Rule
from draftprobe.dialects.llamacpp import NAME, READ
from draftprobe.dialects.loading import (
    HEADS,
    Folder,
    compare,
    layer_parameters,
    unread_ids,
    width,
)
from draftprobe.dialects.reading import Effect, Target
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout, layer_config

_ARCHITECTURES = frozenset({
    "Eagle3DraftModel", "Eagle3Speculator", "LlamaForCausalLM", "LlamaForCausalLMEagle3",
})  # fmt: skip

_CONVERTER = Rule(
    text="the drafter's tensors and a few keys are converted",
    source=f"llama.cpp conversion/llama.py at {READ}",
    how="read",
)
_GRAPH = Rule(
    text="the graph of one layer is fixed",
    source=f"llama.cpp src/models/eagle3.cpp at {READ}",
    how="read",
)
_NO_PLACE = Rule(
    text="a tensor without a place is an error",
    source=f"llama.cpp conversion/llama.py, src/models/eagle3.cpp at {READ}",
    how="inferred",
)


def effects(
    checkpoint: Checkpoint, layout: Layout, target: Target, version: str
) -> tuple[Effect, ...]:
    """What llama.cpp ignores, drops, defaults or refuses of this folder."""
    folder = Folder(NAME, version, layer_config(checkpoint.config), checkpoint, target)
    return (
        *unread_ids(folder, (), _CONVERTER, "llama.cpp's converter writes 2, L // 2, L - 3"),
        *_recognised(folder),
        *_keys(folder),
        *_tensors(folder),
        *_sharing(folder),
    )


def _recognised(folder: Folder) -> Iterator[Effect]:
    names = folder.checkpoint.config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        text = f"llama.cpp's converter has no drafter class for {name!r}"
        yield folder.effect("refuses", "architectures", text, _CONVERTER)
    if "draft_vocab_size" not in folder.config:
        text = "without draft_vocab_size the converter takes the folder for a plain Llama model"
        yield folder.effect("refuses", "draft_vocab_size", text, _CONVERTER)
    layers = folder.count("num_hidden_layers")
    if layers is not None and layers != 1:
        text = f"the converter knows drafters of one layer, the config says {layers}"
        yield folder.effect("refuses", "num_hidden_layers", text, _CONVERTER)


def _keys(folder: Folder) -> Iterator[Effect]:
    if folder.flag("norm_output"):
        text = "llama.cpp feeds back the state before the final norm, whatever norm_output says"
        yield folder.effect("ignores key", "norm_output", text, _GRAPH, "feedback", "pre_norm")


def _tensors(folder: Folder) -> Iterator[Effect]:
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    parameters = ["fc.weight", "norm.weight", *layer_parameters(0, norms, HEADS)]
    names = compare(folder.checkpoint.tensors, _rename, parameters)
    for name in names.left:
        text = f"llama.cpp's drafter has no place for {name}"
        yield folder.effect("refuses", name, text, _NO_PLACE)
    for name in names.unfilled:
        text = f"llama.cpp's drafter requires {name}"
        yield folder.effect("refuses", name, text, _GRAPH)
    own = folder.checkpoint.config.get("target_hidden_size")
    hidden = own if type(own) is int and own > 0 else folder.target.hidden
    yield from width(folder, 3, hidden, _GRAPH)


def _rename(name: str) -> str | None:
    if name in ("d2t", "t2d", "lm_head.weight", "embed_tokens.weight", "model.embed_tokens.weight"):
        return None  # t2d serves training alone; the others are told with what is shared
    for prefix in ("midlayer.", "layers.0.", "model.layers.0."):
        if name.startswith(prefix):
            return f"layers.0.{name.removeprefix(prefix)}"
    return "norm.weight" if name == "model.norm.weight" else name


def _sharing(folder: Folder) -> Iterator[Effect]:
    draft, vocabulary = folder.rows("lm_head.weight"), folder.target.vocabulary
    own, hidden = folder.holds("embed_tokens.weight"), folder.count("hidden_size")
    if own is None and hidden not in (None, folder.target.hidden):
        text = f"no embed_tokens comes, and the target's table is not {hidden} wide"
        yield folder.effect("refuses", "embed_tokens.weight", text, _NO_PLACE)
    if draft is None:
        text = "no lm_head comes: llama.cpp uses the target's head"
        yield folder.effect("defaults", "lm_head.weight", text, _GRAPH, "head", "target")
    elif folder.holds("d2t") is None and draft != vocabulary:
        text = f"without d2t a head of {vocabulary} rows is expected, the file has {draft}"
        yield folder.effect("refuses", "lm_head.weight", text, _GRAPH)
