"""Wall and processor time and peak memory of `draftprobe inspect` on public drafters' shapes.

Each runs in a process of its own, with a target's config, as a user would. Run from the repository
root, with nothing else on the machine:

    python benchmarks/inspect_time.py [--repeat 5] [--deep] [--json]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = str(Path(sys.executable).with_name("draftprobe"))
DEMO = ROOT / "src" / "draftprobe" / "demo" / "drafter"


def measure(arguments: list[str]) -> tuple[float, float, float, int]:
    """Seconds on the clock and of the processor, peak MiB and exit code of one process."""
    start = time.perf_counter()
    process = subprocess.Popen([COMMAND, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    clock, cpu = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
    return clock, cpu, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def subjects(root: Path) -> dict[str, list[str]]:
    """What is inspected: name -> arguments."""
    sys.path.insert(0, str(ROOT / "tests"))
    import synthetic  # pyright: ignore[reportMissingImports]

    made = {name: synthetic.write(root, name) for name in synthetic.KNOWN}
    known = {
        name: [str(folder.path), "--target", str(folder.target)] for name, folder in made.items()
    }
    return {"demo": [str(DEMO)], **known}


def main() -> None:
    """Print one row for each folder: the best and the worst of some runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--deep", action="store_true", help="read every weight, too")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as root:
        for name, arguments in subjects(Path(root)).items():
            more = ["--deep"] if asked.deep else []
            runs = [measure(["inspect", *arguments, *more]) for _ in range(asked.repeat)]
            seconds = [run[0] for run in runs]
            row = {
                "folder": name,
                "seconds": min(seconds),
                "worst": max(seconds),
                "cpu_seconds": min(run[1] for run in runs),
                "peak_mib": max(run[2] for run in runs),
                "code": runs[0][3],
            }
            rows.append(row)
            if not asked.json:
                print(
                    f"{name:24} {row['seconds']:6.2f} s (worst {row['worst']:.2f})  "
                    f"{row['cpu_seconds']:5.2f} s of cpu  "
                    f"{row['peak_mib']:6.0f} MiB  exit {row['code']}",
                    flush=True,
                )
    if asked.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
