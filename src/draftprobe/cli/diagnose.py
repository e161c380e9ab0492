"""`draftprobe diagnose`: is it the drafter or the wiring, and which wire?"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from draftprobe.errors import InputError

UNDECIDED, FINDINGS = 3, 1


def diagnose(
    draft: Annotated[Path, typer.Argument(help="The drafter's folder.")],
    states: Annotated[Path, typer.Option(help="States of its target, with every boundary.")],
    target: Annotated[
        Path | None, typer.Option(help="The target's folder, for config and embedding table.")
    ] = None,
    served: Annotated[str | None, typer.Option(help="What is served, such as 3,16,28.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="Whose reading of the config: sglang, vllm@0.32.0, ...")
    ] = None,
    trainer: Annotated[
        str | None, typer.Option(help="Who trained it, where the folder does not tell.")
    ] = None,
    served_wire: Annotated[
        list[str] | None,
        typer.Option(help="Another wire as served, NAME=VALUE, such as feedback=post_norm."),
    ] = None,
    claimed_accuracy: Annotated[
        float | None, typer.Option(help="Next-token accuracy that training claims, such as 0.747.")
    ] = None,
    served_acceptance: Annotated[
        str | None, typer.Option(help="Tokens per pass (1.8), or joint rates (.36,.02,.01).")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Draft steps, as served.")] = 5,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens that the search scores.")] = 1024,
    sequences: Annotated[int, typer.Option(min=1, help="Of at most so many sequences.")] = 256,
    seed: Annotated[int, typer.Option(help="Of samples and null draws.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="A run folder to write.")] = None,
    planned: Annotated[
        bool, typer.Option("--plan", help="Print what this would cost, and do nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the wiring that the weights want, compare with what is served, judge, mend."""
    if served is not None and engine is not None:
        raise InputError("expected at most one of --served and --engine, found both")
    if seed < 0 or seed >= 2**63:
        raise InputError(f"--seed: expected a number in 0..2^63 - 1, found {seed}")
    from draftprobe.cli.progress import check_device

    check_device(device)
    from draftprobe.diagnose.run import check_out

    if out is not None:
        check_out(out)
    from draftprobe.diagnose.claims import parse_claims
    from draftprobe.diagnose.diagnosis import diagnose as run
    from draftprobe.diagnose.pool import Limits
    from draftprobe.diagnose.run import Subject, open_subject, write_run
    from draftprobe.drafter.wiring import parse_taps
    from draftprobe.report.terminal import render

    if planned:
        _print_plan(
            draft,
            states,
            Limits(tokens=tokens, sequences=sequences),
            steps,
            device,
            trainer,
            as_json,
        )
        return
    subject: Subject = open_subject(draft, states, target, device, trainer)
    taps = subject.served(parse_taps(served) if served else None, engine)
    verdict, search, witness = run(
        subject.drafter,
        subject.states,
        subject.served_as(taps, engine, served_wire or ()),
        parse_claims(claimed_accuracy, served_acceptance, steps),
        steps,
        subject.not_evaluated(engine),
        subject.provenance(sys.argv[1:]),
        _say,
        Limits(tokens=tokens, sequences=sequences),
        seed,
    )
    verdict = subject.mended(verdict, engine)
    if out is not None:
        write_run(out, verdict, search, witness)
    _print(verdict, as_json, render)
    undecided = verdict.verdict == "undecided"
    raise typer.Exit(UNDECIDED if undecided else FINDINGS if verdict.findings else 0)


def _print_plan(
    draft: Path,
    states: Path,
    limits: Any,
    steps: int,
    device: str,
    trainer: str | None,
    as_json: bool,
) -> None:
    import json

    from draftprobe.diagnose.plan import plan
    from draftprobe.drafter.checkpoint import open_checkpoint
    from draftprobe.states.record import open_states

    cost = plan(open_checkpoint(draft), open_states(states), limits, steps, device, trainer)
    print(json.dumps(cost.to_json(), indent=2) if as_json else "\n".join(cost.lines()))


def _say(stage: str) -> None:
    print(f"diagnose: {stage}", file=sys.stderr, flush=True)


def _print(verdict: Any, as_json: bool, render: Any) -> None:
    if as_json:
        import json

        print(json.dumps(verdict.to_json(), indent=2))
    else:
        print(*render(verdict), sep="\n")
