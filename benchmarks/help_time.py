"""Times `draftprobe --help` beside an empty typer app that has as many commands.

    python benchmarks/help_time.py [--json]

Both run as fresh processes of this Python, in turn, so that a busy machine slows both alike.
"""

import json
import statistics
import subprocess
import sys
import time

RUNS = 11

OURS = "import sys; sys.argv[0] = 'draftprobe'; from draftprobe.cli import main; main()"

EMPTY = """
import typer

app = typer.Typer()

@app.callback()
def empty() -> None:
    "An empty app."

for number in range({commands}):
    @app.command(f"command{{number}}")
    def command() -> None:
        "An empty command."

app()
"""


def seconds(code: str) -> float:
    """The wall time of one `--help`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure() -> dict[str, float]:
    """Medians over interleaved runs, after one run of each that fills the caches."""
    from draftprobe.cli import app

    codes = [OURS, EMPTY.format(commands=len(app.registered_commands))]
    runs = [[seconds(code) for code in codes] for _ in range(RUNS + 1)][1:]
    ours, empty = map(statistics.median, zip(*runs, strict=True))
    return {"runs": RUNS, "draftprobe_s": ours, "empty_typer_s": empty, "ratio": ours / empty}


if __name__ == "__main__":
    figures = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:14} {figure:.4g}" for name, figure in figures.items()))
