"""A transformers target: where its boundaries lie, and the hooks that record them.

Boundaries are found by structure, so wrappers that hold a language model inside work unchanged;
reads embedding rows from a folder without loading the model. Knows no drafter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from draftprobe.dialects.families import text_part
from draftprobe.drafter.checkpoint import open_checkpoint, read_json
from draftprobe.drafter.wiring import Tap, check_taps
from draftprobe.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from draftprobe.states.record import States

EMBEDDING_NAMES = (".embed_tokens.weight", ".wte.weight", ".word_embeddings.weight")
HEAD_NAMES = (".lm_head.weight", ".embed_out.weight")
FINAL_NORM_NAMES = (
    ".model.norm.weight",
    ".language_model.norm.weight",
    ".ln_f.weight",
    ".final_layernorm.weight",
)
OTHER_TOWERS = ("vision", "visual", "audio", "projector")
TOKENIZER_FILES = ("*token*", "vocab*", "*piece*", "tekken*")


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no warnings from transformers while a model loads."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@dataclass(frozen=True, slots=True)
class Structure:
    """The parts of a causal model that bound its residual stream."""

    layers: nn.ModuleList
    norm: nn.Module

    def boundaries(self) -> tuple[Tap, ...]:
        """Every boundary of this target: h[0]..h[L], then h[N]."""
        return (*range(len(self.layers) + 1), "N")


@dataclass(frozen=True)
class Target:
    """A loaded causal model with its tokenizer (None where the folder has none)."""

    model: PreTrainedModel
    tokenizer: Any
    structure: Structure
    name: str

    @property
    def text_config(self) -> Any:
        """The language model's own config, inside a wrapper's."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def device(self) -> torch.device:
        """Where inputs go."""
        return self.model.device


def load_target(
    name: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> Target:
    """Load a transformers folder or hub id for capture or decoding, in evaluation mode.

    Raises:
        InputError: it cannot be loaded, weights are missing, or no decoder stack is found in it.
    """
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoTokenizer,
    )

    folder = Path(name)
    local = folder.exists() or str(name).startswith((".", "/", "~"))
    if local and not (folder / "config.json").is_file():
        raise InputError(
            f"{folder}: expected a transformers folder with config.json, found none; check the path"
        )
    common = {"trust_remote_code": trust_remote_code}
    try:
        with quiet():
            config = AutoConfig.from_pretrained(str(name), **common)
            causal = type(config) in AutoModelForCausalLM._model_mapping
            auto: Any = (
                AutoModelForCausalLM if causal or trust_remote_code else AutoModelForImageTextToText
            )
            model, loading = auto.from_pretrained(
                str(name), dtype=dtype, output_loading_info=True, **common
            )
    except Exception as error:  # transformers raises many kinds; each is told, none is hidden
        raise InputError(
            f"{name}: cannot be loaded as a causal model: {_first_line(error)}"
        ) from error
    missing = sorted(loading["missing_keys"])
    if missing:  # transformers fills them with random numbers
        raise InputError(
            f"{name}: expected weights for all of {type(model).__name__}, found none for "
            f"{len(missing)} tensors ({', '.join(missing[:3])}, ...); is the download complete?"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(name), **common)
    except (OSError, ValueError, KeyError, ImportError):
        tokenizer = None
    if folder.is_dir() and not any(any(folder.glob(files)) for files in TOKENIZER_FILES):
        tokenizer = None  # transformers makes an empty one up for some families
    model = model.to(device).eval()
    return Target(model, tokenizer, find_structure(model), str(name))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def find_structure(model: nn.Module) -> Structure:
    """The decoder layers and final norm of a causal model, found by structure.

    The decoder is the module that owns both the input embedding and a ModuleList of as many
    layers as the text config says; its final norm is its last direct child that holds nothing but
    vectors of the hidden size.

    Raises:
        InputError: no such module (say, an encoder-decoder model).
    """
    config: Any = model.config
    text = config.get_text_config(decoder=True)
    count, width = text.num_hidden_layers, text.hidden_size
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    for owner in model.modules():
        children = list(owner.children())
        if not any(child is embedding for child in children):
            continue
        stacks = [c for c in children if isinstance(c, nn.ModuleList) and len(c) == count]
        norms = [child for child in children if _is_norm(child, width)]
        if len(stacks) == 1 and norms:
            return Structure(stacks[0], norms[-1])
    raise InputError(
        f"{type(model).__name__}: expected a decoder of {count} layers with an embedding and a "
        "final norm, found none; this model class is not supported for capture"
    )


def _is_norm(module: nn.Module, width: int) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and all(parameter.shape == (width,) for parameter in parameters)


