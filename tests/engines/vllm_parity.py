"""vLLM's own drafter modules, in the running engine, against the reference drafter: equal logits.

    VLLM_PYTHON tests/engines/vllm_parity.py [--only NAME ...] [--json]

In vLLM's own environment (see vllm_first_token.py). A tiny random target and, for each form that
vLLM accepts, a drafter folder of random weights; the engine drafts three tokens per round on a few
random prompts. What its drafter was fed and every logit it gave is caught at the drafter's own
methods; the reference drafter, loaded from the same folder through the same readers as anywhere
else, is fed the same rows. Step i is compared while the drafts before it agree.

One thing is not as the engine has it: for latent attention its rope runs in its own torch form.
The CPU kernel of 0.32.0 turns query and key as if they lay densely, and here they are views into
wider rows (error 2 and more at the second token; on one token, or in torch, it is right).

Exit 0 if every form agrees within 1e-4, 1 if not (a form that the engine refuses counts), 2 for bad
input.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))
os.environ |= {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
}

# ruff: noqa: E402 - the environment above is read when torch and vLLM are imported
import torch
from safetensors.torch import save_file

from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import Cache, Drafter, load_drafter
from draftprobe.drafter.shape import Latent, Shape
from draftprobe.drafter.vocabulary import tables
from draftprobe.drafter.wiring import Rope, Wiring, eagle3

TOLERANCE, STEPS, NEW, LENGTHS = 1e-4, 3, 6, (7, 12)
TAPS, LAYERS, HIDDEN, VOCABULARY, DRAFT = (2, 4, 5), 8, 64, 128, 96
SHAPE = Shape(HIDDEN, HIDDEN, 3, 4, 2, 32, 96, DRAFT, VOCABULARY, 1e-5)
PLAIN = replace(eagle3(TAPS, Rope(500.0)), embedding="target")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LATENT = Latent(24, 512, 128, 64, 128)  # the sizes of DeepSeek's heads: what MLA kernels expect

# name: changes of the shape, of the wiring, of the config
FORMS: dict[str, tuple[dict, dict, dict]] = {
    "llama": ({}, {}, {}),
    "norm_before_fc": ({}, {"pre_fc_norm": "whole"}, {"norm_before_fc": True}),
    "fc_norm": ({}, {"pre_fc_norm": "per_tap"}, {"fc_norm": True}),
    "norm_before_residual": ({}, {"residual": "normed"}, {"norm_before_residual": True}),
    "norm_output": ({}, {"feedback": "post_norm"}, {"norm_output": True}),
    "own embedding": ({}, {"embedding": "own"}, {}),
    "full vocabulary": ({"draft_vocabulary": VOCABULARY}, {"vocabulary": "identity"}, {}),
    "two layers": ({"layers": 2}, {}, {}),
    "biases": (
        {"biases": frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})}, {},
        {"attention_bias": True},
    ),
    "narrower than the target": (
        {"hidden": 32, "intermediate": 48}, {"embedding": "own"}, {"target_hidden_size": HIDDEN},
    ),
    "yarn": (
        {}, {"rope": Rope(500.0, scaling=tuple(sorted(YARN.items())))}, {"rope_scaling": YARN},
    ),
    "llama3": (
        {}, {"rope": Rope(500.0, scaling=tuple(sorted(LLAMA3.items())))}, {"rope_scaling": LLAMA3},
    ),
    "qwen3": ({"qk_norm": True}, {}, {"architectures": ["Eagle3Qwen3ForCausalLM"]}),
    "qwen3, two layers, all flags": (
        {"qk_norm": True, "layers": 2},
        {"pre_fc_norm": "per_tap", "residual": "normed", "feedback": "post_norm"},
        {"architectures": ["Eagle3Qwen3ForCausalLM"], "fc_norm": True,
         "norm_before_residual": True, "norm_output": True},
    ),
    "latent": (
        {"latent": LATENT, "kv_heads": 4, "head_dim": 192},
        {"rope": Rope(500.0, "interleaved")},
        {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"},
    ),
}  # fmt: skip


def write_target(folder: Path, latent: bool) -> torch.Tensor:
    """A random Llama, or a DeepSeek without experts; returns its embedding table.

    A drafter of latent attention needs a target of the same: the engine's cache has one block size.
    """
    from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig

    torch.manual_seed(0)
    common = {
        "hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY, "max_position_embeddings": 256, "tie_word_embeddings": False,
        "initializer_range": 0.2,
    }  # fmt: skip
    if latent:
        config = DeepseekV3Config(
            **common, num_attention_heads=4, num_key_value_heads=4, first_k_dense_replace=LAYERS,
            q_lora_rank=LATENT.query_rank, kv_lora_rank=LATENT.rank,
            qk_nope_head_dim=LATENT.plain, qk_rope_head_dim=LATENT.rotary,
            v_head_dim=LATENT.value,
        )  # fmt: skip
    else:
        config = LlamaConfig(**common, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return model.get_input_embeddings().weight.detach().clone()


def write_drafter(folder: Path, shape: Shape, wiring: Wiring, extra: dict[str, Any]) -> None:
    """Random weights under SpecForge's names (``layers.*`` where there are several)."""
    generator = torch.Generator().manual_seed(1)
    made = Drafter(shape, wiring, torch.randn(VOCABULARY, shape.hidden, generator=generator))
    weights = {}
    for name, parameter in made.named_parameters():
        noise, vector = torch.randn(parameter.shape, generator=generator), parameter.dim() == 1
        weights[name] = 1 + 0.4 * noise if vector else 1.5 * parameter.shape[-1] ** -0.5 * noise
    if wiring.vocabulary == "offset":
        kept = torch.randperm(VOCABULARY, generator=generator)[: shape.draft_vocabulary]
        weights["d2t"], weights["t2d"] = tables(kept.sort().values, VOCABULARY)
    if wiring.embedding == "own":
        weights["embed_tokens.weight"] = made.embedding
    if shape.layers == 1:
        weights = {n.replace("layers.0.", "midlayer."): t for n, t in weights.items()}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "num_hidden_layers": shape.layers, "vocab_size": VOCABULARY,
        "draft_vocab_size": shape.draft_vocabulary, "rms_norm_eps": shape.epsilon,
        "rope_theta": wiring.rope.theta, "max_position_embeddings": 256,
        "tie_word_embeddings": False, "eagle_aux_hidden_state_layer_ids": list(TAPS),
        "target_hidden_size": shape.target_hidden,
    }  # fmt: skip
    if latent := shape.latent:
        config |= {
            "q_lora_rank": latent.query_rank, "kv_lora_rank": latent.rank,
            "qk_nope_head_dim": latent.plain, "qk_rope_head_dim": latent.rotary,
            "v_head_dim": latent.value,
        }  # fmt: skip
    else:
        config["head_dim"] = shape.head_dim
    if "Qwen3" in str(extra.get("architectures")):
        config["model_type"] = "qwen3"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | extra, indent=2))
    save_file({n: t.contiguous() for n, t in weights.items()}, folder / "model.safetensors")


