"""Replay against the speculators package's own forward: same weights, tokens, steps, threads.

    python benchmarks/replay_throughput.py [--json] [--rounds 7] [--steps 5]

Both read the states of each sequence from the file, run all draft steps teacher-forced and say of
every counted token whether the draft is right and how likely it was; what they say is compared
first. Theirs is run one sequence at a time, and packed into one pass as in training; the quicker
of both is what ours is held against. Runs alternate; medians, with the least and the most. The
form is a synthetic drafter (at_size_case.py) of hidden size 576 and draft vocabulary 8,000 on 8
sequences of 200 tokens, in float32. OMP_NUM_THREADS sets the threads of both.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from at_size_case import Sizes, described, make
from peer import Logits, peer

from draftprobe.diagnose.run import open_subject
from draftprobe.diagnose.search import rewired
from draftprobe.drafter.model import Drafter
from draftprobe.measure.replay import Observations, observe
from draftprobe.states.record import States

SIZES = Sizes(576, 6, 9, 3, 64, 1536, 16_000, 8000, 8, 200, (0, 3, 5), (3, 5, 6))


class Theirs:
    """Their module, scored as replay scores: [steps, slots of all sequences]."""

    def __init__(self, folder: Path, drafter: Drafter, states: States, steps: int) -> None:
        self.run, self.states, self.steps = Logits(peer(folder, steps)), states, steps
        self.taps, self.ids = drafter.wiring.taps, drafter.target_ids()
        self.places = torch.full((drafter.shape.vocabulary,), -1)
        self.places[self.ids] = torch.arange(len(self.ids))

    def alone(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One sequence at a time."""
        both = zip(*(self._pass([i]) for i in range(len(self.states))), strict=True)
        right, likely = (torch.cat(part, dim=-1) for part in both)
        return right, likely

    def packed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All sequences in one pass."""
        return self._pass(range(len(self.states)))

    def _pass(self, index: range | list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        texts = [self.states.sequence(i, self.taps) for i in index]
        sizes = torch.tensor([len(text.tokens) - 1 for text in texts])
        documents = torch.arange(len(texts)).repeat_interleave(sizes)
        states = torch.cat([text.taps(self.taps) for text in texts])
        logits = self.run(
            states, torch.cat([text.tokens[1:] for text in texts]), documents, self.steps
        )
        right, likely = [], []
        for step, scores in enumerate(logits, 1):
            labels = torch.cat([_ahead(text.tokens, step + 1) for text in texts])
            picked = scores[0].gather(1, self.places[labels].clamp(min=0)[:, None])[:, 0]
            likely.append(picked - scores[0].logsumexp(-1))
            right.append(self.ids[scores[0].argmax(-1)] == labels)
        return torch.stack(right), torch.stack(likely)


def _ahead(tokens: torch.Tensor, by: int) -> torch.Tensor:
    """Each slot's label, and token 0 where the text has none: [n - 1]."""
    out = torch.zeros(len(tokens) - 1, dtype=torch.long)
    out[: len(tokens) - by] = tokens[by:]
    return out


def agreed(seen: Observations, right: torch.Tensor, likely: torch.Tensor, states: States) -> dict:
    """How far theirs is from ours on what counts."""
    starts = torch.tensor([0, *(n - 1 for n in states.lengths)]).cumsum(0)
    rows = starts[seen.sequence] + seen.slot
    known = seen.valid & seen.inside
    away = (likely[:, rows] - seen.log_likelihood)[known].abs()
    return {
        "tokens": int(known.sum()),
        "likelihood_differs_by": float(away.max()),
        "other_drafts": int((right[:, rows] != seen.correct)[seen.valid].sum()),
    }


def alternating(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, in turn, after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def measured(folder: Path, rounds: int, steps: int) -> dict:
    """Make the case, compare what both say, time them."""
    draft, path = make(folder, SIZES)
    subject = open_subject(draft, path, None, "cpu", "eagle")
    drafter, states = rewired(subject.drafter, SIZES.taps), subject.states
    theirs = Theirs(draft, drafter, states, steps)
    same = agreed(observe(drafter, states, steps), *theirs.alone(), states)
    runs = {
        "replay": lambda: observe(drafter, states, steps),
        "speculators, one by one": theirs.alone,
        "speculators, packed": theirs.packed,
    }
    seconds = alternating(runs, rounds)
    tokens = sum(states.lengths) - len(states)
    rows = {
        name: {
            "median_s": statistics.median(all_),
            "least_s": min(all_),
            "most_s": max(all_),
            "tokens_per_s": tokens / statistics.median(all_),
        }
        for name, all_ in seconds.items()
    }
    quicker = min(rows[name]["median_s"] for name in rows if name != "replay")
    ratios = [
        min(seconds[name][turn] for name in rows if name != "replay") / seconds["replay"][turn]
        for turn in range(rounds)
    ]
    return {
        "sizes": described(SIZES), "steps": steps, "rounds": rounds, "slots": tokens,
        "threads": torch.get_num_threads(), "agreement": same, "seconds": rows,
        "times_faster": quicker / rows["replay"]["median_s"],
        "times_faster_by_round": [min(ratios), statistics.median(ratios), max(ratios)],
    }  # fmt: skip


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="replay-throughput-") as folder:
        result = measured(Path(folder), arguments.rounds, arguments.steps)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    for name, row in result["seconds"].items():
        print(
            f"{name:24} {row['median_s']:.3f} s ({row['least_s']:.3f} to {row['most_s']:.3f}), "
            f"{row['tokens_per_s']:,.0f} tokens/s"
        )
    low, middle, high = result["times_faster_by_round"]
    print(f"replay is {middle:.2f} times as quick ({low:.2f} to {high:.2f}, round by round)")
    print(
        f"same on {result['agreement']['tokens']:,} tokens: log-likelihood to "
        f"{result['agreement']['likelihood_differs_by']:.1e}, "
        f"{result['agreement']['other_drafts']} other drafts"
    )


if __name__ == "__main__":
    main()
