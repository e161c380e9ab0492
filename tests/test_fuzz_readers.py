"""Damaged and odd drafter folders: each is read or refused with an InputError, in bounded time.

Bytes of valid files changed, cut or written over in the header, and config values of wrong kinds;
every stage up to the reference drafter runs. The same files in every run.
"""

import json
import random
from time import perf_counter

import pytest
import test_readers as readers
import torch

from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.kind import family
from draftprobe.drafter.layout import layout_of
from draftprobe.drafter.model import load_drafter
from draftprobe.drafter.shape import contradictions, shape_of, unread
from draftprobe.errors import InputError

CASES = 400
SECONDS = 10  # for one file; a shared machine may pause for long
ODD = [
    None, True, False, 0, -1, 1, 2, 3, 1.5, 1e308, float("nan"), 2**70, 10**30, "x", "4", "silu",
    [], {}, [1], {"a": 1}, [None],
]  # fmt: skip
KEYS = [
    "bias", "attention_bias", "mlp_bias", "layer_types", "hidden_act", "transformer_layer_config",
    "target_hidden_size", "t2d", "qk_rope_head_dim", "num_key_value_heads",
]  # fmt: skip


def damaged(data: bytes, config: dict, header: int, rng: random.Random) -> tuple[bytes, dict]:
    """One of four kinds of damage."""
    out, kind = bytearray(data), rng.randrange(4)
    if kind == 0:  # anywhere
        for _ in range(rng.choice([1, 1, 2, 5, 20])):
            out[rng.randrange(len(out))] = rng.randrange(256)
    elif kind == 1:  # cut
        out = out[: rng.randrange(len(out))]
    elif kind == 2:  # text in the header
        for _ in range(rng.choice([1, 2, 5])):
            out[rng.randrange(8, header)] = rng.randrange(32, 127)
    else:
        config = config | {
            rng.choice([*config, *KEYS]): rng.choice(ODD) for _ in range(rng.choice([1, 2, 3]))
        }
    return bytes(out), config


def whole_way(folder) -> None:
    checkpoint = open_checkpoint(folder)
    layout = layout_of(checkpoint)
    family(checkpoint, layout)
    contradictions(checkpoint, layout)
    unread(checkpoint)
    shape_of(checkpoint, readers.WIRING, layout)
    load_drafter(checkpoint, readers.WIRING, torch.empty(0))


STARTS = {
    "heads": (readers.PLAIN, lambda tensors: tensors, readers.whole),
    "midlayer": (readers.PLAIN, readers.STYLES["everything"], readers.whole),
    "latent, fused": (readers.LATENT, readers.fused, readers.whole),
    "pickle": (readers.PLAIN, lambda tensors: tensors, readers.binary),
    "latent pickle": (readers.LATENT, lambda tensors: tensors, readers.binary),
}


@pytest.mark.filterwarnings("ignore")  # torch's, on what a pickle asks for
@pytest.mark.parametrize("start", STARTS)
def test_fuzz_folders_are_read_or_refused(start, tmp_path):
    shape, style, store = STARTS[start]
    config, rng = readers.config_of(shape), random.Random(start)
    tensors = style(readers.tensors_of(readers.drafter_of(shape)))
    readers.write(tmp_path / "whole", tensors, config, store)
    name = "pytorch_model.bin" if store is readers.binary else "model.safetensors"
    data = (tmp_path / "whole" / name).read_bytes()
    pickled = store is readers.binary
    header = len(data) if pickled else 8 + int.from_bytes(data[:8], "little")
    (tmp_path / "f").mkdir()
    read, refused = 0, []
    for _ in range(CASES):
        bytes_, odd = damaged(data, config, header, rng)
        (tmp_path / "f" / name).write_bytes(bytes_)
        (tmp_path / "f" / "config.json").write_text(json.dumps(odd))
        began = perf_counter()
        try:
            whole_way(tmp_path / "f")
            read += 1
        except InputError as error:
            refused.append(str(error))
        assert perf_counter() - began < SECONDS
    print(f"{start}: {CASES} mutated folders, {len(refused)} refused, {read} read")
    assert read > CASES // 20  # damage in the data alone is no damage to the form
    assert len(refused) > CASES // 4
    assert max(map(len, refused)) < 2000
