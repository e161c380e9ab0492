"""Where each of a drafter's tensors lies, whatever its trainer named it. No torch, no tensor read.

One set of names inside: ``fc``, ``layers.{i}.self_attn.q_proj.weight``, ``norm``, ``lm_head``,
``d2t``. Knows how folders spell them, not what any engine does with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftprobe.drafter.checkpoint import Checkpoint, TensorInfo, read_tensor
from draftprobe.errors import InputError

if TYPE_CHECKING:
    import torch

_PREFIX = re.compile(r"^(?:draft_model\.|model\.)+")
_KNOWN = re.compile(
    r"fc\.(weight|bias)|input_norm\.weight|fc_norm\.\d+\.weight|norm\.weight|lm_head\.weight"
    r"|embed_tokens\.weight|d2t|t2d|mask_hidden"
    r"|layers\.\d+\.(input_layernorm|hidden_norm|post_attention_layernorm)\.weight"
    r"|layers\.\d+\.self_attn\.([qkvo]_proj\.(weight|bias)|[qk]_norm\.weight)"
    r"|layers\.\d+\.self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\.(weight|bias)"
    r"|layers\.\d+\.self_attn\.(q_a_layernorm|kv_a_layernorm)\.weight"
    r"|layers\.\d+\.mlp\.(gate|up|down)_proj\.(weight|bias)"
)
_LEGACY = {
    "aux_norm_low.weight": "fc_norm.0.weight",
    "aux_norm_mid.weight": "fc_norm.1.weight",
    "aux_norm_high.weight": "fc_norm.2.weight",
    "draft_id_to_target_id": "d2t",
}
_FUSED = re.compile(r"(.*\.)(qkv_proj|gate_up_proj|fused_qkv_a_proj_with_mqa)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor in a file, or the rows ``first`` to ``last`` of it (fused projections)."""

    name: str
    rows: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a folder keeps what a drafter is made of.

    Attributes:
        sources: inside name -> where it lies.
        unknown: names in the files that mean nothing here, sorted.
        twice: names in the files whose inside name another tensor has already, sorted.
        styles: how the folder spells: of ``midlayer``, ``layers``, ``model.``, ``draft_model.``,
            ``aux_norm``, ``fused``, ``hidden_norm in later layers``.
        layers: decoder layers.
        attention: ``heads`` (q, k, v projections) or ``latent`` (MLA: low-rank q and kv).
    """

    sources: Mapping[str, Source]
    unknown: tuple[str, ...]
    twice: tuple[str, ...]
    styles: frozenset[str]
    layers: int
    attention: str

    def __contains__(self, name: str) -> bool:
        return name in self.sources

    def shape(self, checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
        """Sizes of a tensor that must be there.

        Raises:
            InputError: it is not; the message names what is there instead.
        """
        source = self._source(checkpoint, name)
        shape = checkpoint.info(source.name).shape
        return shape if source.rows is None else (source.rows[1] - source.rows[0], *shape[1:])

    def read(self, checkpoint: Checkpoint, name: str) -> torch.Tensor:
        """A tensor under its inside name; see :meth:`shape` for errors."""
        source = self._source(checkpoint, name)
        return read_tensor(checkpoint.info(source.name), source.rows)

    def _source(self, checkpoint: Checkpoint, name: str) -> Source:
        if name not in self.sources:
            there = ", ".join(sorted(checkpoint.tensors)[:6]) or "none"
            raise InputError(
                f"{checkpoint.folder}: expected a tensor {name!r} (under any stack's name for it), "
                f"found {len(checkpoint.tensors)} others ({there}, ...)"
            )
        return self.sources[name]


def layer_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config with speculators' nested ``transformer_layer_config`` laid over the top level.

    ``hidden_size``, head counts and rope stand there in its format; without it, a plain copy.
    """
    nested = config.get("transformer_layer_config")
    return config | nested if isinstance(nested, dict) else dict(config)


