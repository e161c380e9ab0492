"""Cuts tests/data/rows out of captures of the demo's target: a few rows of a few boundaries.

    draftprobe capture TARGET --text texts.txt --compute float32 --out float32.safetensors
    (and so for bfloat16 and float16; any three lines of 18 tokens and more, no chat template, whose
    first tokens would be the same)
    python tests/make_rows.py float32.safetensors bfloat16.safetensors float16.safetensors

The branches of two layers, which no boundary shows, are hooked off the same target.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from draftprobe.drafter.wiring import tap_name
from draftprobe.states.record import open_states, provenance_metadata
from draftprobe.states.target import load_target

ROWS = Path(__file__).parent / "data" / "rows"
TAPS = (0, 1, 2, 3, 4, 15, 16, 17, 28, 29, 30, "N")
BRANCHES = (15, 28)  # the layers that lead to h[16] and h[29]
SEQUENCES, TOKENS = 3, 18


def cut(path, dtype):
    """The first rows of the first sequences, stored in ``dtype``."""
    states = open_states(path)
    texts = [states.sequence(index, TAPS) for index in range(SEQUENCES)]
    tensors = {
        tap_name(tap): torch.cat([one.h[tap][: TOKENS - 1] for one in texts]).to(dtype)
        for tap in TAPS
    }
    tensors["tokens"] = torch.cat([one.tokens[:TOKENS] for one in texts]).to(torch.int32)
    tensors["loss_mask"] = torch.ones(SEQUENCES * TOKENS, dtype=torch.uint8)
    tensors["lengths"] = torch.full((SEQUENCES,), TOKENS, dtype=torch.int32)
    name = str(dtype).removeprefix("torch.")
    facts = replace(states.provenance, kinds=("",) * SEQUENCES, dtype=name, model="SmolLM2-135M")
    out = ROWS / f"{facts.compute}.safetensors"
    save_file(tensors, out, metadata=provenance_metadata(facts))
    return open_states(out), states.provenance.model


@torch.no_grad()
def branches(states, model):
    """What attention and MLP of two layers add, [rows, H] over all sequences."""
    target = load_target(model)
    kept: dict[str, list[torch.Tensor]] = {}
    for layer in BRANCHES:
        block = target.structure.layers[layer]
        for name, module in (("attention", block.self_attn), ("mlp", block.mlp)):
            module.register_forward_hook(
                lambda _module, _args, out, key=f"{name}[{layer}]": kept.setdefault(key, []).append(
                    (out[0] if isinstance(out, tuple) else out)[0].half()
                )
            )
    for index in range(len(states)):
        target.model(states.sequence(index, [0]).tokens[None, :-1])
    save_file({name: torch.cat(rows) for name, rows in kept.items()}, ROWS / "branches.safetensors")


if __name__ == "__main__":
    ROWS.mkdir(parents=True, exist_ok=True)
    made, source = cut(sys.argv[1], torch.float16)
    cut(sys.argv[2], torch.bfloat16)
    cut(sys.argv[3], torch.float16)
    branches(made, source)
