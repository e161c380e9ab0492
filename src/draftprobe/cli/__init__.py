"""The command line: parses, calls, prints, and ends with one of a few exit codes.

Each command has a module of its own, whose heavy imports stand inside its function: `--help`
answers before torch would have loaded.
"""

import os
import sys
from errno import ELOOP, ENAMETOOLONG
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from draftprobe.cli import (
    capture,
    compare,
    convert,
    decode,
    demo,
    diagnose,
    env,
    explain,
    inspect,
    mend,
    replay,
    selftest,
    states,
    train,
)
from draftprobe.errors import InputError
from draftprobe.report.text import clean

__all__ = ["app", "main"]

BAD_INPUT, INTERNAL_ERROR, INTERRUPTED = 2, 4, 130

app = typer.Typer(add_completion=False, no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        from draftprobe import __version__

        print(f"draftprobe {__version__}")
        raise typer.Exit


@app.callback()
def draftprobe(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Is a low acceptance length the drafter's fault or the wiring's, and which wire is it?"""


# In the order in which the help lists them.
app.command()(capture.capture)
app.command()(states.states)
app.command()(train.train)
app.command()(selftest.selftest)
app.command()(inspect.inspect)
app.command()(diagnose.diagnose)
app.command()(compare.compare)
app.command()(replay.replay)
app.command()(decode.decode)
app.command()(mend.mend)
app.command()(convert.convert)
app.command()(explain.explain)
app.command()(demo.demo)
app.command()(env.env)


def main() -> None:
    """Run the command line and end the process; exceptions become exit codes here alone."""
    for stream in (sys.stdout, sys.stderr):  # names in files may hold what no encoding has
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except InputError as error:
        _end(BAD_INPUT, f"error: {error}")
    except OSError as error:
        if error.errno not in (ENAMETOOLONG, ELOOP):
            _end_badly(error)
        _end(BAD_INPUT, f"error: {str(error.filename)[:80]}: {error.strerror}; check the path")
    except SystemExit as end:
        if end.code == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            _end(INTERRUPTED, "interrupted")
        raise
    except Exception as error:
        _end_badly(error)
    finally:
        _flush()


def _end(code: int, message: str) -> NoReturn:
    print(clean(" ".join(message.splitlines())), file=sys.stderr)
    sys.exit(code)


def _end_badly(error: Exception) -> NoReturn:
    told = f"internal error: {type(error).__name__}: {error}"
    _end(INTERNAL_ERROR, f"{told}; the traceback lies in {_keep_traceback()}")


def _keep_traceback() -> Path:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="draftprobe-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        traceback.print_exc(file=file)
    return Path(file.name)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone: let the flush at exit go nowhere, too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
