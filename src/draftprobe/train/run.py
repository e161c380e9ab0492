"""One training run, from states files to a drafter folder in the SpecForge layout.

The folder holds ``config.json`` (taps as boundary ids at top level, the spelling that vLLM reads),
``model.safetensors`` in bfloat16 with its index, ``golden.safetensors`` and ``training.json``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draftprobe.dialects.ids import KEY
from draftprobe.dialects.rope_keys import read_rope
from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter import golden
from draftprobe.drafter.checkpoint import open_checkpoint, read_header
from draftprobe.drafter.model import Drafter, load_drafter
from draftprobe.drafter.shape import Shape, integer
from draftprobe.drafter.vocabulary import choose, draft_labels, tables
from draftprobe.drafter.wiring import Tap, check_taps, eagle3, tap_name
from draftprobe.errors import InputError
from draftprobe.states.record import States
from draftprobe.states.target import embedding_table, final_norm, head_table, text_config
from draftprobe.train.corpus import load_corpus
from draftprobe.train.loop import Recipe, train


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that a drafter does not take from its target."""

    draft_vocabulary: int
    intermediate: int | None = None


_OURS = {"state.pt", "state.pt.partial", "drafter"}

Report = Callable[[dict[str, Any]], None]
Measure = Callable[[Drafter], dict[str, Any]]


def run(
    target: Path,
    files: Sequence[States],
    taps: tuple[Tap, ...],
    sizes: Sizes,
    recipe: Recipe,
    out: Path,
    report: Report,
    measure: Measure | None = None,
    measure_every: int = 500,
    autocast: torch.dtype | None = None,
    snapshots: Path | None = None,
) -> None:
    """Train a drafter for ``target`` and write its folder ``out``.

    Args:
        target: a transformers folder: embedding, head and final norm are read from it.
        files: states with the taps and h[N].
        taps: boundaries in slot order.
        sizes: draft vocabulary and MLP width.
        recipe: how.
        out: folder to write; ``out``.train holds the resume state until then.
        report: called with facts as they come (coverage, loss, held-out figures).
        measure: held-out figures of the drafter as it stands.
        measure_every: updates between two measurements.
        autocast: dtype of the matrix products, None for float32.
        snapshots: folder for fc's weights as they were at each measurement.

    Raises:
        InputError: ``out`` exists, or states, taps and target do not fit together.
    """
    if out.exists() or out.is_symlink():
        raise InputError(f"{out}: exists already and is not overwritten; choose another --out")
    config = text_config(target)
    check_taps(taps, integer(config, "num_hidden_layers", target / "config.json"))
    corpus = load_corpus(files, taps)
    vocabulary = integer(config, "vocab_size", target / "config.json")
    counts = corpus.counts(vocabulary)
    kept = choose(counts, sizes.draft_vocabulary)
    coverage = float(counts[kept].sum() / counts.sum())
    report({"sequences": len(corpus.sequences), "counted": int(counts.sum()), "coverage": coverage})

    torch.manual_seed(recipe.seed)
    drafter = _fresh(target, config, taps, sizes, kept, corpus.scales())
    work = out.with_name(out.name + ".train")
    if work.exists() and not {entry.name for entry in work.iterdir()} <= _OURS:
        raise InputError(f"{work}: holds files of others; move it away, or choose another --out")
    work.mkdir(exist_ok=True)
    head = head_table(target)[kept].float()
    history: list[dict[str, Any]] = []
    losses: list[float] = []

    def watch(done: int, loss: float) -> None:
        losses.append(loss)
        if done % measure_every == 0 or done == recipe.updates:
            fact = {"update": done, "loss": sum(losses) / len(losses)}
            losses.clear()
            if measure is not None:
                fact |= measure(drafter)
                drafter.train()
            if snapshots is not None:
                name = snapshots / f"{done:06d}.safetensors"
                save_file({"fc.weight": drafter.fc.weight.detach()}, name)
            history.append(fact)
            report(fact)

    labels = draft_labels(kept, vocabulary)
    train(drafter, corpus, recipe, head, labels, work / "state.pt", watch, autocast=autocast)
    facts = {
        "recipe": asdict(recipe),
        "taps": [tap_name(tap) for tap in taps],
        "states": [states.path.name for states in files],
        "sequences": len(corpus.sequences),
        "counted_tokens": int(counts.sum()),
        "coverage_of_training_text": coverage,
        "history": history,
    }
    _write(drafter, config, kept, vocabulary, corpus.sequences[0], facts, work, out, target)


