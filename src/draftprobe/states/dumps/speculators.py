"""speculators' training data: ``hs_{i}.safetensors`` with an arrow dataset; older ``data_{i}.pt``.

Written by vLLM's connector or, in FP8, by ``hs_connectors`` (0.9.0), and renamed by the data
generation; read by ``train/data.py`` of 0.9.0, which feeds all slots but the last to fc. Row i of
the arrow dataset holds the tokens and the loss mask of ``hs_{i}``. The older lists
(``standardize_data_v1``) went away in 2026-08.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from draftprobe.errors import InputError
from draftprobe.states.dumps.arrow import dataset_beside, open_dataset
from draftprobe.states.dumps.container import (
    METADATA,
    Entries,
    dtype_name,
    mask_of,
    states_of,
    tokens_of,
)
from draftprobe.states.dumps.format import Format, LeftOut, Options, Place
from draftprobe.states.dumps.record import Layout, Sequence, Slot

if TYPE_CHECKING:
    import torch

SCALES = "hidden_states_scales"
_LAG = 1
_UNSAID = (
    "the file does not say: the slots are the run's layer ids, sorted; they are boundaries, by "
    "default h[2], h[L//2], h[L-3]"
)
_LAST = (
    "the format: the trainer takes the last slot for h[L], before the final norm, which it "
    "applies itself; true of files made with --include-last-layer"
)
_MASK = (
    "loss_mask marks the answer's own tokens; speculators counts slot t, which predicts x_{t+2}, "
    "where x_{t+1} is marked (models/eagle3/data.py shift_batch)"
)
_NO_MASK = "there is no loss mask: no arrow dataset lies beside the files (--dataset names one)"
_FP8 = "states are FP8 (e4m3) with a scale per token over all slots: the small slots lose most"


def _is_current(entries: Entries, path: Path) -> bool:
    keys = set(entries) - {METADATA}
    if keys == {"hidden_states", "token_ids", SCALES}:
        return True
    return keys == {"hidden_states", "token_ids"} and _number(path) is not None


def _number(path: Path) -> int | None:
    match = re.fullmatch(r"hs_([0-9]{1,12})\.safetensors", path.name)
    return int(match[1]) if match else None


def _slots(count: int) -> tuple[Slot, ...]:
    return (*[Slot("aux", None, _UNSAID)] * (count - 1), Slot("last", "L", _LAST))


def _layout(entries: Entries, place: Place, options: Options) -> Layout:
    read = _read(entries, place, options)
    notes = (_NO_MASK if read.mask is None else _MASK,)
    return Layout(_slots(len(read.slots)), _LAG, notes + ((_FP8,) if SCALES in entries else ()))


def _read(entries: Entries, place: Place, options: Options) -> Sequence:
    states = states_of(entries["hidden_states"], place)  # [S, n, H]
    if states.dim() != 3:
        raise InputError(f"{place}: expected hidden_states [S, n, H], found {tuple(states.shape)}")
    tokens, dtype = tokens_of(entries["token_ids"], place), dtype_name(states)
    if SCALES in entries:
        states = _scaled(states, entries[SCALES], place)
    elif dtype.startswith("float8"):
        raise InputError(f"{place}: expected {SCALES} beside FP8 states, found none")
    return Sequence(tokens, _mask(tokens, place, options), states.unbind(1), dtype)


def _scaled(states: torch.Tensor, scales: torch.Tensor, place: Place) -> torch.Tensor:
    """FP8 states times their scale per token, float32 [S, n, H]; hs_connectors' fp8_utils."""
    if scales.shape != (len(states), 1, 1) or not scales.dtype.is_floating_point:
        raise InputError(
            f"{place}: expected {SCALES} of shape ({len(states)}, 1, 1), found "
            f"{tuple(scales.shape)}"
        )
    return states.float() * scales.float()


def _mask(tokens: torch.Tensor, place: Place, options: Options) -> torch.Tensor | None:
    """The mask of row i of the dataset, whose tokens have to be the file's."""
    folder = options.dataset or dataset_beside(place.path.parent)
    number = _number(place.path)
    if folder is None or number is None:
        return None
    row = open_dataset(folder).row(number)
    if tokens_of(row["input_ids"], folder).tolist() != tokens.tolist():
        raise LeftOut(
            f"{place}: expected the tokens of row {number} of {folder}, found others; the trainer "
            "skips such a sample"
        )
    return mask_of(row["loss_mask"], f"{folder} row {number}")


SPECULATORS = Format("speculators", "speculators, states by vLLM", _is_current, _layout, _read)


def _is_list(entries: Entries, path: Path) -> bool:
    keys = {"input_ids", "loss_mask", "hidden_states"}
    return set(entries) >= keys and isinstance(entries["hidden_states"], list)


def _list_layout(entries: Entries, place: Place, options: Options) -> Layout:
    return Layout(_slots(len(_read_list(entries, place, options).slots)), _LAG, (_MASK,))


def _read_list(entries: Entries, place: Place, options: Options) -> Sequence:
    slots = tuple(states_of(state, place, batched=True) for state in entries["hidden_states"])
    if len(slots) < 2:
        raise InputError(f"{place}: expected a list of 2 or more states, found {len(slots)}")
    tokens = tokens_of(entries["input_ids"], place)
    return Sequence(tokens, mask_of(entries["loss_mask"], place), slots, dtype_name(slots[0]))


SPECULATORS_LIST = Format(
    "speculators-list",
    "speculators, older lists of states",
    _is_list,
    _list_layout,
    _read_list,
)
