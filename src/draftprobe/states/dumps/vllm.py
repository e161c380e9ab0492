"""vLLM's ``extract_hidden_states``: one ``{request}.safetensors`` per request.

Written by ``ExampleHiddenStatesConnector`` (0.32.0): ``hidden_states`` [S, n, H], one slot per
layer id, ascending and without duplicates, and ``token_ids`` [S]. Id k means h[k]; the number of
layers means h[L], before the final norm. The ids are in the run's settings, not in the file.
"""

from __future__ import annotations

from pathlib import Path

from draftprobe.states.dumps.container import (
    METADATA,
    Entries,
    dtype_name,
    states_of,
    tokens_of,
)
from draftprobe.states.dumps.format import Format, Options, Place
from draftprobe.states.dumps.record import Layout, Sequence, Slot

_UNSAID = (
    "the file does not say: the slots are eagle_aux_hidden_state_layer_ids of the run, sorted; "
    "they are boundaries, h[N] is never among them"
)
_NOTE = (
    "there is no loss mask; the tokens are the prompt's, and the answer's but for its last token "
    "where the request asked for include_output_tokens"
)


def _matches(entries: Entries, path: Path) -> bool:
    return set(entries) - {METADATA} == {"hidden_states", "token_ids"}


def _layout(entries: Entries, place: Place, options: Options) -> Layout:
    count = len(_read(entries, place, options).slots)
    return Layout((Slot("aux", None, _UNSAID),) * count, None, (_NOTE,))


def _read(entries: Entries, place: Place, options: Options) -> Sequence:
    states = states_of(entries["hidden_states"], place)
    states = states[:, None] if states.dim() == 2 else states
    return Sequence(
        tokens_of(entries["token_ids"], place),
        None,
        states.unbind(1),
        dtype_name(states),
    )


VLLM = Format("vllm", "vLLM, extract_hidden_states", _matches, _layout, _read)
