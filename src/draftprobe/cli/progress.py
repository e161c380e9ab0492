"""Progress of long work on stderr: a counter with the time left, quiet for quick work."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from draftprobe.errors import InputError


def check_device(device: str) -> None:
    """Raise InputError unless torch can compute on ``device``."""
    import torch

    kinds = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    if device.partition(":")[0] not in kinds:
        raise InputError(
            f"--device: expected {' or '.join(kinds)} on this machine, found {device!r}"
        )


@contextmanager
def counted(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yield ``progress(done, total)``; prints at most once a second, or every 10 s into a file."""
    start = last = time.monotonic()
    terminal = sys.stderr.isatty()
    shown = False

    def progress(done: int, total: int) -> None:
        nonlocal last, shown
        now = time.monotonic()
        if now - last < (1 if terminal else 10) or not done:
            return
        last, shown = now, True
        left = (now - start) * (total - done) / done
        text = f"{what}: {done}/{total} {unit}, {_clock(left)} left"
        print(f"\r{text:70}" if terminal else text, end="" if terminal else "\n", file=sys.stderr)
        sys.stderr.flush()

    yield progress
    if shown and terminal:
        print(file=sys.stderr)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
