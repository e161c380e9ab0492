"""ModelOpt's dumps: one ``.pt`` per conversation, from three scripts that keep different states.

Written by ``examples/speculative_decoding/collect_hidden_states`` (the HF, TensorRT-LLM and vLLM
scripts, read at 63405460, 022cbdbe and 1a7bb829; and TensorRT-LLM's own files, lists of one); read
by ``OfflineSupervisedDataset`` in ``modelopt/torch/speculative/eagle/utils.py`` of 0.47.0.
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

_LAG = 1
_UNSAID = (
    "the file does not say; the HF and TensorRT-LLM scripts read ids as outputs (id k is h[k+1], "
    "by default h[2], h[L//2], h[L-3]), the vLLM script handed the same ids on as boundaries"
)
_LAST = (
    "the file does not say: the HF and TensorRT-LLM scripts keep h[N], the vLLM script h[L], and "
    "the loader takes a file without hidden_states_prenorm for h[N]"
)
_MASK = (
    "loss_mask marks the answer's own tokens; ModelOpt counts slot t, which predicts x_{t+2}, "
    "where x_{t+1} is marked (plugins/hf_eagle.py: [1 + k:])"
)
_NO_MASK = (
    "there is no loss_mask: the files were written without --answer-only-loss, and ModelOpt then "
    "counts every token"
)


def _matches(entries: Entries, path: Path) -> bool:
    keys = set(entries)
    last = {"hidden_states", "hidden_state"} & keys
    return {"input_ids", "aux_hidden_states"} <= keys and len(last) == 1


def _layout(entries: Entries, place: Place, options: Options) -> Layout:
    read = _read(entries, place, options)
    prenorm = entries.get("hidden_states_prenorm")
    last = Slot("last", None, _LAST)
    if prenorm is True:
        last = Slot("last", "L", "the file: hidden_states_prenorm is true")
    notes = (_NO_MASK if read.mask is None else _MASK,)
    return Layout((*[Slot("aux", None, _UNSAID)] * (len(read.slots) - 1), last), _LAG, notes)


def _read(entries: Entries, place: Place, options: Options) -> Sequence:
    key = "hidden_states" if "hidden_states" in entries else "hidden_state"
    last = states_of(entries[key], place, batched=True)  # [S, H]
    aux = states_of(entries["aux_hidden_states"], place, batched=True)  # [S, n * H]
    mask = entries.get("loss_mask")
    return Sequence(
        tokens_of(entries["input_ids"], place),
        None if mask is None else mask_of(mask, place),
        (*split(aux, last.shape[-1], place), last),
        dtype_name(aux),
    )


MODELOPT = Format("modelopt", "ModelOpt, offline states", _matches, _layout, _read)
