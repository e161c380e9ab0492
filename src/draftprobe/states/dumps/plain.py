"""Plain tensors with token ids: states [T, n * H], [T, n, H] or [n, T, H], or one [T, H] per entry.

In a ``.safetensors``, ``.pt`` or ``.npy`` file; the ids in the same file, or beside a bare array in
``NAME.tokens.npy``. Entries are found by their shapes where that leaves one choice, else a person
names them; nothing says which boundaries they are.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftprobe.errors import InputError
from draftprobe.states.dumps.container import (
    ARRAY,
    METADATA,
    Entries,
    contents,
    dtype_name,
    entries,
    mask_of,
    split,
    states_of,
    tokens_of,
)
from draftprobe.states.dumps.folder import BESIDE, tokens_beside
from draftprobe.states.dumps.format import Format, Options, Place
from draftprobe.states.dumps.record import Layout, Sequence, Slot

if TYPE_CHECKING:
    import torch

_UNSAID = "the file does not say"
_MASKS = ("loss_mask", "mask")
_TOKENS = ("input_ids", "token_ids", "tokens")


def _matches(record: Entries, path: Path) -> bool:
    return any(_is_states(value) for value in record.values())


def _is_states(value: Any) -> bool:
    import torch

    values = value if isinstance(value, list | tuple) and value else [value]
    return all(
        isinstance(one, torch.Tensor) and one.dtype.is_floating_point and one.dim() >= 2
        for one in values
    )


def _layout(record: Entries, place: Place, options: Options) -> Layout:
    names, slots = _slots(record, place, options, len(_tokens(record, place, options)))
    where = f"{_UNSAID} ({', '.join(map(repr, names))})" if names != [ARRAY] else _UNSAID
    return Layout((Slot("aux", None, where),) * len(slots), None)


def _read(record: Entries, place: Place, options: Options) -> Sequence:
    tokens = _tokens(record, place, options)
    _, slots = _slots(record, place, options, len(tokens))
    key = options.mask_key or next((name for name in _MASKS if name in record), None)
    if key is not None and key not in record:
        raise InputError(f"{place}: expected an entry {key!r}, found {contents(record)}")
    mask = None if key is None else mask_of(record[key], place)
    return Sequence(tokens, mask, slots, dtype_name(slots[0]))


def _slots(
    record: Entries, place: Place, options: Options, tokens: int
) -> tuple[list[str], tuple[torch.Tensor, ...]]:
    """The entries that hold states, in the order asked for, and their slots [T, H]."""
    names = list(options.states_key) or [k for k, value in record.items() if _is_states(value)]
    missing = [name for name in names if name not in record]
    if missing or (len(names) != 1 and not options.states_key):
        raise InputError(
            f"{place}: expected states under {repr(missing[0]) if missing else 'one entry'}, "
            f"found {contents(record)}; name the entries in their order with --states-key"
        )
    parts: list[torch.Tensor] = []
    for name in names:
        value = record[name]
        several = list(value) if isinstance(value, list | tuple) else [value]
        parts += [_by_token(one, f"{place}: {name!r}", tokens) for one in several]
    if not parts:
        raise InputError(f"{place}: expected states, found an empty list")
    if len(parts) > 1 and options.hidden is None:
        return names, tuple(parts)  # each of them one slot; the sizes are compared later
    hidden = options.hidden or (parts[0].shape[-1] if parts[0].dim() == 3 else None)
    if hidden is None:
        raise InputError(
            f"{place}: states of width {parts[0].shape[-1]} hold slots of an unknown hidden size; "
            "name the target with --target"
        )
    return names, tuple(slot for part in parts for slot in split(part, hidden, place))


def _by_token(value: Any, where: str, tokens: int) -> torch.Tensor:
    """States with the token's axis first: [T, W] or [T, n, H].

    Of [a, b, H] the axis with a row for each token, or for each but the last, is the token's; so a
    stack of transformers' ``hidden_states``, [n, T, H] or [n, 1, T, H], is turned.

    Raises:
        InputError: no such shape, or both axes may be the token's.
    """
    if hasattr(value, "dim") and value.dim() == 4 and value.shape[1] == 1:
        value = value[:, 0]
    states = states_of(value, where, batched=True)
    if states.dim() != 3:
        return states
    first, second = (states.shape[axis] in (tokens, tokens - 1) for axis in (0, 1))
    if first and second and states.shape[1] > 1:
        raise InputError(
            f"{where}: either axis of states {tuple(states.shape)} may be that of the {tokens} "
            "tokens; write them as [T, n * H], or leave so short a sequence out"
        )
    return states.transpose(0, 1) if second and not first else states


def _tokens(record: Entries, place: Place, options: Options) -> torch.Tensor:
    if options.tokens is not None:
        return listed_tokens(options.tokens, place.index)
    key = options.tokens_key or next((name for name in _TOKENS if name in record), None)
    if key is not None and key in record:
        return tokens_of(record[key], place)
    beside = tokens_beside(place.path)
    if key is None and beside is not None and set(record) == {ARRAY}:
        return listed_tokens(beside, 0)
    raise InputError(
        f"{place}: expected token ids under {key or ' or '.join(_TOKENS)}, found "
        f"{contents(record)}; name the entry with --tokens-key, or a file with --tokens, or lay "
        f"the ids beside it as {place.path.stem}{BESIDE}.npy"
    )


def listed_tokens(path: Path, index: int) -> torch.Tensor:
    """The token ids of sequence ``index`` in a file of them.

    Raises:
        InputError: no such sequence, or no token ids.
    """
    listed = _listed(path, path.stat().st_mtime_ns if path.is_file() else 0)
    if index >= len(listed):
        raise InputError(f"{path}: expected token ids of sequence {index}, found {len(listed)}")
    return listed[index]


@lru_cache(maxsize=4)
def _listed(path: Path, _changed: int) -> tuple[torch.Tensor, ...]:
    """Per record of the file: the entry named like token ids, or the only one there is."""
    found: list[torch.Tensor] = []
    for record in entries(path):
        values = {name: value for name, value in record.items() if name != METADATA}
        key = next((name for name in (*_TOKENS, ARRAY) if name in values), None)
        if key is None and len(values) != 1:
            raise InputError(f"{path}: expected token ids under {' or '.join(_TOKENS)}")
        found.append(tokens_of(values[key or next(iter(values))], path))
    return tuple(found)


PLAIN = Format("plain", "plain tensors", _matches, _layout, _read)
