"""SGLang: what becomes of a folder that its latent-attention drafter class loads.

``Eagle3DeepseekV2ForCausalLM`` skips unknown names with a warning. It knows ``fc_norm`` and
``norm_output`` since 0.5.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from draftprobe.dialects.ids import nested_of
from draftprobe.dialects.loading import (
    LATENT,
    LATENT_NORMS,
    Folder,
    compare,
    layer_parameters,
    norm_flags,
    pre_fc_norm,
    width,
)
from draftprobe.dialects.odd_keys import refused_values
from draftprobe.dialects.reading import Effect
from draftprobe.dialects.sglang_common import (
    LATENT_ATTENTION,
    POST,
    common,
    has,
    hidden_in,
    keys,
    leftovers,
    rule_of,
    sharing,
    slots_of,
    without_fc,
)

_SINCE = "0.5.13"
_LATER = (("fc_norm", "pre_fc_norm", "none"), ("norm_output", "feedback", "pre_norm"))


def latent_effects(folder: Folder) -> Iterator[Effect]:
    """What the latent-attention class ignores, drops, defaults, replaces or refuses."""
    rule = rule_of(folder, LATENT_ATTENTION, executed=True)
    tied, since = folder.flag("tie_word_embeddings"), has(folder, _SINCE)
    per_tap = since and (folder.flag("fc_norm") or folder.flag("use_aux_norm"))
    slots = slots_of(folder, LATENT_ATTENTION)
    layers = folder.count("num_hidden_layers")
    if layers is not None and layers != 1:
        text = f"SGLang's latent-attention drafter has one layer, the config says {layers}"
        yield folder.effect("refuses", "num_hidden_layers", text, rule)
    parameters = [
        *common(folder, False, slots if per_tap else 0),
        *layer_parameters(0, ("input_layernorm", "hidden_norm", POST), (*LATENT, *LATENT_NORMS)),
        *([] if tied else ["lm_head.weight"]),
    ]
    names = compare(folder.checkpoint.tensors, _rename_latent, parameters)
    yield from keys(folder, rule)
    yield from refused_values(folder, rule, (), null_is_none=True)
    yield from without_fc(folder, slots, rule)
    if nested_of(folder.config).get("norm_before_fc", folder.config.get("norm_before_fc")):
        text = "SGLang's latent-attention drafter has no norm in front of fc but fc_norm"
        served = pre_fc_norm(False, per_tap)
        yield folder.effect("ignores key", "norm_before_fc", text, rule, "pre_fc_norm", served)
    yield from leftovers(folder, names, pre_fc_norm(False, per_tap), rule)
    yield from norm_flags(folder, False, per_tap, rule)
    for key, wire, value in () if since else _LATER:
        if folder.flag(key):
            text = f"SGLang {folder.version} does not know {key} here: it came with {_SINCE}"
            yield folder.effect("ignores key", key, text, rule, wire, value)
    yield from width(folder, slots, hidden_in(folder), rule)
    yield from sharing(folder, tied, rule)


def _rename_latent(name: str) -> str | None:
    if re.search(r"(^|\.)(d2t|t2d)$", name):
        return None
    return re.sub(r"^midlayer\.", "layers.0.", name)
