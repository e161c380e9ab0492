"""Which family of draft models a folder holds, by its tensors first, then by its architecture.

Only EAGLE-3 can be replayed here; the others are told apart so that the reason can be named.
Sources: the families' own modules in SGLang 0.5.23, vLLM 0.32.0 and speculators 0.9.0, read.
"""

from __future__ import annotations

import re

from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout
from draftprobe.errors import InputError

FAMILIES = {
    "eagle3": "fc over several target states; the first layer reads embedding and hidden state",
    "eagle1": "EAGLE-1, EAGLE-2 or HASS: one target state, fc over it and the embedding, and a "
    "layer that reads fc's output alone",
    "p-eagle": "P-EAGLE: one pass drafts all tokens from mask tokens and a learned hidden state; "
    "nothing is fed back",
    "eagle4": "EAGLE-4: a low-rank head chooses candidates before the full one",
    "dflash": "DFlash, DFlash2 or Domino: a block of mask tokens is filled in one pass, and target "
    "states enter every layer's keys and values",
    "dspark": "DSpark: DFlash with a Markov head and a confidence head",
    "mtp": "MTP or NextN: one target state, joined with the embedding by eh_proj",
    "medusa": "Medusa: heads on the target's last state, no layer of its own",
    "unknown": "neither the tensors nor the architecture of a family that is known here",
}
"""What each family is, in the words of a message."""

_TENSORS = (
    ("p-eagle", r"mask_hidden"),
    ("eagle4", r"efficient_lm_head(_down_proj)?\.weight"),
    ("dspark", r"(markov|confidence)\w*\..*"),
    ("medusa", r"(medusa_heads?\.)?\d+\.\d+\.(linear\.)?weight|medusa_heads?\..*"),
    ("mtp", r"(layers\.\d+\.)?(eh_proj|enorm|hnorm)\.weight|mtp\..*|.*\.shared_head\..*"),
    ("dflash", r"hidden_norm\.weight|(prefix_)?gru\..*|selector\w*\..*"),
)
_ARCHITECTURES = (
    ("p-eagle", "peagle"),
    ("eagle4", "eagle4"),
    ("dspark", "dspark"),
    ("dflash", "dflash"),
    ("dflash", "domino"),
    ("medusa", "medusa"),
    ("mtp", "mtp"),
    ("mtp", "nextn"),
)


def family(checkpoint: Checkpoint, layout: Layout) -> str:
    """A key of :data:`FAMILIES`; ``unknown`` is a value like the others."""
    names = [re.sub(r"^(draft_model\.|model\.)+", "", name) for name in checkpoint.tensors]
    for found, pattern in _TENSORS:
        if any(re.fullmatch(pattern, name) for name in names):
            return found
    said = checkpoint.config.get("architectures")
    words = str(said[0]).lower() if isinstance(said, list) and said else ""
    for found, word in _ARCHITECTURES:
        if word in words:
            return found
    if "fc.weight" not in layout or not layout.layers:
        return "unknown"
    return _eagle(checkpoint, layout)


def _eagle(checkpoint: Checkpoint, layout: Layout) -> str:
    """By what the first layer reads: 2H in EAGLE-3; H in EAGLE-1, where fc has joined before."""
    fc = layout.shape(checkpoint, "fc.weight")
    for name in ("q_proj", "q_a_proj", "kv_a_proj_with_mqa"):
        tensor = f"layers.0.self_attn.{name}.weight"
        if tensor in layout and len(fc) == 2:
            reads = layout.shape(checkpoint, tensor)[1:]
            if reads == (2 * fc[0],):
                return "eagle3"
            if reads == (fc[0],) and fc[1] == 2 * fc[0]:
                return "eagle1"
    return "unknown"


def check_eagle3(checkpoint: Checkpoint, layout: Layout) -> None:
    """Whether the reference drafter is the right one for this folder.

    Raises:
        InputError: it is another family's, named, or holds tensors that mean nothing here.
    """
    found = family(checkpoint, layout)
    if found == "unknown":  # what it lacks, or which size is wrong, is told with the sizes
        return
    if found != "eagle3":
        raise InputError(
            f"{checkpoint.folder}: expected an EAGLE-3 drafter, found {FAMILIES[found]}; only "
            "EAGLE-3 is replayed here"
        )
    foreign = [name for name in layout.unknown if not name.endswith("rotary_emb.inv_freq")]
    for names, why in ((foreign, "mean nothing here"), (layout.twice, "are there already")):
        if names:
            raise InputError(
                f"{checkpoint.folder}: found tensors that {why}, and the drafter without them "
                f"would be another: {', '.join(names[:5])}"
            )
