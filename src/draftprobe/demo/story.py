"""The demo: a drafter trained on one wiring, served with another, judged, and proved by decoding.

Every part is real: target, captured states, trained drafter, the server's own reading of a config,
replay and decode. Knows the story's parts, not how any of them works.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftprobe.demo.prompts import Prompt, prompts
from draftprobe.diagnose.claims import Claims
from draftprobe.diagnose.diagnosis import diagnose
from draftprobe.diagnose.verdict import NotEvaluated, Verdict
from draftprobe.dialects import sglang
from draftprobe.dialects.ids import KEY
from draftprobe.dialects.specforge import parse
from draftprobe.drafter import golden
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import Drafter, load_drafter
from draftprobe.measure.decode import Comparison, compare
from draftprobe.states.capture import Item, Plan, capture
from draftprobe.states.prompts import read_prompts
from draftprobe.states.record import States, open_states
from draftprobe.states.target import Target, embedding_table, load_target

DRAFTER = Path(__file__).parent / "drafter"
SERVED_IDS = (2, 15, 27)
"""What the served config says; SGLang's Llama rule reads them as h[3], h[16], h[28]."""

STEPS = 5
REPLAYED_PER_KIND, DECODED_PER_KIND, NEW_TOKENS = 16, 4, 48

Say = Callable[[str], None]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Proof:
    """The decode of the same prompts plainly, wired right and wired wrong."""

    comparison: Comparison

    @property
    def count(self) -> int:
        """Prompts."""
        return len(self.comparison.plain.texts)

    @property
    def same(self) -> int:
        """Prompts with the same text in all three modes."""
        parted = {p.prompt for name in ("right", "wrong") for p in self.comparison.partings(name)}
        return self.count - len(parted)

    def to_json(self) -> dict[str, Any]:
        """The ``decode`` object of ``demo --json``."""
        modes = {"plain": self.comparison.plain, **self.comparison.drafted}
        return {name: mode.figures() for name, mode in modes.items()} | {
            "same_text": self.same == self.count,
            "same": self.same,
            "n": self.count,
        }


@dataclass(frozen=True)
class Stage:
    """What verdict and proof share: the target, its states, and the drafter wired both ways."""

    target: Target
    items: list[Item]
    states: States
    drafters: dict[str, Drafter]


def set_stage(folder: Path, work: Path, say: Say, progress: Progress) -> Stage:
    """Load the target at ``folder``, capture held-out text, wire the drafter twice; in ``work``."""
    say("loading the target")
    target = load_target(folder)
    chosen = [p for kind in ("chat", "code", "extraction") for p in _held_out(kind)]
    items = _items(chosen, target, work)
    say(f"capturing its states on {len(items)} held-out prompts, {NEW_TOKENS} new tokens each")
    plan = Plan(_boundaries(target), "float32", batch=16, greedy=NEW_TOKENS)
    capture(target, items, plan, work / "states.safetensors", progress)
    served = write_served(work)
    return Stage(
        target=target,
        items=items,
        states=open_states(work / "states.safetensors"),
        drafters={
            "right": _wired(DRAFTER, golden.read(DRAFTER).wiring.taps, folder),
            "wrong": _wired(served, _delivered(served, target), folder),
        },
    )


def _held_out(kind: Any) -> list[Prompt]:
    return prompts(kind, "held_out")[:REPLAYED_PER_KIND]


def _items(chosen: list[Prompt], target: Target, work: Path) -> list[Item]:
    file = work / "prompts.jsonl"
    lines = [json.dumps({"prompt": p.text, "kind": p.kind}) for p in chosen]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_prompts(file, target.tokenizer, limit=2048)[0]


def _boundaries(target: Target) -> tuple[Any, ...]:
    return target.structure.boundaries()


def write_served(work: Path) -> Path:
    """A copy of the drafter whose config spells the ids as the server in this story reads them."""
    served = work / "served"
    shutil.copytree(DRAFTER, served, ignore=shutil.ignore_patterns(golden.NAME, "*.md"))
    config = json.loads((served / "config.json").read_text())
    del config[KEY]
    config["eagle_config"] = {KEY: list(SERVED_IDS), "use_aux_hidden_state": True}
    (served / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return served


def _delivered(served: Path, target: Target) -> tuple[Any, ...]:
    config, where = open_checkpoint(served).config, served / "config.json"
    family, layers = target.text_config.model_type, len(target.structure.layers)
    return sglang.delivered(config, family, layers, where)


def _wired(folder: Path, taps: tuple[Any, ...], target: Path) -> Drafter:
    checkpoint = open_checkpoint(folder)
    return load_drafter(checkpoint, parse(checkpoint, taps), embedding_table(target))


def judge(stage: Stage, say: Say) -> Verdict:
    """Diagnose what the server feeds, with the drafter's wiring searched for, not told."""
    verdict, _, _ = diagnose(
        stage.drafters["right"],
        stage.states,
        stage.drafters["wrong"].wiring.taps,
        Claims(),
        STEPS,
        [
            NotEvaluated("compare", "no dump of served states was given"),
            NotEvaluated("cost", "step costs were not measured"),
        ],
        {"drafter": str(DRAFTER), "target": stage.target.name}
        | {"versions": stage.states.provenance.versions},
        say,
    )
    return verdict


def prove(stage: Stage, say: Say, progress: Progress) -> Proof:
    """Decode prompts of every kind plainly, wired right and wired wrong, interleaved."""
    per_kind = range(DECODED_PER_KIND)
    chosen = [stage.items[k * REPLAYED_PER_KIND + i] for k in range(3) for i in per_kind]
    say(f"decoding {len(chosen)} of the prompts three times: plain, wired right, wired wrong")
    with torch.inference_mode():
        comparison = compare(
            stage.target,
            [item.tokens for item in chosen],
            stage.drafters,
            STEPS,
            NEW_TOKENS,
            progress=progress,
        )
    return Proof(comparison)


def as_told(verdict: Verdict, proof: Proof) -> bool:
    """The story came out: wiring, the text unharmed, acceptance up with the right wiring."""
    right, wrong = (proof.comparison.drafted[name].length.value for name in ("right", "wrong"))
    better = right is not None and wrong is not None and right > wrong
    return verdict.verdict == "wiring" and proof.same == proof.count and better