class Capture:
    """What passes a running engine's drafter, one request at a time; its source is untouched.

    ``rounds``: for each call, positions and next tokens of the rows that the target has accepted,
    the rows themselves [n, taps * H], and each step's logits [V].
    """

    def __init__(self, runner: Any) -> None:
        self.rounds: list[tuple[list[int], list[int], torch.Tensor, list[torch.Tensor]]] = []
        self._proposer, self._propose = runner.drafter, runner.drafter.propose
        model = runner.drafter.model
        self._combine, self._logits = model.combine_hidden_states, model.compute_logits
        self._rows: list[torch.Tensor] = []
        self._seen: list[torch.Tensor] = []
        model.combine_hidden_states = self._combined
        model.compute_logits = self._computed
        runner.drafter.propose = self._proposed

    def _combined(self, states: torch.Tensor) -> torch.Tensor:
        self._rows.append(states.detach().clone())
        return self._combine(states)

    def _computed(self, states: torch.Tensor, *rest: Any) -> torch.Tensor:
        logits = self._logits(states, *rest)
        self._seen.append(logits.detach().clone())
        return logits

    def _proposed(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        import inspect

        call = inspect.signature(self._propose).bind(*args, **kwargs).arguments
        tokens, positions = (call[n].tolist() for n in ("target_token_ids", "target_positions"))
        chosen, last = int(call["next_token_ids"][0]), call["token_indices_to_sample"]
        end = (len(tokens) - 1 if last is None else int(last[0])) + 1
        self._rows.clear()
        self._seen.clear()
        drafts = self._propose(*args, **kwargs)
        (rows,) = self._rows
        after = [*tokens[1:end], chosen]
        self.rounds.append((positions[:end], after, rows[:end], [x[0] for x in self._seen]))
        return drafts


def torch_rope(worker: Any) -> None:
    """The drafter's rotary modules in the engine's own torch form instead of its kernel."""
    for name, module in worker.model_runner.drafter.model.named_modules():
        if name.endswith("rotary_emb"):
            module._forward_method = module.forward_native


def served(target: Path, draft: Path, latent: bool) -> list[Any]:
    """The engine's rounds on a few random prompts."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(target),
        skip_tokenizer_init=True,
        speculative_config={
            "method": "eagle3",
            "model": str(draft),
            "num_speculative_tokens": STEPS,
        },
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=1,
        max_num_batched_tokens=256,
        enable_prefix_caching=False,
    )
    if latent:
        llm.collective_rpc(torch_rope)
    (capture,) = llm.collective_rpc(lambda worker: Capture(worker.model_runner))
    generator = torch.Generator().manual_seed(2)
    for length in LENGTHS:
        prompt = torch.randint(VOCABULARY, (length,), generator=generator).tolist()
        sampling = SamplingParams(temperature=0.0, max_tokens=NEW, detokenize=False)
        llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    del llm
    gc.collect()
    return capture.rounds


@torch.inference_mode()
def errors(drafter: Drafter, rounds: list[Any]) -> list[tuple[int, float, bool]]:
    """(step, largest error of a logit, whether the drafts are the same) while drafts agree."""
    found, ids, cache = [], drafter.target_ids(), Cache()
    for positions, after, rows, logits in rounds:
        if positions[0] == 0:
            cache = Cache()
        if positions[0] != cache.length:
            raise RuntimeError(f"expected rows from position {cache.length} on, found {positions}")
        slots = torch.tensor(positions)
        e, g = drafter.embed(torch.tensor(after)), drafter.fuse(rows)
        o = drafter.block(e[None], g[None], drafter.position(slots, 1), cache)[:, -1:]
        known, draft = cache.length, ids[0]
        for step, theirs in enumerate(logits, 1):
            if step > 1:
                e = drafter.embed(draft[None, None])
                o = drafter.block(e, drafter.feedback(o), drafter.position(slots[-1:], step), cache)
            ours = drafter.logits(o)[0, 0]
            draft = ids[ours.argmax()]
            same = int(draft) == int(theirs.argmax())
            found.append((step, float((ours - theirs[ids]).abs().max()), same))
            if not same:
                break
        cache.truncate(known)
    return found


def checked(name: str, work: Path) -> dict[str, Any]:
    """One form: what the engine did, and what the reference drafter makes of it."""
    sizes, wires, extra = FORMS[name]
    target = work / ("latent-target" if "latent" in sizes else "target")
    table = write_target(target, "latent" in sizes)
    wiring = replace(PLAIN, **wires)
    folder = work / name.replace(" ", "-")
    write_drafter(folder, replace(SHAPE, **sizes), wiring, extra)
    checkpoint = open_checkpoint(folder)
    read = wiring_of(checkpoint, TAPS, "speculators")
    if read != wiring:
        return {"holds": False, "error": f"read as another wiring: {read}"}
    try:
        rounds = served(target, folder, "latent" in sizes)
    except Exception as error:  # whatever the engine raises is the answer
        gc.collect()
        return {"holds": False, "error": f"{type(error).__name__}: {error}"[:300]}
    found = errors(load_drafter(checkpoint, read, table), rounds)
    worst = [
        max((e for s, e, _ in found if s == step), default=None) for step in range(1, STEPS + 1)
    ]
    return {
        "holds": None not in worst and all(e < TOLERANCE and same for _, e, same in found),
        "rounds": len(rounds),
        "logits": len(found) * replace(SHAPE, **sizes).draft_vocabulary,
        "largest_error_by_step": worst,
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """For a person."""
    for name, one in found.items():
        word = "holds" if one["holds"] else "FAILS"
        if "error" in one:
            yield f"{name}: {word}: {one['error']}"
        else:
            worst = ", ".join(
                "none" if e is None else f"{e:.1e}" for e in one["largest_error_by_step"]
            )
            yield f"{name}: {word}, {one['rounds']} rounds, largest error by step {worst}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        for form in options.only:
            results[form] = checked(form, home)
            print(form, results[form], file=sys.stderr, flush=True)
    print(json.dumps(results) if options.json else "\n".join(lines(results)))
    sys.exit(0 if all(one["holds"] for one in results.values()) else 1)
