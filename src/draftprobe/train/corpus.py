"""Training text as padded batches: recorded sequences, their taps, and the target's final state.

Reads states files sequence by sequence into memory in their stored dtype; knows no drafter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from draftprobe.drafter.wiring import Tap
from draftprobe.errors import InputError
from draftprobe.states.record import Recorded, States


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded sequences.

    Attributes:
        tokens: int64 [B, n]; counted: bool [B, n], tokens whose prediction counts.
        taps: float32 [B, n - 1, taps * H]; final: h[N], float32 [B, n - 1, H].
    """

    tokens: torch.Tensor
    counted: torch.Tensor
    taps: torch.Tensor
    final: torch.Tensor


@dataclass(frozen=True)
class Corpus:
    """Sequences in memory, with the taps to train on."""

    sequences: Sequence[Recorded]
    taps: tuple[Tap, ...]

    def counts(self, vocabulary: int) -> torch.Tensor:
        """Occurrences of each token among those whose prediction counts, int64 [V]."""
        counted = torch.cat([s.tokens[s.mask] for s in self.sequences])
        return torch.bincount(counted, minlength=vocabulary)

    def scales(self) -> list[float]:
        """Root mean square of each tap's states; first 4 tokens left out (attention sinks)."""
        sample = self.sequences[:64]
        return [
            float(torch.cat([s.h[tap][4:].float() for s in sample]).square().mean().sqrt())
            for tap in self.taps
        ]

    def batches(self, tokens: int, seed: int) -> Iterator[Batch]:
        """One pass in random order: batches of about ``tokens`` slots, of similar length."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.sequences), generator=generator).tolist()
        lengths = [len(s.tokens) for s in self.sequences]
        groups: list[list[int]] = []
        for start in range(0, len(order), 64):  # similar lengths within a window of 64
            group: list[int] = []
            for index in sorted(order[start : start + 64], key=lambda i: lengths[i]):
                if group and lengths[index] * (len(group) + 1) > tokens:
                    groups.append(group)
                    group = []
                group.append(index)
            groups.append(group)
        for position in torch.randperm(len(groups), generator=generator).tolist():
            yield self._batch([self.sequences[i] for i in groups[position]])

    def _batch(self, sequences: Sequence[Recorded]) -> Batch:
        n = max(len(s.tokens) for s in sequences)
        width = sequences[0].h["N"].shape[1]
        tokens = torch.zeros(len(sequences), n, dtype=torch.long)
        counted = torch.zeros(len(sequences), n, dtype=torch.bool)
        taps = torch.zeros(len(sequences), n - 1, width * len(self.taps))
        final = torch.zeros(len(sequences), n - 1, width)
        for row, s in enumerate(sequences):
            tokens[row, : len(s.tokens)] = s.tokens
            counted[row, : len(s.tokens)] = s.mask
            final[row, : len(s.tokens) - 1] = s.h["N"].float()
            for slot, tap in enumerate(self.taps):
                where = slice(slot * width, (slot + 1) * width)
                taps[row, : len(s.tokens) - 1, where] = s.h[tap].float()
        return Batch(tokens, counted, taps, final)


def load_corpus(files: Sequence[States], taps: tuple[Tap, ...]) -> Corpus:
    """Every sequence of some states files that has a counted token.

    Raises:
        InputError: the files are of different targets, or hold nothing to learn.
    """
    digests = {states.provenance.config_digest for states in files}
    if len(digests) != 1:
        names = ", ".join(f"{s.path} ({s.provenance.model})" for s in files)
        raise InputError(f"states files are of different targets: {names}")
    sequences = [s for states in files for s in states.sequences((*taps, "N")) if s.mask[2:].any()]
    if not sequences:
        raise InputError(f"{files[0].path}: no sequence has a token whose prediction counts")
    return Corpus(sequences, taps)