@dataclass
class Recorder:
    """Records boundaries of every forward pass while its context is open.

    ``h[k]`` for k < L is what enters decoder layer k, ``h[L]`` what enters the final norm, ``h[N]``
    what leaves it. Each pass appends one tensor [batch, tokens, H] per boundary to ``passes``.
    """

    structure: Structure
    taps: tuple[Tap, ...]
    dtype: torch.dtype | None = None
    storage: str | None = None
    passes: dict[Tap, list[torch.Tensor]] = field(default_factory=dict)
    _handles: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_taps(self.taps, len(self.structure.layers))

    def __enter__(self) -> Recorder:
        layers, norm = self.structure.layers, self.structure.norm
        for tap in dict.fromkeys(self.taps):
            self.passes[tap] = []
            if tap == "N":
                handle = norm.register_forward_hook(self._leaving)
            else:
                module = layers[tap] if tap < len(layers) else norm
                entering = partial(self._entering, tap)
                handle = module.register_forward_pre_hook(entering, with_kwargs=True)
            self._handles.append(handle)
        return self

    def _leaving(self, _module: nn.Module, _args: Any, output: torch.Tensor) -> None:
        self._keep("N", output)

    def _entering(self, tap: Tap, _module: nn.Module, args: Any, kwargs: Any) -> None:
        self._keep(tap, args[0] if args else kwargs["hidden_states"])

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _keep(self, tap: Tap, state: torch.Tensor) -> None:
        if state.dim() != 3:
            raise InputError(
                f"boundary {tap}: expected a residual stream [batch, tokens, H], found shape "
                f"{tuple(state.shape)}; this model class is not supported for capture"
            )
        kept = state.detach().to(
            device=self.storage or state.device, dtype=self.dtype or state.dtype
        )
        self.passes[tap].append(kept.clone() if kept.data_ptr() == state.data_ptr() else kept)

    def take(self) -> dict[Tap, torch.Tensor]:
        """All passes joined along tokens, [batch, tokens, H] per boundary; clears the record."""
        joined: dict[Tap, torch.Tensor] = {
            tap: torch.cat(states, dim=1) for tap, states in self.passes.items()
        }
        for states in self.passes.values():
            states.clear()
        return joined


def text_config(folder: Path) -> dict[str, Any]:
    """The language model's part of a target folder's ``config.json`` (wrappers nest it)."""
    return text_part(read_json(folder / "config.json"))


def config_digest(config: Any) -> str:
    """SHA-256 of what makes two targets alike: sizes and architecture, not paths or versions."""
    keys = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size",
            "num_attention_heads", "num_key_value_heads", "rms_norm_eps")  # fmt: skip
    data = config if isinstance(config, dict) else config.to_dict()
    text = json.dumps({key: data.get(key) for key in keys}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_belongs(folder: Path, states: States) -> None:
    """Raise InputError unless the target in ``folder`` is built like the one that was captured.

    Only sizes and the family can be compared; another checkpoint of the same build passes.
    """
    where, facts = folder / "config.json", states.provenance
    text = text_part(read_json(where))
    captured = {
        "model_type": facts.model_type,
        "num_hidden_layers": facts.layers,
        "hidden_size": facts.hidden_size,
        "vocab_size": facts.vocab_size,
    }
    odd = [key for key, value in captured.items() if text.get(key, value) != value]
    if odd:
        told = ", ".join(f"{key} {text[key]!r}, states of {captured[key]!r}" for key in odd)
        raise InputError(
            f"{where}: expected the target that {states.path} was captured from, found {told}"
        )


def embedding_table(folder: str | Path) -> torch.Tensor:
    """The target's input embedding [V, H], mapped from its folder; rows are read when used.

    Raises:
        InputError: the folder has no safetensors weights or no single embedding table.
    """
    return _language_tensor(folder, EMBEDDING_NAMES)


def head_table(folder: str | Path) -> torch.Tensor:
    """The target's lm_head [V, H], mapped; its embedding table where the two are tied."""
    names = open_checkpoint(folder).tensors
    if any(f".{name}".endswith(HEAD_NAMES) for name in names):
        return _language_tensor(folder, HEAD_NAMES)
    return embedding_table(folder)


def final_norm(folder: str | Path) -> torch.Tensor:
    """The weight [H] of the norm between the last layer and the head."""
    return _language_tensor(folder, FINAL_NORM_NAMES)


def _language_tensor(folder: str | Path, endings: tuple[str, ...]) -> torch.Tensor:
    checkpoint = open_checkpoint(folder)
    found = [name for name in checkpoint.tensors if f".{name}".endswith(endings)]
    text = [name for name in found if not any(part in name for part in OTHER_TOWERS)]
    if len(text) != 1:
        wanted = " or ".join(ending[1:] for ending in endings)
        raise InputError(f"{folder}: expected one tensor {wanted}, found {text or 'none'}")
    return checkpoint.read(text[0])
