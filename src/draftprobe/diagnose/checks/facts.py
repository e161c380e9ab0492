"""What a drafter is, in plain values: sizes, layers, attention, sharing, ids, and who trained it.

Says what files say; judges nothing.
"""

from __future__ import annotations

from dataclasses import asdict
from math import prod
from typing import Any

from draftprobe.diagnose.checks import rope, taps
from draftprobe.diagnose.checks.subject import Subject
from draftprobe.dialects.recognise import Recognised
from draftprobe.dialects.trainers import TapClaim
from draftprobe.drafter.kind import family

_TABLES = ("d2t", "t2d")


def facts(subject: Subject, who: Recognised, claims: tuple[TapClaim, ...]) -> dict[str, Any]:
    """The drafter's facts as JSON has them; unknown is None."""
    infos = subject.checkpoint.tensors.values()
    names = subject.checkpoint.config.get("architectures")
    d2t, draft = subject.d2t is not None, subject.draft_vocabulary
    return {
        "folder": str(subject.checkpoint.folder),
        "family": family(subject.checkpoint, subject.layout),
        "trainer": str(who),
        "trainer_why": who.why,
        "architecture": names[0] if isinstance(names, list) and names else None,
        "files": sorted({info.file.name for info in infos}),
        "dtypes": sorted({info.dtype for info in infos if info.name not in _TABLES}),
        "parameters": sum(prod(i.shape) for i in infos if i.dtype.startswith(("F", "BF"))),
        "bytes": sum(info.size for info in infos),
        "spelling": sorted(subject.layout.styles),
        "layers": subject.layout.layers,
        "attention": subject.layout.attention,
        "qk_norm": "layers.0.self_attn.q_norm.weight" in subject.layout,
        "biases": sorted(name for name in subject.layout.sources if name.endswith(".bias")),
        "hidden_size": subject.number("hidden_size"),
        "target_hidden_size": subject.target_hidden,
        "slots": taps.slots(subject),
        "heads": subject.number("num_attention_heads"),
        "kv_heads": subject.number("num_key_value_heads"),
        "head_dim": subject.number("head_dim"),
        "intermediate_size": subject.number("intermediate_size"),
        "vocab_size": subject.number("vocab_size"),
        "draft_vocab_size": draft,
        "vocabulary_map": "d2t" if d2t else "identity" if draft == subject.vocabulary else None,
        "embedding": "own" if "embed_tokens.weight" in subject.layout else "not in the folder",
        "head": "own" if "lm_head.weight" in subject.layout else "not in the folder",
        "rope_theta": rope.theta(subject.config),
        "rope_scaling": rope.scaling(subject.config) or None,
        "max_position_embeddings": subject.number("max_position_embeddings"),
        "layer_ids": taps.lists(subject),
        "claims": [asdict(claim) for claim in claims],
    }
