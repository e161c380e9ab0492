"""All four statistics of the weights' witness along a training run.

    python benchmarks/witness_by_checkpoint.py STATES TAPS SNAPSHOT [SNAPSHOT ...] [--json]

A SNAPSHOT is a safetensors file with ``fc.weight``, as ``draftprobe train --snapshots`` keeps them;
TAPS are what was trained on, such as 0,3,16, in slot order. Per snapshot, slot and statistic: the
value at the trained boundary, the best boundary and its value, the random blocks' mean and spread,
and what the witness decides.
"""

import argparse
import json
from pathlib import Path

import torch

from draftprobe.diagnose.witness import Sample, sample_states, testify
from draftprobe.drafter.checkpoint import read_header, read_tensor
from draftprobe.drafter.wiring import Tap, parse_taps, tap_name, taps_name
from draftprobe.states.record import open_states


def table(snapshot: Path, sample: Sample, trained: tuple[Tap, ...]) -> list[dict]:
    """One row per slot and statistic."""
    weight = read_tensor(read_header(snapshot)[0]["fc.weight"]).float()
    witness = testify(weight, sample, 0)
    rows = []
    for tap, slot in zip(trained, witness.slots, strict=True):
        place = witness.boundaries.index(tap)
        for reading in slot.readings:
            values, best = reading.values, reading.order[0]
            rows.append({
                "snapshot": snapshot.stem,
                "slot": slot.slot,
                "statistic": reading.statistic,
                "trained": tap_name(tap),
                "value": values[place] if values else None,
                "best": tap_name(witness.boundaries[best]) if values else None,
                "best_value": values[best] if values else None,
                "null": reading.null_mean[place],
                "null_sd": reading.null_sd[place],
                "decision": slot.decision,
                "named": taps_name(slot.named),
            })  # fmt: skip
    return rows


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("states", type=Path)
    parser.add_argument("taps")
    parser.add_argument("snapshots", type=Path, nargs="+")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sample, trained = sample_states(open_states(given.states)), parse_taps(given.taps)
    rows = [row for file in given.snapshots for row in table(file, sample, trained)]
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        told = "too few tokens"
        if row["value"] is not None:
            told = (
                f"{row['trained']} {row['value']:9.4f}  best {row['best']:6} "
                f"{row['best_value']:9.4f}  random {row['null']:.4f} +- {row['null_sd']:.4f}"
            )
        print(
            f"{row['snapshot']} slot {row['slot']} {row['statistic']:8} {told}  {row['decision']} "
            f"{row['named']}"
        )


if __name__ == "__main__":
    main()
