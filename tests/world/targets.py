"""The world's two targets: their configs, their training, and how well they answer.

    python -m tests.world.targets llama OUT

Muon for the layers' matrices, AdamW for all else, on freshly drawn texts. Knows no drafter.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

import torch
import torch.nn.functional as F
import transformers as tf
from safetensors.torch import load_file
from torch import nn

from . import language
from .upcycle import upcycle

IGNORED = -100
PROMPT_WEIGHT = 0.1
HELD_OUT_SEED = 10_000_019
COMMON = {
    "vocab_size": len(language.WORDS),
    "hidden_size": 128,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "bos_token_id": None,
    "eos_token_id": language.END,
    "pad_token_id": language.PAD,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",  # short texts: faster than the fused kernel in bfloat16
}
LLAMA = COMMON | {
    "num_hidden_layers": 10,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
DEEPSEEK = COMMON | {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 10,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 8,  # one MLP of 8 times the routed experts' width
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "pos_emb_height": 4,
    "pos_emb_width": 4,
}
AHEAD = {4: (1, 0.2), 6: (2, 0.5), 8: (3, 0.3)}
"""Scouts, linear maps that are thrown away: from which boundary, how many places ahead, weight.

They make inner states look ahead, as those of large models do of themselves.
"""
LIKENESS, APART = 0.75, 2.0
"""A cosine of neighbouring boundaries above the first costs the second times the excess: layers of
so small a model would else change the residual stream so little that a tap one late shows nothing.
"""
TEXTS = 24
"""Texts per update."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of training with optimizers of its own.

    Attributes:
        updates: how many; seed: of its texts.
        fall: over so many updates at its end the learning rate falls to nothing.
        plain: next-token loss alone; else with :data:`AHEAD` and :data:`APART`.
    """

    updates: int
    seed: int
    fall: int
    plain: bool = False


FOLDER = Path(__file__).parent
FLOORS = {"llama": 0.8, "kimi": 0.8}
"""Next-token accuracy on held-out answers that a shipped target has at least."""
RECIPES = {
    "llama": (Phase(1200, 1, 1, plain=True), Phase(450, 3, 450, plain=True), Phase(450, 7, 350)),
    "kimi": (Phase(160, 9, 140),),
}


def build(name: str) -> Any:
    """The target with random weights."""
    torch.manual_seed(0)
    if name == "llama":
        return tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA))
    config = tf.Kimi_K25Config(
        text_config=dict(DEEPSEEK),
        vision_config=dict(VISION),
        projection_hidden_size=16,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    return tf.Kimi_K25ForConditionalGeneration(config)


def batch(texts: list[language.Text]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Right-padded ids [B, n], labels [B, n - 1] and their weights [B, n - 1]."""
    pairs = [text.ids() for text in texts]
    n = max(len(prompt) + len(answer) for prompt, answer in pairs)
    ids = torch.full((len(pairs), n), language.PAD)
    labels, weights = torch.full((len(pairs), n), IGNORED), torch.zeros(len(pairs), n)
    for row, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        ids[row, :end] = labels[row, :end] = torch.tensor(prompt + answer)
        weights[row, :end] = PROMPT_WEIGHT
        weights[row, len(prompt) : end] = 1.0
    return ids, labels[:, 1:], weights[:, 1:]


def _stream(size: int, seed: int) -> Iterator[list[language.Text]]:
    draw = language.random.Random(seed)
    while True:
        yield [language.text(draw) for _ in range(size)]


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(input_ids=ids[:, :-1], use_cache=False).logits.float()