def _fresh(
    target: Path,
    config: dict[str, Any],
    taps: tuple[Tap, ...],
    sizes: Sizes,
    kept: torch.Tensor,
    scales: list[float],
) -> Drafter:
    where = target / "config.json"
    hidden, heads = (
        integer(config, "hidden_size", where),
        integer(config, "num_attention_heads", where),
    )
    shape = Shape(
        hidden=hidden,
        target_hidden=hidden,
        taps=len(taps),
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=sizes.intermediate or integer(config, "intermediate_size", where),
        draft_vocabulary=len(kept),
        vocabulary=integer(config, "vocab_size", where),
        epsilon=float(config.get("rms_norm_eps", 1e-6)),
    )
    drafter = Drafter(shape, eagle3(taps, read_rope(config, where)), embedding_table(target))
    with torch.no_grad():
        for slot, scale in enumerate(scales):  # each slot starts with the same say
            drafter.fc.weight[:, slot * hidden : (slot + 1) * hidden] /= max(scale, 1e-3)
        drafter.lm_head.weight.copy_(head_table(target)[kept].float())
        drafter.norm.weight.copy_(final_norm(target).float())
        drafter.d2t.copy_(tables(kept, shape.vocabulary)[0])
    return drafter


def _config(drafter: Drafter, target: dict[str, Any]) -> dict[str, Any]:
    shape, rope = drafter.shape, drafter.wiring.rope
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "target_hidden_size": shape.target_hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.epsilon,
        "vocab_size": shape.vocabulary,
        "draft_vocab_size": shape.draft_vocabulary,
        "max_position_embeddings": target.get("max_position_embeddings", 2048),
        "rope_theta": rope.theta,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": target.get("bos_token_id"),
        "eos_token_id": target.get("eos_token_id"),
    }
    if rope.scaling:
        config["rope_scaling"] = dict(rope.scaling)
    if "N" not in drafter.wiring.taps:  # no stack can spell the final norm's output in this list
        config[KEY] = list(drafter.wiring.taps)
    return config


def write_index(folder: Path) -> None:
    """Write ``model.safetensors.index.json``, which names ``model.safetensors`` alone.

    Without it vLLM reads every safetensors file of a folder as weights, the golden file too, and
    refuses the drafter.
    """
    tensors, _ = read_header(folder / "model.safetensors")
    index = {
        "metadata": {"total_size": sum(info.size for info in tensors.values())},
        "weight_map": dict.fromkeys(sorted(tensors), "model.safetensors"),
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _write(
    drafter: Drafter,
    config: dict[str, Any],
    kept: torch.Tensor,
    vocabulary: int,
    sample: Any,
    facts: dict[str, Any],
    work: Path,
    out: Path,
    target: Path,
) -> None:
    """Write the folder inside ``work``, read it back for its golden file, move it into place."""
    folder = work / "drafter"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    d2t, t2d = tables(kept, vocabulary)
    weights = {
        name.replace("layers.0.", "midlayer."): tensor.to(torch.bfloat16).contiguous()
        for name, tensor in drafter.state_dict().items()
        if tensor.is_floating_point()
    }
    if len(kept) < vocabulary:
        weights |= {"d2t": d2t, "t2d": t2d}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_index(folder)
    (folder / "config.json").write_text(json.dumps(_config(drafter, config), indent=2) + "\n")
    (folder / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
    written = open_checkpoint(folder)
    wiring = wiring_of(written, drafter.wiring.taps, "draftprobe")
    reread = load_drafter(written, wiring, embedding_table(target))
    golden.write(golden.make(reread, sample.tokens, sample.taps(wiring.taps), steps=5), folder)
    os.replace(folder, out)
    shutil.rmtree(work)