def layout_of(checkpoint: Checkpoint) -> Layout:
    """The layout of an open folder.

    Raises:
        InputError: a fused projection cannot be split by the config's head counts.
    """
    sources: dict[str, Source] = {}
    unknown, twice, styles = [], [], set()
    for file_name, info in sorted(checkpoint.tensors.items()):
        name = _inside(file_name, styles)
        for part, source in _parts(name, file_name, info, checkpoint, styles):
            if not _KNOWN.fullmatch(part):
                unknown.append(file_name)
            elif part in sources:
                twice.append(file_name)
            else:
                sources[part] = source
    _rename_later_norms(sources, styles)
    numbers = {int(m[1]) for name in sources if (m := re.match(r"layers\.(\d+)\.", name))}
    latent = any(name.endswith("kv_a_proj_with_mqa.weight") for name in sources)
    return Layout(
        sources,
        tuple(dict.fromkeys(unknown)),
        tuple(twice),
        frozenset(styles),
        len(numbers),
        "latent" if latent else "heads",
    )


def _inside(name: str, styles: set[str]) -> str:
    prefix = _PREFIX.match(name)
    if prefix:
        styles.update(re.findall(r"draft_model\.|model\.", prefix[0]))
        name = name[prefix.end() :]
    if name in _LEGACY:
        styles.add("aux_norm" if name.startswith("aux_norm") else "draft_id_to_target_id")
        return _LEGACY[name]
    if middle := re.match(r"midlayer\.(?:(\d+)\.)?", name):
        styles.add("midlayer")
        return f"layers.{middle[1] or 0}.{name[middle.end() :]}"
    if name.startswith("layers."):
        styles.add("layers")
    return name


def _parts(
    name: str, file_name: str, info: TensorInfo, checkpoint: Checkpoint, styles: set[str]
) -> Iterator[tuple[str, Source]]:
    fused = _FUSED.fullmatch(name)
    if not fused:
        yield name, Source(file_name)
        return
    styles.add("fused")
    start, (stem, kind, ending) = 0, fused.groups()
    for part, rows in _split(kind, info, checkpoint):
        yield f"{stem}{part}.{ending}", Source(file_name, (start, start + rows))
        start += rows


def _split(kind: str, info: TensorInfo, checkpoint: Checkpoint) -> list[tuple[str, int]]:
    """How a fused projection's rows fall to its parts, in the order in which engines fuse them."""
    config, total = layer_config(checkpoint.config), info.shape[0] if info.shape else 0
    if kind == "gate_up_proj":
        parts = [("gate_proj", total // 2), ("up_proj", total // 2)]
    elif kind == "qkv_proj":
        heads = _count(config, "num_attention_heads")
        kv_heads = _count(config, "num_key_value_heads") or heads
        size = total // (heads + 2 * kv_heads) if heads else 0
        parts = [("q_proj", heads * size), ("k_proj", kv_heads * size), ("v_proj", kv_heads * size)]
    else:
        low = _count(config, "kv_lora_rank") + _count(config, "qk_rope_head_dim")
        parts = [("q_a_proj", total - low), ("kv_a_proj_with_mqa", low)]
    if sum(rows for _, rows in parts) != total or min(rows for _, rows in parts) <= 0:
        raise InputError(
            f"{info.file}: {info.name!r} has {total} rows, which the config's head counts do not "
            "split into its parts; expected num_attention_heads, num_key_value_heads (or "
            "kv_lora_rank, qk_rope_head_dim) of this drafter in config.json"
        )
    return parts


def _count(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    return value if type(value) is int and value > 0 else 0


def _rename_later_norms(sources: dict[str, Source], styles: set[str]) -> None:
    """In layers after the first, SGLang and TensorRT-LLM name the input's norm ``hidden_norm``."""
    for name in list(sources):
        match = re.fullmatch(r"layers\.([1-9]\d*)\.hidden_norm\.weight", name)
        wanted = f"layers.{match[1]}.input_layernorm.weight" if match else ""
        if match and wanted not in sources:
            sources[wanted] = sources.pop(name)
            styles.add("hidden_norm in later layers")
