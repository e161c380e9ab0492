"""Whose folder it is, by what stands in it: names of keys, of tensors and of the architecture.

Evidence in words, and ``unknown`` where there is none. What a trainer meant is in ``trainers``.
Sources: the exports of SpecForge git a6b6b023, ModelOpt git 03713649 (``hf_spec_export``),
TorchSpec git 0db7eac0 (``convert_to_hf``), AngelSlim git b99215f8, speculators wheel 0.9.0, EAGLE
git cb7e084; read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from draftprobe.dialects.ids import NESTED
from draftprobe.dialects.keys import part
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout
from draftprobe.errors import InputError

NAMES = (
    "draftprobe", "eagle", "specforge", "speculators", "modelopt", "torchspec", "angelslim",
    "unknown",
)  # fmt: skip
"""Trainers that are told apart."""

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


_MODELOPT_KEYS = ("next_layer_regular", "parallel_draft_step", "parallel_draft_heads_num_layers")


def parse_trainer(text: str) -> Recognised:
    """``NAME`` or ``NAME@before-879`` as a user gives it.

    Raises:
        InputError: an unknown name or version.
    """
    name, _, version = text.partition("@")
    if name not in NAMES or version not in ("", "before-879", "since-879"):
        raise InputError(
            f"--trainer: expected one of {', '.join(NAMES)}, or specforge@before-879 or "
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
    if name not in NAMES or norm_output not in (None, "feedback"):
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
