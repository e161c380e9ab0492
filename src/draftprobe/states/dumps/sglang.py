"""SGLang's responses of ``/generate`` with ``return_hidden_states``: JSON, one object a response.

Read in 0.5.23: ``meta_info.hidden_states`` is a list of the prompt's states [rows][W], one list per
prefill chunk, then one row [W] per decoded token but the last (``batch_result_processor.py``).
With ``--enable-return-aux-hidden-states`` a row is the concatenation that a drafter would be fed,
else the last hidden alone. ``output_ids`` are the answer; the prompt's ids are there only with
``return_logprob`` from position 0, else the one who saved the response adds ``input_ids``. The
OpenAI endpoints return the last token's state alone: nothing that could be replayed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftprobe.errors import InputError
from draftprobe.states.dumps.container import Entries, split, tokens_of
from draftprobe.states.dumps.format import Format, Options, Place
from draftprobe.states.dumps.plain import listed_tokens
from draftprobe.states.dumps.record import Layout, Sequence, Slot

if TYPE_CHECKING:
    import torch

_UNSAID = (
    "the response does not say: the server's --return-aux-hidden-state-layer-ids, read by its rule "
    "for that model family, or without them the model's default h[2], h[L//2], h[L-3]"
)
_ONE = (
    "the response does not say: without --enable-return-aux-hidden-states it is the state that "
    "lm_head reads, h[N] for most models"
)
_MASK = "the mask marks the answer's tokens: output_ids, which the server itself chose"


def _matches(entries: Entries, path: Path) -> bool:
    info = entries.get("meta_info")
    return isinstance(info, dict) and "hidden_states" in info


def _layout(entries: Entries, place: Place, options: Options) -> Layout:
    count = len(_read(entries, place, options).slots)
    unsaid = _UNSAID if count > 1 else _ONE
    return Layout((Slot("aux", None, unsaid),) * count, None, (_MASK,))


def _read(entries: Entries, place: Place, options: Options) -> Sequence:
    import torch

    rows = _rows(entries["meta_info"]["hidden_states"], place)  # [P + O - 1, W]
    answer = tokens_of(entries.get("output_ids"), f"{place}: output_ids")
    prompt = _prompt(entries, place, options)
    tokens = torch.cat([prompt, answer])
    if len(rows) != len(tokens) - 1:
        raise InputError(
            f"{place}: expected {len(tokens) - 1} states for {len(prompt)} prompt and "
            f"{len(answer)} answer tokens, found {len(rows)}; a prefix that the server had cached "
            "has none: run it with --disable-radix-cache"
        )
    mask = torch.arange(len(tokens)) >= len(prompt)
    return Sequence(tokens, mask, split(rows, _hidden(rows, place, options), place), "float32")


def _hidden(rows: torch.Tensor, place: Place, options: Options) -> int:
    if options.hidden is None:
        raise InputError(
            f"{place}: rows of {rows.shape[-1]} numbers hold states of an unknown hidden size; "
            "name the target with --target"
        )
    return options.hidden


def _rows(value: Any, place: Place) -> torch.Tensor:
    """All rows as float32 [rows, W]: chunks [rows][W] and single rows [W] in one list."""
    import torch

    rows: list[Any] = []
    for entry in value if isinstance(value, list) else []:
        chunk = isinstance(entry, list) and entry and isinstance(entry[0], list)
        rows += entry if chunk else [entry]
    try:
        states = torch.tensor(rows, dtype=torch.float32)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise InputError(f"{place}: meta_info.hidden_states is no list of rows: {error}") from None
    if states.dim() != 2 or 0 in states.shape:
        raise InputError(
            f"{place}: expected meta_info.hidden_states as rows [W] for every token, found shape "
            f"{tuple(states.shape)}; ask for return_hidden_states=true on /generate"
        )
    return states


def _prompt(entries: Entries, place: Place, options: Options) -> torch.Tensor:
    """The prompt's ids: saved with the response, in its log-probabilities, or in --tokens."""
    info = entries["meta_info"]
    where = f"{place}: the prompt's ids"
    if "input_ids" in entries:
        prompt = tokens_of(entries["input_ids"], where)
    elif isinstance(scored := info.get("input_token_logprobs"), list) and scored:
        ids = [e[1] if isinstance(e, list) and len(e) > 1 else None for e in scored]
        prompt = tokens_of(ids, where)
    elif options.tokens is not None:
        prompt = listed_tokens(options.tokens, place.index)
    else:
        raise InputError(
            f"{where} are not in the response; add them to it as input_ids, or give --tokens"
        )
    known = info.get("prompt_tokens")
    if isinstance(known, int) and known != len(prompt):
        raise InputError(f"{where}: expected {known} as meta_info.prompt_tokens says, found "
                         f"{len(prompt)}")  # fmt: skip
    return prompt


SGLANG = Format("sglang", "SGLang, returned hidden states", _matches, _layout, _read)
