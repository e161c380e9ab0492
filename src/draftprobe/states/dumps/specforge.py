"""SpecForge's offline feature files: ``rows_*/data_*.ckpt`` or ``.ckpt.gz``, one sequence a file.

Written by ``scripts/prepare_hidden_states.py`` (read at 0168a597); read by
``runtime/data_plane/offline_reader.py`` and ``algorithms/eagle3/data.py`` of the 0.2.0 wheel.
"""

from __future__ import annotations

from pathlib import Path

from draftprobe.states.dumps.container import (
    Entries,
    dtype_name,
    mask_of,
    split,
    states_of,
    tokens_of,
)
from draftprobe.states.dumps.format import Format, Options, Place
from draftprobe.states.dumps.record import Layout, Sequence, Slot

_KEYS = frozenset({"aux_hidden_state", "hidden_state", "input_ids", "loss_mask"})
_LAG = 2
_UNSAID = (
    "the file does not say; SpecForge's default is h[2], h[L//2], h[L-3], and its run's "
    "aux_hidden_state_layer_ids change it"
)
_MASK = (
    "loss_mask marks the answer's own tokens; SpecForge counts slot t, which predicts x_{t+2}, "
    "where x_t is marked (algorithms/eagle3/data.py and model.py: the mask is not shifted at the "
    "first step)"
)


def _matches(entries: Entries, path: Path) -> bool:
    return set(entries) >= _KEYS


def _layout(entries: Entries, place: Place, options: Options) -> Layout:
    count = len(_read(entries, place, options).slots) - 1
    last = Slot("last", "N", "the format: hidden_state is the final norm's output")
    return Layout((*[Slot("aux", None, _UNSAID)] * count, last), _LAG, (_MASK,))


def _read(entries: Entries, place: Place, options: Options) -> Sequence:
    last = states_of(entries["hidden_state"], place, batched=True)  # [S, H]
    aux = states_of(entries["aux_hidden_state"], place, batched=True)  # [S, 3H]
    return Sequence(
        tokens_of(entries["input_ids"], place),
        mask_of(entries["loss_mask"], place),
        (*split(aux, last.shape[-1], place), last),
        dtype_name(aux),
    )


SPECFORGE = Format("specforge", "SpecForge, offline features", _matches, _layout, _read)
