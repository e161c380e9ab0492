"""The world's drafters: one table of how each is wired, and their training on captured states.

One is trained by `draftprobe train`, all others by the `speculators` package's own module, batch
shift and loss, so that no convention of ours can hide in both trainer and replay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from draftprobe.drafter.vocabulary import choose, tables
from draftprobe.states.record import States, open_states
from draftprobe.states.target import text_config

STEPS, MUON = 4, 0.02
"""Draft steps trained from half-way on, and the matrices' peak learning rate."""


@dataclass(frozen=True, slots=True)
class Made:
    """How one drafter is made.

    Attributes:
        target: name of its target's folder.
        taps: boundaries in slot order.
        draft_vocabulary: tokens it can say; None for all of the target's.
        intermediate: MLP width.
        trainer: ``draftprobe`` or ``speculators``.
        flags: speculators' own flags that are true.
        updates: optimizer steps.
        good: it reaches the world's goals: step 1 at 0.7, acceptance length 2.5 with 5 drafts.
    """

    target: str
    taps: tuple[int, ...]
    draft_vocabulary: int | None
    intermediate: int
    trainer: str
    flags: tuple[str, ...] = field(default=())
    updates: int = 240
    good: bool = True


DRAFTERS = {
    "l2_5_7": Made("llama", (2, 5, 7), 960, 128, "draftprobe", updates=700, good=False),
    "l0_3_6": Made("llama", (0, 3, 6), None, 128, "speculators"),
    "l8_4_1": Made("llama", (8, 4, 1), 960, 128, "speculators"),
    "l1_4_8_fcnorm": Made("llama", (1, 4, 8), 960, 128, "speculators", ("norm_before_fc",)),
    "l2_4_7_feedback": Made("llama", (2, 4, 7), None, 128, "speculators", ("norm_output",)),
    "k0_3_6_spec": Made("kimi", (0, 3, 6), 960, 128, "speculators", good=False),
}


def train_command(made: Made, target: Path, states: Path, held_out: Path, out: Path) -> list[str]:
    """Arguments of ``draftprobe`` that train it."""
    taps = ",".join(map(str, made.taps))
    size = made.draft_vocabulary or text_config(target)["vocab_size"]
    options = {
        "target": target, "states": states, "held-out": held_out, "taps": taps, "out": out,
        "draft-vocabulary": size, "intermediate": made.intermediate, "updates": made.updates,
        "batch-tokens": 1000, "steps": STEPS, "steps-from": 0.5, "rate": 3e-3, "measure-every": 200,
    }  # fmt: skip
    return ["train", *(word for k, v in options.items() for word in (f"--{k}", str(v)))]


def packs(states: States, taps: tuple[int, ...], size: int, seed: int) -> Iterator[dict[str, Any]]:
    """Endless batches of whole sequences, shifted by speculators and laid end to end."""
    from speculators.models.eagle3 import shift_batch

    last = states.provenance.layers
    whole = list(states.sequences((*taps, last)))
    generator = torch.Generator().manual_seed(seed)
    while True:
        parts: list[dict[str, torch.Tensor]] = []
        for index in torch.randperm(len(whole), generator=generator).tolist():
            s = whole[index]
            n = len(s.tokens) - 1  # states of the last token are not recorded
            parts.append(
                shift_batch(
                    {
                        "input_ids": s.tokens[:n],
                        "hidden_states": torch.cat([s.h[tap] for tap in taps], -1).float(),
                        "verifier_last_hidden_states": s.h[last].float(),
                        "loss_mask": s.mask[:n],
                        "lengths": torch.tensor([n]),
                        "position_ids": torch.arange(n),
                    }
                )
            )
            if sum(len(part["input_ids"]) for part in parts) >= size:
                yield _packed(parts)
                parts = []
        if parts:
            yield _packed(parts)


def _packed(parts: Sequence[dict[str, torch.Tensor]]) -> dict[str, Any]:
    keys = (
        "input_ids", "hidden_states", "verifier_last_hidden_states", "loss_mask", "position_ids"
    )  # fmt: skip
    joined = {key: torch.cat([part[key] for part in parts])[None] for key in keys}
    lengths = torch.tensor([len(part["input_ids"]) for part in parts])
    joined["document_ids"] = torch.repeat_interleave(torch.arange(len(parts)), lengths)[None]
    return joined


def speculators_model(made: Made, target: Path, counts: torch.Tensor, steps: int) -> Any:
    """A fresh Eagle3DraftModel with its target's embedding, head and final norm."""
    from speculators.models.eagle3 import Eagle3DraftModel
    from transformers import LlamaConfig

    text = text_config(target)
    layer = LlamaConfig(
        hidden_size=text["hidden_size"],
        intermediate_size=made.intermediate,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=text["vocab_size"],
        rms_norm_eps=text["rms_norm_eps"],
        max_position_embeddings=256,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=text["eos_token_id"],
    )
    size = made.draft_vocabulary or text["vocab_size"]
    kept = choose(counts, size)
    d2t, t2d = tables(kept, text["vocab_size"])
    model = Eagle3DraftModel.from_training_args(
        layer,
        t2d=t2d,
        d2t=d2t,
        target_layer_ids=list(made.taps),
        verifier_name_or_path=str(target),
        draft_vocab_size=size,
        norm_before_residual=False,
        ttt_steps=steps,
        draft_attn_impl="eager",
        **dict.fromkeys(made.flags, True),
    )
    return model.float()


def train_by_speculators(made: Made, target: Path, states_path: Path, out: Path) -> None:
    """Train with the module's own forward pass and loss, and save as it saves itself."""
    from speculators.losses import resolve_loss_config

    losses = resolve_loss_config("kl_div", "eager")
    states = open_states(states_path)
    counted = states.tokens[states.mask.bool()].long()
    vocabulary = text_config(target)["vocab_size"]
    torch.manual_seed(0)
    counts = torch.bincount(counted, minlength=vocabulary)
    model = speculators_model(made, target, counts, STEPS).train()
    learned = [p for p in model.parameters() if p.requires_grad]
    parts = [
        torch.optim.Muon([p for p in learned if p.dim() == 2], lr=MUON, weight_decay=0.0),
        torch.optim.AdamW([p for p in learned if p.dim() < 2], lr=3e-3, weight_decay=0.0),
    ]
    rounds = zip(range(made.updates), packs(states, made.taps, 600, seed=0), strict=False)
    for update, pack in rounds:
        done = update / made.updates
        for part, peak in zip(parts, (MUON, 3e-3), strict=True):
            part.param_groups[0]["lr"] = peak * min((update + 1) / 20, 1.02 - done)
        now = 1 if done < 0.5 else STEPS
        _, loss, metrics = model(**pack, ttt_steps=now, ttt_step_loss_decay=0.8, loss_config=losses)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        for part in parts:
            part.step()
            part.zero_grad(set_to_none=True)
        if (update + 1) % 50 == 0:
            accuracy = float(metrics["full_acc_0_sum"] / metrics["full_acc_0_total"])
            fact = {"update": update + 1, "loss": loss.item(), "step_1": accuracy}
            print(json.dumps(fact), flush=True)
    model.to(torch.bfloat16).save_pretrained(out)
