"""The search at Kimi-K2.5's size on two cores, and beside a plain loop where both can run.

    python benchmarks/at_size.py [--small] [--json] [--draft-vocabulary D] [--folder FOLDER]

Makes a synthetic case in a temporary folder (at_size_case.py says how): hidden size 7168, 61
layers, 63 boundaries, a drafter of about 2 billion parameters in bf16, 512 tokens of 32 sequences,
planted wiring (0, 3, 31), served (3, 31, 59) as in the founding case. `draftprobe diagnose` then
runs on the files in a process of its own, as a user runs it; its seconds per stage, its peak
memory (all of it, mapped file pages counted, and without these) and its verdict are reported, and
the tuples scored against all 62^3. Processor seconds stand beside seconds: on a shared machine they
say what free cores would take.

Then, on a case small enough (12 boundaries), the search and a straightforward loop that runs the
speculators package's own module on every tuple, on the same weights, tokens and threads, in one
process: the same best tuple, and the ratio of the times. --small does this alone, and the diagnosis
of the small case. OMP_NUM_THREADS sets the threads of both.

The case is synthetic: it shows cost, and that the way is right when neighbours are close; how close
neighbours of a trained target are is not in it.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch
from at_size_case import KIMI, SMALL, Sizes, described, make
from peer import Logits, peer

from draftprobe.diagnose.pool import Limits, Pool
from draftprobe.diagnose.run import open_subject
from draftprobe.diagnose.search import search
from draftprobe.drafter.wiring import taps_name
from draftprobe.states.record import States

RUN = "import sys; from draftprobe.cli import main; sys.argv[0] = 'draftprobe'; main()"


def diagnosed(draft: Path, states: Path, sizes: Sizes, out: Path) -> dict:
    """`draftprobe diagnose` in a process of its own, watched."""
    served = ",".join(map(str, sizes.served))
    command = [
        sys.executable, "-c", RUN, "diagnose", str(draft), "--states", str(states),
        "--served", served, "--tokens", "512", "--trainer", "eagle", "--json", "--out", str(out),
    ]  # fmt: skip
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    peak = {"VmHWM": 0, "RssAnon": 0}
    watcher = threading.Thread(target=_watch, args=(process, peak))
    watcher.start()
    said: list[tuple[float, float, str]] = []
    assert process.stdout
    assert process.stderr
    text: list[str] = []
    reader = threading.Thread(target=lambda: text.append(process.stdout.read()))  # type: ignore
    reader.start()
    for line in process.stderr:
        print(line.rstrip(), file=sys.stderr, flush=True)
        said.append((time.perf_counter() - start, _used(process.pid), line.strip()))
    process.wait()
    watcher.join()
    reader.join()
    seconds = time.perf_counter() - start
    if process.returncode not in (0, 1, 3):
        raise SystemExit(f"diagnose ended with {process.returncode}: {said[-3:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    ends = [(at, cpu) for at, cpu, _ in said[1:]] + [(seconds, used)]
    stages = [
        {"stage": stage, "seconds": end - at, "cpu_seconds": spent - cpu}
        for (at, cpu, stage), (end, spent) in zip(said, ends, strict=True)
    ]
    verdict, found = json.loads(text[0]), json.loads((out / "search.json").read_text())
    return {
        "seconds": seconds,
        "cpu_seconds": used,
        "before_first_stage": said[0][0] if said else None,
        "stages": stages,
        "peak_gib": peak["VmHWM"] / 2**20,
        "peak_without_mapped_gib": peak["RssAnon"] / 2**20,
        "verdict": verdict["verdict"],
        "confidence": verdict["confidence"],
        "wanted": verdict["wanted"],
        "right": tuple(verdict["wanted"]) == sizes.taps,
        "findings": [finding["id"] for finding in verdict["findings"]],
        "tuples": found["tuples"],
        "exhaustive": (sizes.layers + 1) ** len(sizes.taps),
        "search_seconds": found["seconds"],
    }


def _used(pid: int) -> float:
    """Seconds of processor time that a process took so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _watch(process: subprocess.Popen, peak: dict[str, int]) -> None:
    """Peaks of a process's memory in KiB, from its status file (Linux)."""
    while process.poll() is None:
        try:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            name, _, value = line.partition(":")
            if name in peak:
                peak[name] = max(peak[name], int(value.split()[0]))
        time.sleep(0.2)


