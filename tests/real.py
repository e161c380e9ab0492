"""Drafters trained by `draftprobe train` on the demo's target, and held-out states of that target.

The folders under tests/data hold their training commands in TRAINING.md.
"""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from draftprobe.demo import story
from draftprobe.demo.prompts import KINDS, prompts
from draftprobe.demo.target import prepare
from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter import golden
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import load_drafter
from draftprobe.drafter.wiring import tap_name
from draftprobe.states.capture import Plan, capture
from draftprobe.states.record import open_states, provenance_metadata
from draftprobe.states.target import embedding_table, load_target

DATA = Path(__file__).parent / "data"
SMALL = ("t16_3_0", "t2_15_27", "t5_10_20", "t12_24")
TRAINED = {
    "t16_3_0": (16, 3, 0),
    "t2_15_27": (2, 15, 27),
    "t5_10_20": (5, 10, 20),
    "t12_24": (12, 24),
    "t3_16_28": (3, 16, 28),
}


def target():
    """The demo target's folder; fetched and converted if the cache lacks it."""
    return prepare(print)


def held_out(path, per_kind=16, new=40):
    """Every boundary on ``per_kind`` held-out prompts of each kind."""
    loaded = load_target(target())
    chosen = [p for kind in KINDS for p in prompts(kind, "held_out")[:per_kind]]
    items = story.items_of(chosen, loaded, path.parent)
    plan = Plan(loaded.structure.boundaries(), "float16", batch=16, greedy=new)
    capture(loaded, items, plan, path)
    return open_states(path)


def cut(states, path, sequences, counted):
    """The first ``sequences`` sequences, each with ``counted`` counted tokens at most."""
    texts = []
    for index in range(sequences):
        recorded = states.sequence(index, states.boundaries)
        end = int(recorded.mask.nonzero()[0]) + counted
        h = {tap: state[: end - 1] for tap, state in recorded.h.items()}
        texts.append((recorded.tokens[:end], recorded.mask[:end], h))
    tensors = {tap_name(tap): torch.cat([h[tap] for _, _, h in texts]) for tap in states.boundaries}
    tensors["tokens"] = torch.cat([tokens for tokens, _, _ in texts]).to(torch.int32)
    tensors["loss_mask"] = torch.cat([mask for _, mask, _ in texts]).to(torch.uint8)
    tensors["lengths"] = torch.tensor([len(tokens) for tokens, _, _ in texts], dtype=torch.int32)
    kinds = states.provenance.kinds[:sequences]
    save_file(tensors, path, metadata=provenance_metadata(replace(states.provenance, kinds=kinds)))
    return open_states(path)


def drafter(folder):
    """A drafter as its golden file wires it."""
    checkpoint = open_checkpoint(folder)
    wiring = wiring_of(checkpoint, golden.read(folder).wiring.taps)
    return load_drafter(checkpoint, wiring, embedding_table(target()))
