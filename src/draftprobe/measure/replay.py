"""Replay: the drafter run on recorded states, teacher-forced, and what it drafted token by token.

Step 1 reads target states; steps 2..k read what the drafter fed back, with the text's own tokens.
Knows wires only through the drafter, and draws no conclusion: rates and intervals are in summary.

    The chain that starts at slot t: step 1 reads h_t and e(x_{t+1}) and predicts x_{t+2};
    step i reads step i - 1's feedback and e(x_{t+i}) and predicts x_{t+1+i}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from draftprobe.drafter.model import WORKING_SET, Drafter, unroll_fused
from draftprobe.drafter.vocabulary import draft_labels
from draftprobe.drafter.wiring import Tap, Wiring, check_taps
from draftprobe.errors import InputError
from draftprobe.states.record import States


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """What each draft step of each chain did; n chains in the order of the text, k steps.

    Attributes:
        sequence: int64 [n]; slot: int64 [n], where the chain starts.
        started: bool [n]: x_{slot+1}, the newest token known there, counts too, so that a decode
            can stand there; false only on the first counted token of a run.
        valid: bool [k, n]: the predicted token, and all before it in the chain, count.
        inside: bool [k, n]: the draft vocabulary holds the predicted token.
        correct: bool [k, n]: the drafter's argmax is the text's token.
        log_likelihood: float32 [k, n] of the text's token under the softmax over the draft
            vocabulary; NaN where not valid or not inside.
        whole: every counted token was observed, not a sample of them.
        source: where the text comes from: ``greedy``, ``sampled`` or ``dataset``.
    """

    sequence: torch.Tensor
    slot: torch.Tensor
    started: torch.Tensor
    valid: torch.Tensor
    inside: torch.Tensor
    correct: torch.Tensor
    log_likelihood: torch.Tensor
    whole: bool
    source: str

    @property
    def steps(self) -> int:
        """k, the length of a chain."""
        return self.valid.shape[0]

    @property
    def run_lengths(self) -> torch.Tensor:
        """Drafts right in a row from step 1 on, int64 [n]."""
        return self.correct.long().cumprod(0).sum(0)

    def only(self, sequences: torch.Tensor) -> Observations:
        """The observations of some sequences, int64 [m]."""
        kept = torch.isin(self.sequence, sequences)
        tensors = {name: getattr(self, name)[..., kept] for name in Part.__slots__}
        return Observations(**tensors, whole=self.whole, source=self.source)

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Sums of ``values`` [..., n] by sequence, float64 [..., sequences observed]."""
        kinds, inverse = self.sequence.unique_consecutive(return_inverse=True)
        out = torch.zeros(*values.shape[:-1], len(kinds), dtype=torch.float64)
        return out.index_add_(-1, inverse, values.double())


def check_fit(drafter: Drafter, states: States) -> None:
    """Raise InputError unless the states can feed this drafter as it is wired."""
    shape, source = drafter.shape, states.provenance
    width = shape.taps * shape.target_hidden
    if source.hidden_size != shape.target_hidden:
        slots = width // source.hidden_size
        fits = slots * source.hidden_size == width
        raise InputError(
            f"{states.path}: expected states of hidden size {shape.target_hidden}, as fc reads "
            f"{width} channels for {shape.taps} taps, found {source.hidden_size}; "
            + (f"give {slots} taps, or " if fits else "")
            + "capture from this drafter's target"
        )
    if source.vocab_size != shape.vocabulary:
        raise InputError(
            f"{states.path}: expected a target of {shape.vocabulary} tokens, as the drafter's "
            f"config says, found {source.vocab_size}; capture from this drafter's target"
        )
    check_taps(drafter.wiring.taps, source.layers)
    states.require(drafter.wiring.taps)