def looped(draft: Path, states: States, pool: Pool, most: int | None = None) -> dict:
    """Every tuple through the speculators module on all the pool's tokens, by mean log p."""
    run = Logits(peer(draft))
    texts = [states.sequence(i, states.boundaries) for i in range(len(states))]
    h = {tap: torch.cat([text.h[tap].float() for text in texts]) for tap in pool.candidates}
    tokens = torch.cat([text.tokens[1:] for text in texts])
    documents = torch.arange(len(texts)).repeat_interleave(
        torch.tensor([len(text.tokens) - 1 for text in texts])
    )
    starts = torch.tensor([0, *(len(text.tokens) - 1 for text in texts)]).cumsum(0)
    rows = starts[pool.sequence] + pool.slot
    table, start = {}, time.perf_counter()
    for taps in itertools.islice(itertools.product(pool.candidates, repeat=pool.slots), most):
        (logits,) = run(torch.cat([h[tap] for tap in taps], dim=-1), tokens, documents, 1)
        likely = logits[0, rows].log_softmax(-1)
        table[taps] = float(likely.gather(1, pool._labels[:, None]).mean())
    best = max(table, key=table.__getitem__)
    return {
        "best": best, "likelihood": table[best], "tuples": len(table),
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def side_by_side(draft: Path, path: Path, most: int | None = None) -> dict:
    """Search and loop on one case, in this process."""
    subject = open_subject(draft, path, None, "cpu", "eagle")
    candidates = [tap for tap in subject.states.boundaries if tap != "N"]
    start = time.perf_counter()
    pool = Pool(subject.drafter, subject.states, candidates, Limits(tokens=512))
    found = search(pool)
    seconds = time.perf_counter() - start
    loop = looped(draft, subject.states, pool, most)
    ours = float(pool.log_likelihood(loop["best"], torch.arange(len(pool))).mean())
    return {
        "search": {"best": taps_name(found.best), "tuples": found.tuples, "seconds": seconds},
        "loop": loop | {"best": taps_name(loop["best"])},
        "same_best": loop["best"] == found.best,
        "likelihood_differs_by": abs(ours - loop["likelihood"]),
        "times_faster": loop["seconds"] / seconds,
        "threads": torch.get_num_threads(),
    }


def measured(sizes: Sizes, folder: Path, compare: bool) -> dict:
    """One case made, diagnosed, and compared where asked."""
    start = time.perf_counter()
    draft, states = make(folder, sizes)
    out: dict = {"sizes": described(sizes), "made_seconds": time.perf_counter() - start}
    if compare:
        out["side_by_side"] = side_by_side(draft, states)
    out["diagnose"] = diagnosed(draft, states, sizes, folder / "run")
    return out


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="the small case alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--draft-vocabulary", type=int, default=KIMI.draft)
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    arguments = parser.parse_args()
    cases = {"small": (SMALL, True)}
    if not arguments.small:
        cases["size"] = (replace(KIMI, draft=arguments.draft_vocabulary), False)
    result: dict = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    for name, (sizes, compare) in cases.items():
        with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="at-size-") as folder:
            result[name] = measured(sizes, Path(folder), compare)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        _print(result)


def _print(value: object, name: str = "", depth: int = 0) -> None:
    """Plain lines, nested by indentation."""
    if isinstance(value, dict):
        if name:
            print(f"{'  ' * depth}{name}")
        for key, inner in value.items():
            _print(inner, key, depth + bool(name))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        print(f"{'  ' * depth}{name}")
        for inner in value:
            shown = f"{inner['seconds']:8.1f} s {inner['cpu_seconds']:8.1f} s of processor time"
            print(f"{'  ' * depth}  {shown}  {inner['stage']}")
    else:
        print(f"{'  ' * depth}{name:24} {f'{value:.4g}' if isinstance(value, float) else value}")


if __name__ == "__main__":
    main()
