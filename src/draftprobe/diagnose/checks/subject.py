"""What the checks look at: a drafter's folder, its small tables, and what is known of the target.

Opens, reads d2t and t2d, and nothing else of the weights. No torch (a pickle folder needs it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout, layer_config
from draftprobe.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from draftprobe.dialects.reading import Target
    from draftprobe.drafter.wiring import Wiring

_MAX_TABLE = 80_000_000
_MOST = 10_000
_COUNTS = ("num_hidden_layers", "num_aux_hidden_states", "num_aux_layers")
_INTEGERS = {
    "BOOL": "u1", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4",
    "I64": "<i8", "U64": "<u8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    """A drafter under inspection.

    Attributes:
        checkpoint: its folder; layout: its tensors by role.
        config: its config with the layer's own (speculators nests it) laid flat.
        d2t: int64 [D]; t2d: bool [V]; None where the folder has none.
        target: what its config says, None if it was not given.
        trained: the wiring that its trainer meant, None where that is not known.
        trainer: a name of ``trainers.TRAINERS``.
        odd: ``d2t`` or ``t2d`` -> what was found where a vector of integers was expected.
    """

    checkpoint: Checkpoint
    layout: Layout
    config: dict[str, Any]
    d2t: np.ndarray | None
    t2d: np.ndarray | None
    target: Target | None = None
    trained: Wiring | None = None
    trainer: str = "unknown"
    odd: Mapping[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The config's path, for messages."""
        return str(self.checkpoint.folder / "config.json")

    def number(self, key: str) -> int | None:
        """A positive integer of the config, None where it has none."""
        value = self.config.get(key)
        return value if type(value) is int and value > 0 else None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape by its inside name; rows only, for a part of a fused one."""
        source = self.layout.sources.get(name)
        if source is None:
            return None
        whole = self.checkpoint.info(source.name).shape
        return whole if source.rows is None else (source.rows[1] - source.rows[0], *whole[1:])

    def file_name(self, name: str) -> str:
        """A tensor's name as the folder spells it."""
        return self.layout.sources[name].name

    @property
    def draft_vocabulary(self) -> int | None:
        """D: the head's rows, else d2t's, else what the config says."""
        for name in ("lm_head.weight", "d2t"):
            shape = self.shape(name)
            if shape:
                return shape[0]
        return self.number("draft_vocab_size") or self.number("vocab_size")

    @property
    def vocabulary(self) -> int | None:
        """V: the target's, else what the drafter's config or t2d says."""
        if self.target is not None:
            return self.target.vocabulary
        return self.number("vocab_size") or (None if self.t2d is None else len(self.t2d))

    @property
    def target_hidden(self) -> int | None:
        """Width of one tap, as the drafter's own config has it."""
        return self.number("target_hidden_size") or self.number("hidden_size")


def subject_of(
    checkpoint: Checkpoint,
    layout: Layout,
    target: Target | None = None,
    trained: Wiring | None = None,
    trainer: str = "unknown",
) -> Subject:
    """Flatten the config and read the two vocabulary tables.

    Raises:
        InputError: a count is beyond any drafter.
    """
    config = layer_config(checkpoint.config)
    for key in _COUNTS:
        for level in (checkpoint.config, config):
            value = level.get(key)
            if isinstance(value, int | float) and value > _MOST:
                raise InputError(
                    f"{checkpoint.folder / 'config.json'}: expected {key} of at most {_MOST}, "
                    f"found {str(value)[:40]}; is it a drafter's config?"
                )
    odd: dict[str, str] = {}
    d2t, t2d = (_table(checkpoint, layout, name, odd) for name in ("d2t", "t2d"))
    return Subject(
        checkpoint,
        layout,
        config,
        None if d2t is None else d2t.astype("int64"),
        None if t2d is None else t2d != 0,
        target,
        trained,
        trainer,
        odd,
    )


def _table(
    checkpoint: Checkpoint, layout: Layout, name: str, odd: dict[str, str]
) -> np.ndarray | None:
    """A vocabulary table as numpy reads it, without torch; one of another form is noted in odd."""
    if name not in layout.sources:
        return None
    import numpy as np

    info = checkpoint.info(layout.sources[name].name)
    if info.dtype not in _INTEGERS or len(info.shape) != 1 or info.size > _MAX_TABLE:
        odd[name] = f"{info.name} is {info.dtype} {list(info.shape)}"
        return None
    if info.pickled:
        return checkpoint.read(info.name).numpy()
    with info.file.open("rb") as file:
        file.seek(info.start)
        return np.frombuffer(file.read(info.size), dtype=_INTEGERS[info.dtype])