@torch.inference_mode()
def observe(
    drafter: Drafter,
    states: States,
    steps: int,
    limit: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Observations:
    """Replay ``states`` through ``drafter``, on the drafter's device.

    Args:
        drafter: the drafter, wired.
        states: recorded states that hold the wiring's taps.
        steps: draft steps per chain.
        limit: at most so many counted tokens, spread over all sequences; None takes all.
        progress: called with (sequences done, of).

    Raises:
        InputError: the states do not fit the drafter, no token counts, or the drafter overflows.
    """
    check_fit(drafter, states)
    if steps < 1 or (limit is not None and limit < 1):
        raise InputError(f"expected at least 1 step and 1 token, found {steps} and {limit}")
    slots, total = _choose(states, limit)
    scorer = Scorer(drafter)
    parts: list[Part] = []
    done = 0
    for batch in _batches(slots, states.provenance.hidden_size * len(drafter.wiring.taps)):
        made = batch_of(states, batch, [slots[i] for i in batch], drafter.fc.weight.device)
        parts.append(replay_batch(drafter, scorer, made, steps))
        done += len(batch)
        progress(done, sum(len(chosen) > 0 for chosen in slots))
    order = torch.cat([part.sequence for part in parts]).argsort(stable=True)
    joined = {
        name: torch.cat([getattr(part, name) for part in parts], dim=-1)[..., order]
        for name in Part.__slots__
    }
    return Observations(**joined, whole=len(order) == total, source=states.provenance.source)


def _choose(states: States, limit: int | None) -> tuple[list[torch.Tensor], int]:
    """Per sequence, ascending slots whose predicted token counts; and how many there are in all."""
    masks = states.mask.split(list(states.lengths))
    slots = [mask[2:].nonzero().flatten() for mask in masks]  # slot t predicts x_{t+2}
    total = sum(len(chosen) for chosen in slots)
    if not total:
        raise InputError(
            f"{states.path}: no token counts: the loss mask is empty from each third token on"
        )
    if limit is not None and limit < total:
        quotas = spread([len(chosen) for chosen in slots], limit)
        slots = [
            chosen[((torch.arange(quota) + 0.5) * len(chosen) / max(quota, 1)).long()]
            for chosen, quota in zip(slots, quotas, strict=True)
        ]
    return slots, total


def spread(capacities: Sequence[int], limit: int) -> list[int]:
    """Share ``limit`` among sequences as evenly as their capacities allow; deterministic.

    What cannot be shared evenly goes to sequences scattered over the file, not to its end.
    """

    def rank(index: int) -> tuple[int, float]:
        return capacities[index], index * 0.6180339887 % 1

    quotas = [0] * len(capacities)
    for place, index in enumerate(sorted(range(len(capacities)), key=rank)):
        quotas[index] = min(capacities[index], limit // (len(capacities) - place))
        limit -= quotas[index]
    return quotas


def _batches(slots: Sequence[torch.Tensor], width: int) -> Iterator[list[int]]:
    """Sequences of like length together, as many as the size of their tap states allows."""
    needed = {i: int(chosen[-1]) + 1 for i, chosen in enumerate(slots) if len(chosen)}
    batch: list[int] = []
    for index in sorted(needed, key=needed.__getitem__):
        if batch and (len(batch) + 1) * needed[index] * width > WORKING_SET:
            yield batch
            batch = []
        batch.append(index)
    yield batch


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The tensors of Observations for one batch, on the CPU."""

    sequence: torch.Tensor
    slot: torch.Tensor
    started: torch.Tensor
    valid: torch.Tensor
    inside: torch.Tensor
    correct: torch.Tensor
    log_likelihood: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Sequences side by side, read once, on which any wiring can be replayed.

    Attributes:
        states: where boundaries are read from when they are first asked for.
        index: the sequences; C chains of each are observed, T slots are attended to.
        tokens: int64 [B, n]; mask: bool [B, n]; ends: int64 [B, 1], lengths.
        slots: int64 [B, C], where chains start, padded with slot 0; real: bool [B, C].
        width: T.
        h: boundary -> [B, T + 1, target_hidden], right-padded; what was read so far.
    """

    states: States
    index: tuple[int, ...]
    tokens: torch.Tensor
    mask: torch.Tensor
    ends: torch.Tensor
    slots: torch.Tensor
    real: torch.Tensor
    width: int
    h: dict[Tap, torch.Tensor]

    def taps(self, wiring: Wiring, dtype: torch.dtype) -> torch.Tensor:
        """What fc reads, [B, T, taps * target_hidden]."""
        missing: list[Tap] = [tap for tap in dict.fromkeys(wiring.taps) if tap not in self.h]
        if missing:
            recorded = [self.states.sequence(index, missing) for index in self.index]
            for tap in missing:
                rows = [r.h[tap][: self.width + 1] for r in recorded]
                self.h[tap] = _stack(rows).to(self.tokens.device, dtype)
        slots = torch.arange(self.width, device=self.tokens.device) + wiring.state_shift
        last = (self.ends - 2).clamp(max=self.h[wiring.taps[0]].shape[1] - 1)  # [B, 1]
        slots = slots.clamp(min=0).expand(len(last), -1).minimum(last)  # [B, T]
        rows = torch.arange(len(last), device=slots.device)[:, None]
        return torch.cat([self.h[tap][rows, slots] for tap in wiring.taps], dim=-1)


def batch_of(
    states: States, index: Sequence[int], chosen: Sequence[torch.Tensor], device: torch.device
) -> Batch:
    """A batch of the sequences ``index``, with the slots ``chosen`` of each (not empty)."""
    recorded = [states.sequence(i, ()) for i in index]
    return Batch(
        states=states,
        index=tuple(index),
        tokens=_stack([r.tokens for r in recorded]).to(device),
        mask=_stack([r.mask for r in recorded]).to(device),
        ends=torch.tensor([len(r.tokens) for r in recorded], device=device)[:, None],
        slots=_stack(list(chosen)).to(device),
        real=_stack([torch.ones_like(c, dtype=torch.bool) for c in chosen]).to(device),
        width=max(int(c[-1]) for c in chosen) + 1,  # later slots see only earlier ones
        h={},
    )


def replay_batch(
    drafter: Drafter,
    scorer: Scorer,
    batch: Batch,
    steps: int,
    fused: torch.Tensor | None = None,
) -> Part:
    """Replay one batch; ``fused`` is fc's output [B, T, H] where it is known already."""
    wiring, slots, ends, real = drafter.wiring, batch.slots, batch.ends, batch.real
    if fused is None:
        fused = drafter.fuse(batch.taps(wiring, drafter.dtype))

    def at(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return values.gather(1, index.clamp(min=0).minimum(ends - 1))

    columns = []
    valid = real
    outputs = unroll_fused(drafter, fused, batch.tokens, steps, slots, ends)
    for step, o in enumerate(outputs, 1):
        read, label = (
            slots + wiring.token_shift + (step - 1) * wiring.token_advance,
            slots + 1 + step,
        )
        known = (read >= 0) & (read < ends) & (label < ends)
        valid = valid & known & at(batch.mask, label)
        columns.append((valid[real], *scorer(o, at(batch.tokens, label), valid, real)))
    valid, inside, correct, likelihood = (torch.stack(c).cpu() for c in zip(*columns, strict=True))
    rows = torch.tensor(batch.index)[:, None].expand(slots.shape)
    started = at(batch.mask, slots + 1)
    return Part(
        rows[real.cpu()], slots[real].cpu(), started[real].cpu(), valid, inside, correct, likelihood
    )


def _stack(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Scorer:
    """The head and the draft vocabulary, over only the positions that count."""

    def __init__(self, drafter: Drafter) -> None:
        device, shape = drafter.fc.weight.device, drafter.shape
        self._drafter = drafter
        self._ids = drafter.target_ids().to(device)
        self._labels = draft_labels(self._ids.cpu(), shape.vocabulary).to(device)
        self._rows = max(128, WORKING_SET // shape.draft_vocabulary)

    def __call__(
        self, o: torch.Tensor, wanted: torch.Tensor, valid: torch.Tensor, real: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inside, correct and log-likelihood of ``wanted`` [B, C], at the real chains [n]."""
        inside = valid & (self._labels[wanted] >= 0)
        correct = torch.zeros_like(valid)
        likelihood = torch.full(valid.shape, torch.nan, device=o.device)
        pairs = zip(o[valid].split(self._rows), wanted[valid].split(self._rows), strict=True)
        scored = [self._score(*pair) for pair in pairs]
        if scored:
            right, likely = (torch.cat(column) for column in zip(*scored, strict=True))
            correct[valid], likelihood[valid] = right, likely
        return inside[real], correct[real], likelihood[real]

    def _score(self, o: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._drafter.logits(o.float())  # [m, D]
        best, draft = logits.max(-1)
        label = self._labels[wanted]
        picked = logits.gather(-1, label.clamp(min=0)[:, None])[:, 0]
        total = best + logits.sub_(best[:, None]).exp_().sum(-1).log()  # in place: D is large
        if not torch.isfinite(total).all():
            raise InputError(
                "the drafter's scores are NaN or infinite; replay it in float32, and check that "
                "the states are of its target"
            )
        likely = (picked - total).masked_fill(label < 0, torch.nan)
        return self._ids[draft] == wanted, likely
