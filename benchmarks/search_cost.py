"""How many tuples a search scores, and in what time, beside the exhaustive table of them all.

    python benchmarks/search_cost.py [--json] [--exhaustive] DRAFT STATES

Boundaries h[0]..h[L] (without the final norm's output) stand for choice in every slot. The search
runs once on all tokens of the pool. --exhaustive also scores every tuple on 48 tokens of 12
sequences and searches on the same tokens: both must find the same best. That takes minutes.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import torch

from draftprobe.diagnose.pool import Pool
from draftprobe.diagnose.search import Search, sample, search
from draftprobe.drafter import golden
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import Drafter, load_drafter
from draftprobe.drafter.wiring import taps_name
from draftprobe.states.record import open_states
from draftprobe.states.target import embedding_table

TOKENS, SEQUENCES = 48, 12


def load(folder: Path, target: Path | None) -> Drafter:
    """A drafter with its golden file's wiring; its taps are not used."""
    test = golden.read(folder)
    table = embedding_table(target) if target else test.table()
    return load_drafter(open_checkpoint(folder), test.wiring, table)


def facts(found: Search, exhaustive: int) -> dict:
    """What a search cost and said."""
    return {
        "best": taps_name(found.best),
        "decided": found.decided,
        "tied": [taps_name(rival.taps) for rival in found.tied],
        "tied_per_slot": [taps_name(slot.taps) for slot in found.slots],
        "tuples": found.tuples,
        "exhaustive": exhaustive,
        "times_fewer": exhaustive / found.tuples,
        "tokens": found.tokens,
        "sequences": found.sequences,
        "seconds": found.seconds,
        "undecided": found.undecided,
    }


def exhaust(pool: Pool, tokens: torch.Tensor) -> dict:
    """The best of all tuples on these tokens, and its distance to the second."""
    start = time.perf_counter()
    table = {}
    for taps in itertools.product(pool.candidates, repeat=pool.slots):
        table[taps] = float(pool.log_likelihood(taps, tokens).mean())
    best, second = sorted(table, key=table.__getitem__, reverse=True)[:2]
    return {
        "best": taps_name(best),
        "second": taps_name(second),
        "margin": table[best] - table[second],
        "tuples": len(table),
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("draft", type=Path)
    parser.add_argument("states", type=Path)
    parser.add_argument("--target", type=Path, required=True, help="whose embedding it reads")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--exhaustive", action="store_true")
    arguments = parser.parse_args()
    states = open_states(arguments.states)
    drafter = load(arguments.draft, arguments.target)
    candidates = [tap for tap in states.boundaries if tap != "N"]
    start = time.perf_counter()
    pool = Pool(drafter, states, candidates)
    projections = time.perf_counter() - start
    every = len(candidates) ** pool.slots
    out = {"projections_s": projections, "search": facts(search(pool), every)}
    if arguments.exhaustive:
        tokens = sample(pool, 0, TOKENS, SEQUENCES)
        few = search(pool, tokens)
        table = exhaust(Pool(drafter, states, candidates), tokens)
        same = table["best"] == taps_name(few.best)
        out |= {"same_tokens": facts(few, every), "table": table, "same_best": same}
    if arguments.json:
        print(json.dumps(out))
        return
    for name, value in out.items():
        for key, fact in value.items() if isinstance(value, dict) else [("", value)]:
            print(f"{name:14} {key:14} {f'{fact:.4g}' if isinstance(fact, float) else fact}")


if __name__ == "__main__":
    main()
