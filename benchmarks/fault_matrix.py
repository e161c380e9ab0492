"""Cut any wire, and is it named? Cut none, and is none named? Counts over drafters and data.

    python benchmarks/fault_matrix.py [--short] [--json] [--world FOLDER] DRAFT:STATES:TARGET ...

A case plants one cut (or two) in the served wiring of a good drafter, or none in the served wiring
of a good or of an undertrained one. The tool is told the weights, the states and what is served,
and nothing of how the drafter was trained but what its config says of the served wires. Evidence,
search and judgement are those of `draftprobe diagnose`. Seeds draw other sequences of the states,
and other tokens of them. Work is shared: a wiring is replayed once on each block of sequences, the
taps are searched once per wires and seed.

exact: named, and nothing else; tied: named within a tie set of at most 3 values whose acceptance
differs by under 0.02; wide: named, its value only within a larger tie set; undecided: nothing
accused; partly: one of two cuts; wrong: another wire is accused, or another value; missed: called
healthy. What costs at most 0.02 of acceptance length is counted apart. Drafters are the clusters.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from draftprobe.diagnose.bench import Bench, Sample
from draftprobe.diagnose.claims import Claims
from draftprobe.diagnose.diagnosis import Questions, Served, investigate, verdict_of
from draftprobe.diagnose.evidence import FEW, HARMLESS, Evidence
from draftprobe.diagnose.pool import Limits, Pool
from draftprobe.diagnose.search import Search, sample, search
from draftprobe.diagnose.wires import BY_NAME, facts_of, neighbours, told
from draftprobe.dialects.rope_keys import read_rope
from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter import golden
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import Drafter, load_drafter
from draftprobe.drafter.parts import Parts, read_parts, rewire
from draftprobe.drafter.wiring import Rope, Tap, Wiring, taps_name
from draftprobe.measure.replay import Observations, observe
from draftprobe.measure.summary import paired
from draftprobe.states.record import States, open_states
from draftprobe.states.target import embedding_table, final_norm, head_table, text_config

STEPS = 3
BLOCKS = 5  # of 16 sequences, that one case sees
CHAINS = 16  # of each sequence
TOKENS = 320  # of its sequences, that its search of the taps scores


@dataclass(frozen=True, slots=True)
class Case:
    """One case: what is served, and what was cut in it.

    Attributes:
        drafter: name; kind: single, pair, healthy or undertrained.
        planted: wire -> value in words; seed: of the data.
        severity: acceptance length lost by what is served, on all data.
        verdict, confidence: of the tool; named: wires accused; outcome: see the module's head.
    """

    drafter: str
    kind: str
    planted: dict[str, str]
    seed: int
    severity: float
    verdict: str
    confidence: str
    named: tuple[str, ...]
    outcome: str


@dataclass(eq=False)
class Subject:
    """A drafter with its truth, and all that its cases share."""

    name: str
    drafter: Drafter
    parts: Parts
    states: States
    truth: Wiring
    rope: Rope | None
    undertrained: bool = False
    observations: dict[Wiring, Observations] = field(default_factory=dict)
    pools: dict[Wiring, Pool] = field(default_factory=dict)
    searches: dict[tuple[Wiring, int], Search] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """One bench over all sequences; cases see some of its blocks."""
        served = Served(self.truth.taps, self.truth, self.parts, self.rope)
        every = Sample(sequences=len(self.states), chains=CHAINS)
        self.whole = Bench(self.drafter, self.parts, self.states, STEPS, every)
        self.asked = Questions(self.drafter, self.states, served, Limits(), 0)
        self.facts = facts_of(self.drafter, self.parts, self.states.provenance.layers, self.rope)

    def observed(self, wiring: Wiring) -> Observations:
        """A wiring on all counted tokens."""
        if wiring not in self.observations:
            made = rewire(self.drafter, wiring, self.parts)
            self.observations[wiring] = observe(made, self.states, STEPS)
        return self.observations[wiring]

    def severity(self, served: Wiring) -> float:
        """Acceptance length that the truth has over what is served."""
        return self.whole.acceptance(served, self.truth).value or 0.0


class Shared(Questions):
    """One case's questions, answered from what other cases of the same drafter asked."""

    def __init__(self, subject: Subject, served: Served, seed: int) -> None:
        self.drafter, self.states, self.served = subject.drafter, subject.states, served
        self.seed, self.say = seed, lambda stage: None
        self.witness = subject.asked.witness
        self.subject = subject
        many = subject.whole.blocks
        chosen = random.Random(seed).sample(range(many), min(BLOCKS, many))
        self._bench = subject.whole.part(chosen)
        self.members = torch.tensor(sorted(self._bench.members()))

    def bench(self, steps: int) -> Bench:
        """The case's blocks."""
        return self._bench

    def searched(self, wiring: Wiring) -> tuple[Pool, Search]:
        """The search on the case's own sequences."""
        subject, key = self.subject, self.key(wiring)
        if key not in subject.pools:
            if len(subject.pools) > 8:
                subject.pools.pop(next(iter(subject.pools)))
            subject.pools[key] = Pool(self.wired(key), self.states, limits=Limits(tokens=2048))
        pool = subject.pools[key]
        if (key, self.seed) not in subject.searches:
            order = sample(pool, self.seed)
            mine = order[torch.isin(pool.sequence[order], self.members)][:TOKENS]
            subject.searches[key, self.seed] = search(pool, mine, seed=self.seed)
        return pool, subject.searches[key, self.seed]

    def replay(self, wiring: Wiring, steps: int) -> Observations:
        """On the case's own sequences."""
        return self.subject.observed(wiring).only(self.members)


