"""The training loop: EAGLE-3's training-time test over k draft steps, resumable, seeded.

    loss = sum_i decay^(i-1) * mean over counted slots of CE(p(x_{t+1+i} | text), q_i)

where p is the target's distribution renormalised over the draft vocabulary and q_i that of draft
step i (arXiv 2503.01840, section 3). Slots whose token lies outside the draft vocabulary are left
out. Knows tensors and batches, no files but its own resume state.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from draftprobe.drafter.model import Drafter, unroll
from draftprobe.errors import InputError
from draftprobe.train.corpus import Batch, Corpus


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train.

    Attributes:
        updates: optimizer steps.
        batch_tokens: slots per update.
        steps: draft steps of the training-time test.
        steps_from: share of the updates after which all ``steps`` are trained; before, only one.
        decay: weight of draft step i is decay ** (i - 1).
        rate: peak learning rate, reached after ``warm_up`` updates, cosine to a tenth.
        warm_up: updates of linear warm-up.
        clip: largest gradient norm.
        seed: of order and initial weights.
    """

    updates: int
    batch_tokens: int
    steps: int
    steps_from: float
    decay: float
    rate: float
    warm_up: int
    clip: float
    seed: int

    def rate_at(self, update: int) -> float:
        """Learning rate of update 0, 1, ..."""
        if update < self.warm_up:
            return self.rate * (update + 1) / self.warm_up
        done = (update - self.warm_up) / max(1, self.updates - self.warm_up)
        return self.rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))

    def steps_at(self, update: int) -> int:
        """Draft steps trained in update 0, 1, ..."""
        return self.steps if update >= self.steps_from * self.updates else 1


def loss_of(
    drafter: Drafter,
    batch: Batch,
    steps: int,
    decay: float,
    head: torch.Tensor,
    labels: torch.Tensor,
) -> torch.Tensor:
    """The training-time test's loss on one batch, a scalar.

    Args:
        drafter: in training mode.
        batch: right-padded sequences.
        steps: draft steps.
        decay: weight of step i is decay ** (i - 1).
        head: the target's lm_head rows of the draft vocabulary, [D, H].
        labels: target id -> draft id or -1, int64 [V].
    """
    n = batch.tokens.shape[1]
    counted = batch.counted & (labels[batch.tokens] >= 0)  # [B, n]
    total = torch.zeros(())
    for step, o in enumerate(unroll(drafter, batch.taps, batch.tokens, steps), 1):
        # Slot t of step i predicts token t + 1 + i, whose teacher is the state at t + i.
        last = n - 1 - step
        chosen = counted[:, step + 1 :]  # [B, last]
        if last < 1 or not chosen.any():
            break
        scores = drafter.logits(o[:, :last][chosen]).float()
        teacher = (batch.final[:, step : step + last][chosen] @ head.T).softmax(-1)
        total = total + decay ** (step - 1) * F.cross_entropy(scores, teacher)
    return total


def train(
    drafter: Drafter,
    corpus: Corpus,
    recipe: Recipe,
    head: torch.Tensor,
    labels: torch.Tensor,
    state: Path,
    watch: Callable[[int, float], None],
    save_every: int = 200,
    autocast: torch.dtype | None = None,
) -> None:
    """Train in place; ``watch(updates done, loss)`` after each; resumes from ``state`` if there.

    Raises:
        InputError: ``state`` belongs to another recipe.
    """
    optimizer = torch.optim.AdamW(
        drafter.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    done = _resume(state, recipe, drafter, optimizer)
    drafter.train()
    for update, batch in _stream(corpus, recipe, done):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate_at(update)
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            loss = loss_of(drafter, batch, recipe.steps_at(update), recipe.decay, head, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (update + 1) % save_every == 0 or update + 1 == recipe.updates:
            _save(state, recipe, drafter, optimizer, update + 1)
        watch(update + 1, loss.item())
    drafter.eval()


def _stream(corpus: Corpus, recipe: Recipe, done: int) -> Iterator[tuple[int, Batch]]:
    """Batches of updates ``done``, ``done`` + 1, ...: the same whether resumed or not."""
    update = epoch = 0
    while update < recipe.updates:
        for batch in corpus.batches(recipe.batch_tokens, seed=recipe.seed * 100_003 + epoch):
            if update >= recipe.updates:
                return
            if update >= done:
                yield update, batch
            update += 1
        epoch += 1


def _save(
    state: Path, recipe: Recipe, drafter: Drafter, optimizer: torch.optim.Optimizer, done: int
) -> None:
    beside = state.with_name(state.name + ".partial")
    data = {
        "recipe": asdict(recipe),
        "weights": drafter.state_dict(),
        "optimizer": optimizer.state_dict(),
        "done": done,
    }
    torch.save(data, beside)
    os.replace(beside, state)


def _resume(state: Path, recipe: Recipe, drafter: Drafter, optimizer: torch.optim.Optimizer) -> int:
    if not state.exists():
        return 0
    data: dict[str, Any] = torch.load(state, weights_only=True)
    if data["recipe"] != asdict(recipe):
        raise InputError(f"{state}: belongs to another recipe; remove it or choose another --out")
    drafter.load_state_dict(data["weights"])
    optimizer.load_state_dict(data["optimizer"])
    return data["done"]
