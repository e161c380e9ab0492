"""What each slot is worth: accuracy and log-likelihood with one slot fed zeros, paired.

    python benchmarks/slot_ablation.py STATES TARGET DRAFT [--json]

Step 1 of the drafter as its golden file wires it, on at most 2,048 counted tokens that the draft
vocabulary holds; sequences are the clusters. A slot that costs nothing cannot be located by replay.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch

from draftprobe.diagnose.pool import Limits, Pool
from draftprobe.diagnose.search import ablate
from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter import golden
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import load_drafter
from draftprobe.drafter.wiring import tap_name
from draftprobe.measure.interval import Estimate
from draftprobe.states.record import open_states
from draftprobe.states.target import embedding_table


def told(estimate: Estimate, digits: int) -> str:
    """A difference with its interval."""
    numbers = (estimate.value, estimate.low, estimate.high)
    value, low, high = (f"{x:+.{digits}f}" if x is not None else "none" for x in numbers)
    return f"{value} ({low} to {high})"


def main() -> None:
    """Print one line per slot, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("states", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint, wiring = open_checkpoint(given.draft), golden.read(given.draft).wiring
    drafter = load_drafter(
        checkpoint, wiring_of(checkpoint, wiring.taps), embedding_table(given.target)
    )
    states = open_states(given.states)
    pool = Pool(drafter, states, tuple(dict.fromkeys(wiring.taps)), Limits(tokens=2048))
    tokens = torch.arange(len(pool))
    whole = float(pool.correct(wiring.taps, tokens).double().mean())
    slots = ablate(pool, wiring.taps, tokens)
    if given.json:
        print(json.dumps({"step_1": whole, "n": len(pool), "slots": [asdict(s) for s in slots]}))
        return
    print(f"step 1 as wired {whole:.3f}, {len(pool)} tokens inside the draft vocabulary")
    for slot in slots:
        print(
            f"slot {slot.slot} ({tap_name(wiring.taps[slot.slot])}) zeroed: accuracy "
            f"{told(slot.accuracy, 3)}, log-likelihood {told(slot.log_likelihood, 2)} nats"
        )


if __name__ == "__main__":
    main()
