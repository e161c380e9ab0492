"""The wiring test that a drafter carries: a few tokens, their tap states, the expected drafts.

``golden.safetensors`` stands beside the weights; its metadata holds the Wiring as trained. Knows
how to make, write, read and replay one, not what a mismatch means.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from draftprobe.drafter.checkpoint import read_header, read_tensor
from draftprobe.drafter.model import Drafter, unroll
from draftprobe.drafter.wiring import Wiring, from_json, to_json
from draftprobe.errors import InputError

NAME = "golden.safetensors"
_KEY = "draftprobe-golden"
_MAX_BYTES = 1_000_000
_MAX_VOCABULARY = 10_000_000


@dataclass(frozen=True, slots=True)
class Golden:
    """A drafter's own test.

    Attributes:
        wiring: as trained.
        tokens: int64 [n]; taps: float32 [n - 1, taps * target_hidden], in slot order.
        embedding: e(tokens), float32 [n, H], so that no target is needed.
        drafts: target ids that steps 1..k draft at each slot, int64 [k, n - 1].
        vocabulary: V.
    """

    wiring: Wiring
    tokens: torch.Tensor
    taps: torch.Tensor
    embedding: torch.Tensor
    drafts: torch.Tensor
    vocabulary: int

    def table(self) -> torch.Tensor:
        """An embedding table [V, H] that is right on the golden tokens and zero elsewhere."""
        table = torch.zeros(self.vocabulary, self.embedding.shape[1])
        table[self.tokens] = self.embedding
        return table


def make(drafter: Drafter, tokens: torch.Tensor, taps: torch.Tensor, steps: int) -> Golden:
    """Expected drafts of the first tokens [n] of a text with taps [n - 1, ...], under 1 MB."""
    per_token = 4 * (taps.shape[1] + drafter.shape.hidden)
    n = max(8, min(64, len(tokens), (_MAX_BYTES - 50_000) // per_token))
    tokens, taps = tokens[:n], taps[: n - 1].float()
    with torch.inference_mode():
        embedding = drafter.embed(tokens).float().cpu()
        drafts = drafts_of(drafter, tokens, taps, steps)
    return Golden(drafter.wiring, tokens, taps, embedding, drafts, drafter.shape.vocabulary)


@torch.inference_mode()
def drafts_of(
    drafter: Drafter, tokens: torch.Tensor, taps: torch.Tensor, steps: int
) -> torch.Tensor:
    """Target ids drafted at every slot by steps 1..k, teacher-forced: int64 [k, n - 1]."""
    ids = drafter.target_ids()
    outputs = unroll(drafter, taps[None], tokens[None], steps)
    return torch.stack([ids[drafter.logits(o)[0].argmax(-1)] for o in outputs])


def write(golden: Golden, folder: Path) -> None:
    """Write ``golden.safetensors`` into ``folder``: beside, then moved into place."""
    from safetensors.torch import save_file

    beside = folder / (NAME + ".partial")
    tensors = {
        "tokens": golden.tokens.to(torch.int32),
        "taps": golden.taps.contiguous(),
        "embedding": golden.embedding.contiguous(),
        "drafts": golden.drafts.to(torch.int32),
    }
    facts = {"wiring": to_json(golden.wiring), "vocabulary": golden.vocabulary}
    save_file(tensors, beside, metadata={_KEY: json.dumps(facts)})
    os.replace(beside, folder / NAME)


def read(folder: Path) -> Golden:
    """Read a folder's golden file.

    Raises:
        InputError: there is none, or its parts do not fit together.
    """
    path = folder / NAME
    if not path.exists():
        raise InputError(
            f"{path}: not found: this drafter does not carry its wiring; give --taps, or train it "
            "with `draftprobe train`"
        )
    tensors, metadata = read_header(path)
    try:
        facts = json.loads(metadata[_KEY])
        vocabulary = int(facts["vocabulary"])
        data = {n: read_tensor(tensors[n]) for n in ("tokens", "taps", "embedding", "drafts")}
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{path}: not a golden file of draftprobe: {error!r}") from None
    n = data["tokens"].numel()
    if (
        n < 2
        or not len(data["drafts"])
        or not 0 < vocabulary <= _MAX_VOCABULARY
        or [data[name].dim() for name in ("tokens", "taps", "embedding", "drafts")] != [1, 2, 2, 2]
        or not (len(data["taps"]) == data["drafts"].shape[1] == n - 1)
        or len(data["embedding"]) != n
        or not 0 <= int(data["tokens"].min()) <= int(data["tokens"].max()) < vocabulary
    ):
        raise InputError(f"{path}: tokens, taps, embedding and drafts do not fit together")
    return Golden(
        wiring=from_json(facts.get("wiring"), str(path)),
        tokens=data["tokens"].long(),
        taps=data["taps"].float(),
        embedding=data["embedding"].float(),
        drafts=data["drafts"].long(),
        vocabulary=vocabulary,
    )
