"""Values under well known keys that drafter classes of SGLang and vLLM fail on. Knows no taps.

Both multiply sizes as they stand and build a Llama MLP, which raises for other activations than
SiLU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from draftprobe.dialects.ids import Rule
from draftprobe.dialects.loading import Folder
from draftprobe.dialects.reading import Effect

_SIZE = "target_hidden_size"


def refused_values(
    folder: Folder, rule: Rule, counts: Iterable[str], null_is_none: bool = False
) -> Iterator[Effect]:
    """Sizes, counts and an activation that make loading fail.

    Args:
        folder: the folder as the engine sees it.
        rule: how its class is known.
        counts: keys for the number of states, the one that is asked first in front.
        null_is_none: whether an empty ``target_hidden_size`` counts as none at all.
    """
    width = folder.config.get(_SIZE)
    absent = _SIZE not in folder.config or (null_is_none and not width)
    if not absent and folder.count(_SIZE) is None:
        text = f"{folder.title} multiplies {_SIZE} as it stands: {_short(width)} is no width"
        yield folder.effect("refuses", _SIZE, text, rule)
    asked = next((key for key in counts if folder.config.get(key) is not None), None)
    if asked and folder.count(asked) is None:
        text = (
            f"{folder.title} builds fc for {_short(folder.config[asked])} states, as {asked} says: "
            "loading fails"
        )
        yield folder.effect("refuses", asked, text, rule)
    act = folder.config.get("hidden_act", "silu")
    if act != "silu":
        text = f"{folder.title}'s drafter knows silu alone, found {_short(act)}: a ValueError"
        yield folder.effect("refuses", "hidden_act", text, rule)


def _short(value: object) -> str:
    return repr(value)[:40]