def run(subject: Subject, served: Wiring, kind: str, planted: dict[str, str], seed: int) -> Case:
    """One case, judged and held against the truth."""
    told_it = Served(served.taps, served, subject.parts, subject.rope)
    evidence, _, _ = investigate(Shared(subject, told_it, seed), Claims(), STEPS)
    verdict = verdict_of(evidence, (), {})
    miswired = verdict.verdict in ("wiring", "several")
    named = tuple(f.wire for f in verdict.findings if f.wire) if miswired else ()
    severity = subject.severity(served)
    return Case(
        subject.name, kind, planted, seed, severity, verdict.verdict, verdict.confidence, named,
        _outcome(subject, evidence, verdict.verdict, set(named), set(planted)),
    )  # fmt: skip


def _outcome(
    subject: Subject, evidence: Evidence, verdict: str, named: set[str], planted: set[str]
) -> str:
    if not planted:
        return "false alarm" if named else "healthy" if verdict == "healthy" else "undecided"
    if not named:
        return "missed" if verdict == "healthy" else "undecided"
    if named - planted:
        return "wrong"
    worst = max(
        (_value(subject, evidence, wire) for wire in named),
        key=("exact", "tied", "wide", "wrong").index,
    )
    if worst == "wrong" or named == planted:
        return worst
    return "partly"


def _value(subject: Subject, evidence: Evidence, wire: str) -> str:
    """Whether the wanted value that the tool gives is the truth, tied with it closely, or wrong."""
    truth = subject.truth
    if wire == "taps":
        if evidence.wanted == truth.taps:
            return "exact"
        slots = list(zip(truth.taps, evidence.slots, strict=True))
        if not all(tap in slot.tied for tap, slot in slots):
            return "wrong"
        few = all(len(slot.tied) <= FEW for slot in evidence.slots)
        other = subject.observed(replace(truth, taps=evidence.wanted))
        spread = paired(subject.observed(truth), other).acceptance.value or 0.0
        return "tied" if few and abs(spread) < HARMLESS else "wide"
    assert evidence.joint is not None
    found = next(entry for entry in evidence.joint.wires if entry.wire == wire)
    right = told(BY_NAME[wire], truth)
    if found.wanted == right:
        return "exact"
    same = [t for t in found.tied if t.value == right]
    near = [t for t in same if abs(t.acceptance.value or 0.0) < HARMLESS]
    return "tied" if near and len(found.tied) < FEW else "wide" if same else "wrong"