def _optimizers(model: Any, scouts: nn.ModuleDict) -> list[torch.optim.Optimizer]:
    matrices, experts, rest = [], [], []
    for name, parameter in model.named_parameters():
        if "vision" in name or "projector" in name:
            parameter.requires_grad_(False)
        elif parameter.dim() == 3:
            experts.append(parameter)
        elif parameter.dim() == 2 and ".layers." in name and ".gate." not in name:
            matrices.append(parameter)
        else:
            rest.append(parameter)
    matrices += scouts.parameters()
    groups = [{"params": rest, "lr": 4e-3}, {"params": experts, "lr": 2e-3}]
    return [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _share(update: int, phase: Phase) -> float:
    """Of the peak learning rate: up within 30 updates, then level, and down at the end."""
    left = (phase.updates - update) / max(1, phase.fall)
    return min(1.0, (update + 1) / 30, max(0.02, left))


def train(name: str, out: Path, phases: Sequence[Phase], start: Path | None = None) -> None:
    """Train and write the folder now and then.

    Llama starts from random weights, or goes on from the folder ``start``; Kimi starts from Llama.
    """
    model = build(name)
    if name == "kimi":
        upcycle(start or FOLDER / "llama", model)
    elif start is not None:
        weights = load_file(start / "model.safetensors")
        model.load_state_dict({key: value.float() for key, value in weights.items()})
    width = model.lm_head.weight.shape[1]
    scouts = nn.ModuleDict({str(k): nn.Linear(width, width, bias=False) for k in AHEAD})
    for phase in phases:
        _phase(model, scouts, out, phase)


def _phase(model: Any, scouts: nn.ModuleDict, out: Path, phase: Phase) -> None:
    parts = _optimizers(model, scouts)
    groups = [group for part in parts for group in part.param_groups]
    peaks = [group["lr"] for group in groups]
    begun, losses = process_time(), []
    for update, texts in zip(range(phase.updates), _stream(TEXTS, phase.seed), strict=False):
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * _share(update, phase)
        losses.append(_update(model, scouts, texts, phase.plain))
        for part in parts:
            part.step()
            part.zero_grad(set_to_none=True)
        if (update + 1) % 25 == 0:
            fact = {"update": update + 1, "loss": round(sum(losses[-25:]) / 25, 4)}
            print(json.dumps(fact | {"cpu_s": round(process_time() - begun)}), flush=True)
        if (update + 1) % 200 == 0 or update + 1 == phase.updates:
            save(model, out)
            print(json.dumps(answers(model, 100)), flush=True)


def _update(model: Any, scouts: nn.ModuleDict, texts: list[language.Text], plain: bool) -> float:
    """Gradients of one batch; the next-token loss."""
    ids, labels, weights = batch(texts)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(input_ids=ids[:, :-1], use_cache=False, output_hidden_states=True)
        each = F.cross_entropy(
            output.logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED,
            reduction="none",
        )  # fmt: skip
        loss = (each * weights.flatten()).sum() / weights.sum()
        total, h = loss, output.hidden_states
        if not plain:
            total = loss + _ahead(model, scouts, h, labels, weights) + APART * _alike(h, labels)
    total.backward()
    learned = [p for p in (*model.parameters(), *scouts.parameters()) if p.requires_grad]
    torch.nn.utils.clip_grad_norm_(learned, 1.0)
    return loss.item()


def _ahead(
    model: Any, scouts: nn.ModuleDict, h: Sequence[torch.Tensor], labels: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """How badly the scouts tell the token that is some places ahead from an inner boundary."""
    total = torch.zeros(())
    for boundary, (places, weight) in AHEAD.items():
        wanted = labels[:, places - 1 :]
        counted = weights[:, places - 1 :] == 1
        seen = h[boundary][:, : wanted.shape[1]][counted]
        logits = model.lm_head(F.rms_norm(scouts[str(boundary)](seen), seen.shape[-1:]))
        total = total + weight * F.cross_entropy(logits.float(), wanted[counted])
    return total


def _alike(h: Sequence[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """How much the cosine of neighbouring boundaries exceeds the limit, mean over all."""
    real = labels != IGNORED
    real[:, :4] = False  # attention sinks
    pairs = pairwise(h[1:-1])  # the last entry is behind the final norm
    over = [(torch.cosine_similarity(a[real], b[real], dim=-1) - LIKENESS).relu() for a, b in pairs]
    return torch.stack([x.mean() for x in over]).mean()


@torch.inference_mode()
def answers(model: Any, count: int, seed: int = HELD_OUT_SEED) -> dict[str, Any]:
    """Held-out answers, teacher-forced: loss, next-token accuracy, share of all-right answers."""
    model.eval()
    total, right, seen, whole = 0.0, 0, 0, 0
    held_out = language.texts(count, seed)
    for first in range(0, count, 50):
        ids, labels, weights = batch(held_out[first : first + 50])
        logits, counted = _logits(model, ids), weights == 1
        total += F.cross_entropy(logits[counted], labels[counted], reduction="sum").item()
        good = logits.argmax(-1) == labels
        right, seen = right + int(good[counted].sum()), seen + int(counted.sum())
        whole += int((good | ~counted).all(1).sum())
    model.train()
    return {
        "texts": count, "tokens": seen, "loss": total / seen, "accuracy": right / seen,
        "all_right": whole / count,
    }  # fmt: skip


def save(model: Any, out: Path) -> None:
    """The folder as transformers reads it: bfloat16 weights, tokenizer, greedy generation."""
    copy = build("llama" if model.config.model_type == "llama" else "kimi")
    copy.load_state_dict(model.state_dict())
    copy.generation_config = tf.GenerationConfig(
        do_sample=False, eos_token_id=language.END, pad_token_id=language.PAD
    )
    copy.to(torch.bfloat16).save_pretrained(out)
    language.tokenizer().save_pretrained(out)


def main() -> None:
    """Train one target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--start", type=Path, help="A Llama folder to go on from.")
    parser.add_argument("--phase", type=int, nargs=3, metavar=("UPDATES", "SEED", "FALL"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    phases = (Phase(*given.phase),) if given.phase else RECIPES[given.name]
    train(given.name, given.out, phases, given.start)


if __name__ == "__main__":
    sys.exit(main())
