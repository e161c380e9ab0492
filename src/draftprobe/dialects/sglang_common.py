"""SGLang: what its two drafter classes have in common: names, sharing, and where it is known from.

Both leave what they do not know where it is, and take the target's embedding. Knows neither class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from draftprobe.dialects.ids import KEY, Rule
from draftprobe.dialects.loading import MOST, Folder, Names, nested_ids, no_map
from draftprobe.dialects.reading import Effect
from draftprobe.dialects.sglang import EXECUTED, READ
from draftprobe.dialects.version import version_key

LLAMA, LATENT_ATTENTION = "llama_eagle3", "kimi_k25_eagle3"
"""The files under ``srt/models`` that hold the classes."""

POST = "post_attention_layernorm"
_OPENED = EXECUTED | {f"0.5.{number}" for number in (14, 15, 16, 17, 18, 19, 21, 22)}


def rule_of(folder: Folder, file: str, executed: bool = False) -> Rule:
    """The record of how this class is known."""
    version = folder.version
    known = "executed" if executed and version in EXECUTED else "read"
    return Rule(
        text="unknown names are skipped, unfilled parameters stay as they are",
        source=f"sglang srt/models/{file}.py",
        how=known if version in _OPENED else "inferred",
    )


def ids_rule(version: str) -> Rule:
    """The record of where ids are read from, at this version."""
    known = "executed" if version == READ else "read" if version in EXECUTED else "inferred"
    return Rule(
        text="ids are read inside eagle_config; whatever fails there means none",
        source="sglang srt/model_executor/model_runner.py, at 0.5.23 model_runner_components/"
        "spec_aux_hidden_state.py",
        how=known,
    )


def has(folder: Folder, since: str) -> bool:
    """Whether this version is as new as the one that brought something."""
    return version_key(folder.version) >= version_key(since)


def slots_of(folder: Folder, file: str) -> int:
    """How many states fc is built for."""
    ids, top = nested_ids(folder.config), folder.config.get(KEY)
    if file == LATENT_ATTENTION:
        ids = top if ids is None else ids
    elif count := folder.count("num_aux_hidden_states"):
        return count
    return len(ids) if isinstance(ids, list) and ids else 3


def common(folder: Folder, whole: bool, per_tap: int) -> list[str]:
    """Parameters outside the layers; the target fills the embedding unless widths differ."""
    return [
        "fc.weight",
        "norm.weight",
        *(["embed_tokens.weight"] if keeps_embedding(folder) else []),
        *(["fc.bias"] if folder.flag("bias") else []),
        *(["input_norm.weight"] if whole else []),
        *(f"fc_norm.{tap}.weight" for tap in range(min(per_tap, MOST))),
    ]


def hidden_in(folder: Folder) -> int | None:
    """The width of one state, as far as the config says it."""
    return folder.count("target_hidden_size") or folder.count("hidden_size")


def keeps_embedding(folder: Folder) -> bool:
    """``set_embed`` leaves the drafter's own table where the widths differ."""
    wide = folder.count("target_hidden_size")
    return wide is not None and wide != folder.count("hidden_size")


def without_fc(folder: Folder, slots: int, rule: Rule) -> Iterator[Effect]:
    """What is skipped where what arrives is as wide as the embedding, as with a single tap.

    Both classes take such a state for fc's output, which is fed back in later steps.
    """
    hidden, own = hidden_in(folder), folder.count("hidden_size")
    if hidden is None or own is None or slots * hidden != own:
        return
    for name in sorted(folder.checkpoint.tensors):
        if re.search(r"(^|\.)(fc|input_norm|fc_norm\.\d+|aux_norm_\w+)\.(weight|bias)$", name):
            text = (
                f"what arrives is {own} wide, as the embedding is: SGLang takes it for fc's "
                f"output and never applies {name}"
            )
            wired = () if re.search(r"(^|\.)fc\.", name) else ("pre_fc_norm", "none")
            yield folder.effect("ignores tensor", name, text, rule, *wired)


def keys(folder: Folder, rule: Rule) -> Iterator[Effect]:
    """Keys that neither class reads."""
    kinds = folder.config.get("layer_types")
    if isinstance(kinds, list) and "sliding_attention" in kinds:
        text = "SGLang's drafter class does not read layer_types: its layers attend to everything"
        yield folder.effect("ignores key", "layer_types", text, rule)
    if folder.flag("norm_before_residual"):
        yield folder.effect(
            "ignores key",
            "norm_before_residual",
            "SGLang does not read norm_before_residual: the residual stream starts from fc's raw "
            "output",
            rule,
            "residual",
            "raw",
        )


def leftovers(folder: Folder, names: Names, pre_fc: str | None, rule: Rule) -> Iterator[Effect]:
    """What is told of names without a parameter, and of parameters without a name."""
    for name in names.left:
        norm = re.search(r"(^|\.)(input_norm|fc_norm|aux_norm_\w+)\.", name)
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            continue  # told with what takes their place
        text = f"SGLang has no parameter for {name} under this config and skips it"
        if re.search(r"layers\.[1-9]\d*\.input_layernorm", name):
            text = f"no later layer of SGLang's uses {name}: what it applies there is hidden_norm"
        wired = ("pre_fc_norm", pre_fc) if norm else ()
        yield folder.effect("ignores tensor", name, text, rule, *wired)
    for name in names.unfilled:
        if name.startswith(("input_norm", "fc_norm")) or name == "lm_head.weight":
            continue  # told with the flags, and with the head
        what = "ones" if "norm" in name else "what the memory held"
        text = f"no tensor fills SGLang's {name}: it stays at {what}, and nothing is said"
        yield folder.effect("leaves at initial value", name, text, rule)


def sharing(folder: Folder, tied: bool, rule: Rule, refused: bool = False) -> Iterator[Effect]:
    """What takes the place of the drafter's own embedding, head and map."""
    own = folder.holds("embed_tokens.weight")
    if own and not keeps_embedding(folder):
        text = (
            "SGLang replaces the drafter's own embedding by the target's (set_embed), whether or "
            "not they differ"
        )
        yield folder.effect("replaces", own, text, rule, "embedding", "target")
    head, rows = folder.holds("lm_head.weight"), folder.rows("lm_head.weight")
    size = folder.count("draft_vocab_size") or folder.count("vocab_size")
    if tied:
        text = (
            "tie_word_embeddings is true: the embedding table is the head, cut to the draft "
            "vocabulary, and the drafter's own lm_head is dropped"
        )
        yield folder.effect("replaces", head or "lm_head.weight", text, rule, "head", "tied")
    elif refused:
        pass
    elif size is not None and rows not in (None, size):
        text = f"SGLang builds a head of {size} rows, the file has {rows}: loading fails"
        yield folder.effect("refuses", "lm_head.weight", text, rule)
    elif folder.config.get("draft_vocab_size") is None:
        if head:
            text = "without a draft_vocab_size the target's head replaces the drafter's own"
            yield folder.effect("replaces", head, text, rule, "head", "target")
    elif head is None:
        text = "draft_vocab_size is set but no lm_head comes: the head stays uninitialised"
        yield folder.effect("leaves at initial value", "lm_head.weight", text, rule)
    yield from no_map(folder, "SGLang takes draft ids for target ids", rule)