def tap_faults(subject: Subject) -> Iterator[tuple[str, Wiring]]:
    """Other boundaries in the slots: off by one, in another order, shifted by a slot."""
    taps, there = subject.truth.taps, set(subject.states.boundaries)
    layers = subject.states.provenance.layers
    spread: tuple[Tap, ...] = tuple(
        round((2 * i + 1) * layers / (2 * len(taps))) for i in range(len(taps))
    )
    others = {
        "one late": tuple(t + 1 if isinstance(t, int) else t for t in taps),
        "one early": tuple(t - 1 if isinstance(t, int) else t for t in taps),
        "reversed": taps[::-1],
        "rotated": (*taps[1:], taps[0]),
        "first doubled": (taps[0], *taps[:-1]),
        "evenly spread": spread,
    }
    for name, other in others.items():
        if other != taps and set(other) <= there:
            yield f"{name}: {taps_name(other)}", replace(subject.truth, taps=other)


def faults(subject: Subject) -> list[tuple[dict[str, str], Wiring]]:
    """Every single cut, taps first: what was planted and what is served."""
    found = [({"taps": words}, wiring) for words, wiring in tap_faults(subject)]
    for wiring, wire in neighbours(subject.truth, subject.facts, faults=True).items():
        if subject.whole.allows(wiring):
            found.append(({wire.name: told(wire, wiring)}, wiring))
    return found


def pairs(subject: Subject, count: int) -> Iterator[tuple[dict[str, str], Wiring]]:
    """Two cuts of different wires, each of which costs more than 0.02 alone."""
    harmful = [cut for cut in faults(subject) if subject.severity(cut[1]) > HARMLESS]
    draw = random.Random(len(subject.name))
    for _ in range(10 * count):
        if count <= 0 or len(harmful) < 2:
            return
        (one, first), (two, second) = draw.sample(harmful, 2)
        (a,), (b,) = one, two
        if a == b:
            continue
        served = BY_NAME[b].put(first, BY_NAME[b].value(second))
        if subject.whole.allows(served):
            count -= 1
            yield one | two, served


