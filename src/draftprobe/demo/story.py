"""The demo: a drafter trained on one wiring, served with another, judged, and proved by decoding.

Every part is real: target, captured states, trained drafter, the server's own reading of a config,
replay and decode. Knows the story's parts, not how any of them works.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftprobe.demo.prompts import KINDS, Prompt, prompts
from draftprobe.diagnose.claims import Claims
from draftprobe.diagnose.diagnosis import diagnose
from draftprobe.diagnose.run import open_subject
from draftprobe.diagnose.verdict import Verdict
from draftprobe.dialects.ids import KEY
from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter import golden
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import load_drafter
from draftprobe.measure.decode import Comparison, compare
from draftprobe.states.capture import Item, Plan, capture
from draftprobe.states.prompts import read_prompts
from draftprobe.states.target import Target, embedding_table, load_target

DRAFTER = Path(__file__).parent / "drafter"
ENGINE, SERVED_IDS = "sglang", (2, 15, 27)
"""What the served config says; SGLang's Llama rule reads it as h[3], h[16], h[28]."""

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
    """What verdict and proof share: the target, its states, and the drafter as it is served."""

    target: Target
    items: list[Item]
    states: Path
    served: Path


def set_stage(folder: Path, work: Path, say: Say, progress: Progress) -> Stage:
    """Load the target at ``folder``; into ``work``, capture held-out text and copy the drafter."""
    say("loading the target")
    target = load_target(folder)
    chosen = [p for kind in KINDS for p in prompts(kind, "held_out")[:REPLAYED_PER_KIND]]
    items = items_of(chosen, target, work)
    say(f"capturing its states on {len(items)} held-out prompts, {NEW_TOKENS} new tokens each")
    plan = Plan(target.structure.boundaries(), "float32", batch=16, greedy=NEW_TOKENS)
    capture(target, items, plan, work / "states.safetensors", progress)
    return Stage(target, items, work / "states.safetensors", write_served(work))


def items_of(chosen: Sequence[Prompt], target: Target, work: Path) -> list[Item]:
    """Prompts through the target's own template, by way of a file as a user would give it."""
    file = work / "prompts.jsonl"
    lines = [json.dumps({"prompt": p.text, "kind": p.kind}) for p in chosen]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_prompts(file, target.tokenizer, limit=2048)[0]


def write_served(work: Path) -> Path:
    """A copy of the drafter whose config spells the ids as the server in this story reads them."""
    served = work / "served"
    shutil.copytree(DRAFTER, served, ignore=shutil.ignore_patterns(golden.NAME, "*.md"))
    config = json.loads((served / "config.json").read_text())
    del config[KEY]
    config["eagle_config"] = {KEY: list(SERVED_IDS), "use_aux_hidden_state": True}
    (served / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return served


def judge(stage: Stage, say: Say) -> Verdict:
    """Diagnose the served folder as SGLang reads it; nobody tells which taps it was trained on."""
    subject = open_subject(stage.served, stage.states, Path(stage.target.name), "cpu")
    verdict, _, _ = diagnose(
        subject.drafter,
        subject.states,
        subject.served_as(subject.served(None, ENGINE), ENGINE, ()),
        Claims(),
        STEPS,
        subject.not_evaluated(ENGINE),
        subject.provenance(["demo"]),
        say,
    )
    return subject.mended(verdict, None)


def prove(stage: Stage, verdict: Verdict, say: Say, progress: Progress) -> Proof:
    """Decode prompts of every kind plainly, with the wanted taps and with the served ones."""
    per_kind = range(DECODED_PER_KIND)
    chosen = [stage.items[k * REPLAYED_PER_KIND + i] for k in range(len(KINDS)) for i in per_kind]
    say(f"decoding {len(chosen)} of the prompts three times: plain, wired right, wired wrong")
    table = embedding_table(stage.target.name)
    checkpoint = open_checkpoint(stage.served)
    wired = {"right": verdict.wanted, "wrong": verdict.served or verdict.wanted}
    drafters = {
        name: load_drafter(checkpoint, wiring_of(checkpoint, taps), table)
        for name, taps in wired.items()
    }
    tokens = [item.tokens for item in chosen]
    return Proof(compare(stage.target, tokens, drafters, STEPS, NEW_TOKENS, progress=progress))


def as_told(verdict: Verdict, proof: Proof) -> bool:
    """The story came out: wiring, the text unharmed, acceptance up with the right wiring."""
    right, wrong = (proof.comparison.drafted[name].length.value for name in ("right", "wrong"))
    better = right is not None and wrong is not None and right > wrong
    return verdict.verdict == "wiring" and proof.same == proof.count and better
