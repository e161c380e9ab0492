"""How often is a healthy drafter called miswired? Resamples of sequences, one verdict each.

    python benchmarks/healthy_resamples.py STATES TARGET DRAFT [DRAFT ...] [--resamples 50] [--json]

Every DRAFT is served the wiring it was trained on (its golden file's). A resample draws
``--sequences`` sequences without replacement and ``--tokens`` tokens of them; search, tie set,
paired differences and verdict are those of ``draftprobe diagnose`` on these sequences. The pool's
projections and each wiring's replay are computed once and restricted to the resample; the weights'
witness is asked once, on all states. STATES must hold every boundary.
"""

import argparse
import json
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path

import torch

from draftprobe.diagnose.claims import Claims
from draftprobe.diagnose.diagnosis import judge, weigh
from draftprobe.diagnose.pool import Limits, Pool, rewired
from draftprobe.diagnose.search import sample, search
from draftprobe.diagnose.witness import sample_states, testify
from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter import golden
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import load_drafter
from draftprobe.measure.replay import observe
from draftprobe.states.record import States, open_states
from draftprobe.states.target import embedding_table


def resampled(
    folder: Path, states: States, target: Path, resamples: int, sequences: int, tokens: int
) -> dict:
    """Verdicts of one drafter: counts by kind, and what was named."""
    checkpoint = open_checkpoint(folder)
    trained = golden.read(folder).wiring.taps
    drafter = load_drafter(checkpoint, wiring_of(checkpoint, trained), embedding_table(target))
    pool = Pool(drafter, states, limits=Limits(tokens=8 * tokens))
    witness = testify(drafter.fc.weight.detach(), sample_states(states), 0)

    @cache
    def whole(taps):
        return observe(rewired(drafter, taps), states, 3)

    kinds: Counter[str] = Counter()
    exact = covered = 0
    began = time.perf_counter()
    for seed in range(resamples):
        chosen = sample(pool, seed, tokens, sequences)
        kept = pool.sequence[chosen].unique()
        evidence = weigh(
            search(pool, chosen, seed=seed), witness, pool,
            lambda taps, kept=kept: whole(taps).only(kept), states, trained, Claims(),
        )  # fmt: skip
        kinds[judge(evidence)] += 1
        exact += evidence.wanted == trained
        covered += bool(evidence.served_tied)
        if sys.stderr.isatty():
            print(f"\r{folder.name}: {seed + 1}/{resamples}", end="", file=sys.stderr)
    return {
        "drafter": folder.name, "trained": list(trained), "resamples": resamples,
        "sequences": sequences, "tokens": tokens, "verdicts": dict(kinds),
        "wanted_is_trained": exact, "trained_in_tie_set": covered,
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def main() -> None:
    """Print one line, or one JSON list, over all drafters given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("states", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("drafts", type=Path, nargs="+")
    parser.add_argument("--resamples", type=int, default=50)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    states = open_states(given.states)
    facts = [
        resampled(draft, states, given.target, given.resamples, given.sequences, given.tokens)
        for draft in given.drafts
    ]
    if given.json:
        print(json.dumps(facts, indent=2))
        return
    for fact in facts:
        told = ", ".join(f"{kind} {count}" for kind, count in fact["verdicts"].items())
        print(
            f"{fact['drafter']} {fact['trained']}: {told} of {fact['resamples']}; wanted is "
            f"trained {fact['wanted_is_trained']}, trained in tie set {fact['trained_in_tie_set']}"
        )


if __name__ == "__main__":
    main()