def cases(subject: Subject, given: argparse.Namespace) -> Iterator[Case]:
    """All cases of one drafter."""
    healthy = given.healthy
    for seed in range(healthy):
        kind = "undertrained" if subject.undertrained else "healthy"
        yield run(subject, subject.truth, kind, {}, 100 + seed)
    if subject.undertrained:
        return
    every = faults(subject)
    if given.short:
        every = every[:: max(1, len(every) // given.faults)]
    for planted, served in every:
        for seed in range(given.seeds):
            yield run(subject, served, "single", planted, seed)
    for number, (planted, served) in enumerate(pairs(subject, given.pairs)):
        yield run(subject, served, "pair", planted, number)


def open_case(text: str) -> Subject:
    """``NAME=DRAFT:STATES:TARGET`` or without the name; a leading ``-`` is undertrained."""
    weak = text.startswith("-")
    draft, states_path, target = text.removeprefix("-").split(":")
    folder, states = Path(draft), open_states(states_path)
    checkpoint = open_checkpoint(folder)
    taps = _trained_taps(folder)
    truth = wiring_of(checkpoint, taps)
    table, head = embedding_table(target), head_table(target)
    drafter = load_drafter(checkpoint, truth, table, head)
    parts = read_parts(checkpoint, drafter, table, head, final_norm(target).float())
    rope = read_rope(text_config(Path(target)), target)
    return Subject(folder.name, drafter, parts, states, truth, rope, weak)


def _trained_taps(folder: Path) -> tuple[Tap, ...]:
    """What the drafter was trained on: its golden file's, or its config's own boundaries."""
    if (folder / golden.NAME).exists():
        return golden.read(folder).wiring.taps
    config = json.loads((folder / "config.json").read_text())
    return tuple(config["eagle_aux_hidden_state_layer_ids"])


def summary(done: Sequence[Case]) -> dict[str, Any]:
    """The counts that the targets are about, and the reliability table."""
    single = [c for c in done if c.kind == "single" and c.severity > HARMLESS]
    two = [c for c in done if c.kind == "pair"]
    count = Counter(c.outcome for c in single)
    accused = [c for c in done if c.named]
    right = {"exact", "tied", "wide", "partly"}
    return {
        "drafters": len({c.drafter for c in done}),
        "single": len(single),
        **{
            name: count[name]
            for name in ("exact", "tied", "wide", "undecided", "missed", "wrong", "partly")
        },
        "named_share": (count["exact"] + count["tied"]) / len(single) if single else None,
        "pairs": len(two),
        "pair_outcomes": dict(Counter(c.outcome for c in two)),
        "healthy": sum(c.kind == "healthy" for c in done),
        "false_alarms": sum(c.kind == "healthy" and c.outcome == "false alarm" for c in done),
        "called_healthy": sum(c.kind == "healthy" and c.outcome == "healthy" for c in done),
        "undertrained": sum(c.kind == "undertrained" for c in done),
        "undertrained_miswired": sum(
            c.kind == "undertrained" and c.outcome == "false alarm" for c in done
        ),
        "harmless_accused": sum(
            c.kind == "single" and c.severity <= HARMLESS and bool(c.named) for c in done
        ),
        "reliability": {
            level: {
                "cases": len(at := [c for c in accused if c.confidence == level]),
                "right": sum(c.outcome in right for c in at),
            }
            for level in ("low", "medium", "high")
        },
    }


def per_wire(done: Iterable[Case]) -> dict[str, dict[str, Any]]:
    """Of each wire: its single cuts, what they cost, and what became of them."""
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in done:
        if case.kind == "single":
            (wire,) = case.planted
            groups[wire].append(case)
    return {
        wire: {
            "cases": len(group),
            "severity": sorted(round(c.severity, 3) for c in group)[len(group) // 2],
            "harmful": dict(Counter(c.outcome for c in group if c.severity > HARMLESS)),
            "harmless": dict(Counter(c.outcome for c in group if c.severity <= HARMLESS)),
        }
        for wire, group in groups.items()
    }


def main() -> None:
    """Run all cases; print tables, or one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "subjects", nargs="+", help="DRAFT:STATES:TARGET, -DRAFT:.. if undertrained"
    )
    parser.add_argument("--short", action="store_true", help="some of the faults, one seed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=8, help="two-fault cases per drafter")
    parser.add_argument("--healthy", type=int, default=50, help="healthy twins per drafter")
    parser.add_argument("--faults", type=int, default=8, help="faults per drafter with --short")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.short:
        given.seeds, given.pairs, given.healthy = 1, min(given.pairs, 1), min(given.healthy, 5)
    began, done = time.perf_counter(), []
    for text in given.subjects:
        for case in cases(open_case(text), given):
            done.append(case)
            if case.outcome in ("wrong", "false alarm") or sys.stderr.isatty():
                print(case, file=sys.stderr, flush=True)
        print(
            f"{text}: {len(done)} cases, {time.perf_counter() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    out = {"summary": summary(done), "wires": per_wire(done)}
    out["summary"]["seconds"] = round(time.perf_counter() - began, 1)
    if given.json:
        from dataclasses import asdict

        print(json.dumps(out | {"cases": [asdict(case) for case in done]}, indent=2))
        return
    for name, value in out["summary"].items():
        print(f"{name:24} {value}")
    for wire, row in out["wires"].items():
        print(f"{wire:44} {row['cases']:4} cut costs {row['severity']:+.3f}  {row['harmful']}")
        if row["harmless"]:
            print(f"{'':44} harmless: {row['harmless']}")


if __name__ == "__main__":
    main()
