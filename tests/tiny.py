"""Tiny drafters and tiny states with planted texts, and a decode of them by brute force.

The brute force runs the drafter's block over the whole text again for every single draft, with an
attention of its own and no cache.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from draftprobe.drafter.model import Drafter, Shape
from draftprobe.drafter.vocabulary import tables
from draftprobe.drafter.wiring import Rope, eagle3, tap_name
from draftprobe.states.record import Provenance, open_states, provenance_metadata

TAPS = (0, 2, "N")
SHAPE = Shape(
    hidden=16, target_hidden=16, taps=3, heads=4, kv_heads=2, head_dim=4, intermediate=24,
    draft_vocabulary=24, vocabulary=40, epsilon=1e-6,
)  # fmt: skip


def drafter(seed=0, **wires):
    """A random drafter; weights large enough that position and context change the drafts."""
    generator = torch.Generator().manual_seed(seed)
    wiring = replace(eagle3(TAPS, Rope(theta=100.0)), **wires)
    table = torch.randn(SHAPE.vocabulary, SHAPE.hidden, generator=generator)
    made = Drafter(SHAPE, wiring, table)
    with torch.no_grad():
        for parameter in made.parameters():
            size = 0.5 if parameter.dim() == 1 else 2 * parameter.shape[-1] ** -0.5
            start = 1.0 if parameter.dim() == 1 else 0.0
            parameter.copy_(start + size * torch.randn(parameter.shape, generator=generator))
        kept = torch.randperm(SHAPE.vocabulary, generator=generator)[: SHAPE.draft_vocabulary]
        made.d2t.copy_(tables(kept.sort().values, SHAPE.vocabulary)[0])
    return made.eval()


def taps_of(made, h):
    return torch.cat([h[tap] for tap in made.wiring.taps], dim=-1)


@torch.no_grad()
def outputs(made, taps, tokens, slot, drafts):
    """Outputs of the chain that starts at ``slot`` and drafted ``drafts`` so far, step by step.

    Everything up to the slot is computed anew. ``tokens`` is read up to slot + token_shift only.
    """
    wiring, outs = made.wiring, []
    read = [max(0, s + wiring.token_shift) for s in range(slot + 1)]
    e = [made.embed(tokens[index]) for index in read]
    g = list(made.fuse(taps[: slot + 1]))
    positions = [wiring.position_start + s for s in range(slot + 1)]
    for step in range(1, len(drafts) + 2):
        o = made.block(torch.stack(e)[None], torch.stack(g)[None], torch.tensor(positions), causal)[
            0, -1
        ]
        outs.append(o)
        if step <= len(drafts):
            e.append(made.embed(torch.tensor(drafts[step - 1])))
            g.append(made.feedback(o, g[-1]))
            positions.append(wiring.position_start + slot + step * wiring.position_advance)
    return outs


def causal(_layer, q, k, v):
    """Attention of one text with an explicit mask: query i sees keys 0..i."""
    group, n = q.shape[1] // k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    scores[..., torch.arange(n)[:, None] < torch.arange(n)] = -torch.inf
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def drafted(made, taps, tokens, slot, steps):
    """Greedy drafts from ``slot``, target ids."""
    ids = made.target_ids()
    drafts = []
    for _ in range(steps):
        o = outputs(made, taps, tokens, slot, drafts)[-1]
        drafts.append(int(ids[made.logits(o).argmax()]))
    return drafts


def plant(made, prompt, length, steps, generator):
    """A text of random states whose tokens follow the drafter for a random number of drafts.

    Returns tokens, states by boundary, and the rounds (slot, drafts right in a row) of its decode.
    """
    h = {tap: torch.randn(length - 1, SHAPE.target_hidden, generator=generator) for tap in TAPS}
    taps = taps_of(made, h)
    tokens = torch.randint(SHAPE.vocabulary, (prompt + 1,), generator=generator).tolist()
    rounds = []
    while len(tokens) < length:
        slot, left = len(tokens) - 2, length - len(tokens)
        drafts = drafted(made, taps, torch.tensor(tokens), slot, steps)
        right = int(torch.randint(steps + 1, (1,), generator=generator))
        wrong = int(torch.randint(SHAPE.vocabulary, (1,), generator=generator))
        if right < steps and wrong == drafts[right]:
            wrong = (wrong + 1) % SHAPE.vocabulary
        rounds.append((slot, min(right, left)))
        tokens += [*drafts[:right], wrong][:left]
    return torch.tensor(tokens), h, rounds


def save_states(path: Path, texts, source="greedy", **facts):
    """Write a states file of (tokens, mask, states by boundary) and open it."""
    tensors = {tap_name(tap): torch.cat([h[tap] for _, _, h in texts]).contiguous() for tap in TAPS}
    tensors["tokens"] = torch.cat([tokens for tokens, _, _ in texts]).to(torch.int32)
    tensors["loss_mask"] = torch.cat([mask for _, mask, _ in texts]).to(torch.uint8)
    tensors["lengths"] = torch.tensor([len(tokens) for tokens, _, _ in texts], dtype=torch.int32)
    known = {
        "source": source, "model": "tiny", "model_type": "llama", "config_digest": "", "layers": 4,
        "hidden_size": SHAPE.target_hidden, "vocab_size": SHAPE.vocabulary, "dtype": "float32",
        "compute": "float32", "batch": 1, "template": None, "kinds": ("",) * len(texts),
        "versions": {},
    }  # fmt: skip
    provenance = Provenance(**(known | facts))
    save_file(tensors, path, metadata=provenance_metadata(provenance))
    return open_states(path)


def planted_states(path: Path, made, count=6, steps=3, seed=1, **facts):
    """A states file of planted texts of several lengths, and the rounds of each."""
    generator = torch.Generator().manual_seed(seed)
    texts, rounds = [], []
    for index in range(count):
        prompt = 2 + index % 4
        tokens, h, planted = plant(made, prompt, prompt + 14 + 3 * index, steps, generator)
        texts.append((tokens, torch.arange(len(tokens)) >= prompt, h))
        rounds.append(planted)
    return save_states(path, texts, **facts), rounds


def save_drafter(folder: Path, made):
    """The drafter as a folder in the SpecForge layout."""
    folder.mkdir()
    wiring = made.wiring
    config = {
        "hidden_size": SHAPE.hidden, "num_attention_heads": SHAPE.heads,
        "vocab_size": SHAPE.vocabulary, "rms_norm_eps": SHAPE.epsilon,
        "rope_theta": wiring.rope.theta, "norm_before_residual": wiring.residual == "normed",
        "norm_output": wiring.feedback == "post_norm",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        name.replace("layers.0.", "midlayer."): tensor.contiguous()
        for name, tensor in made.state_dict().items()
    }
    if wiring.embedding == "own":
        tensors["embed_tokens.weight"] = made.embedding.contiguous()
    save_file(tensors, folder / "model.safetensors")
    return folder


def save_target(folder: Path, table):
    """A target folder that holds an embedding table and nothing else."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(table)}))
    save_file({"model.embed_tokens.weight": table.contiguous()}, folder / "model.safetensors")
    return folder
