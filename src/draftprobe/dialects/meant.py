"""Which wiring a folder means: its golden file's, our conversion's mark, its trainer's rule, or
what the user says. Where none of them is certain, it asks. Reads no weight's value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from draftprobe.dialects.families import family_of, text_part
from draftprobe.dialects.ids import default_taps
from draftprobe.dialects.keys import count
from draftprobe.dialects.recognise import Recognised, recognise
from draftprobe.dialects.trainers import TapClaim, claims, parse
from draftprobe.drafter.checkpoint import Checkpoint, read_json
from draftprobe.drafter.layout import Layout, layout_of
from draftprobe.drafter.wiring import Tap, Wiring, check_taps, difference, taps_name
from draftprobe.errors import InputError

GOLDEN = "golden.safetensors"


@dataclass(frozen=True, slots=True)
class Target:
    """What a target's ``config.json`` says: L, the family by which ids are read, architectures."""

    layers: int
    family: str
    architectures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user says beyond the folder: see ``convert.convert``."""

    taps: tuple[Tap, ...] | None = None
    read_ids: str | None = None
    trainer: str | None = None
    target: Path | None = None
    verifier: str | None = None


NOTHING_SAID = Wish()


def read_target(path: Path) -> Target:
    """What is needed of a target, from its ``config.json`` or the folder with it.

    Raises:
        InputError: no such file, or it names no family or no layers.
    """
    where = path / "config.json" if path.is_dir() else path
    config = read_json(where)
    layers = count(text_part(config), "num_hidden_layers", where)
    if layers is None:
        raise InputError(f"{where}: expected the target's num_hidden_layers, found none")
    names = config.get("architectures")
    plain = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return Target(layers, family_of(config, where), tuple(names) if plain and names else ())


def known_wiring(
    checkpoint: Checkpoint, layout: Layout, who: Recognised, wish: Wish, target: Target | None
) -> Wiring:
    """The wiring that is to be kept: the golden file's, else the trainer's with the taps found.

    Raises:
        InputError: the taps are not known, do not exist, or differ from the golden file's.
    """
    if not (checkpoint.folder / GOLDEN).is_file():
        taps = wish.taps or _claimed(checkpoint, who, wish, target)
        if target is not None:
            check_taps(taps, target.layers)
        return parse(checkpoint, layout, taps, wish.trainer)
    from draftprobe.drafter.golden import read

    golden = read(checkpoint.folder).wiring
    given = replace(golden, taps=wish.taps) if wish.taps else golden
    if wish.trainer:
        given = parse(checkpoint, layout, given.taps, wish.trainer)
    if wires := difference(golden, given):
        raise InputError(
            f"{checkpoint.folder / GOLDEN}: the golden file says otherwise about "
            f"{', '.join(wires)}; leave out --taps and --trainer, or take the file away"
        )
    return golden


def against_golden(
    checkpoint: Checkpoint, layout: Layout, golden: Wiring, target: Target | None
) -> list[str]:
    """Where a folder's config says otherwise than its golden file, a sentence each.

    Args:
        checkpoint: the folder.
        layout: where it keeps its tensors.
        golden: the wiring of its golden file, which decides.
        target: what is known of the target; None leaves ids that hang on it out.
    """
    told = "the golden file decides, which says"
    layers, family = (target.layers, target.family) if target else (None, None)
    found = [
        f"config.json was changed: {claim.key} {list(claim.ids)} means {taps_name(claim.meant)}; "
        f"{told} {taps_name(golden.taps)}"
        for claim in claims(checkpoint, layers, None, family)
        if claim.meant not in (None, golden.taps) and (family or "SGLang" not in claim.why)
    ]
    try:
        said = parse(checkpoint, layout, golden.taps)
    except InputError as error:
        return [*found, f"config.json is not compared with the golden file: {error}"]
    return found + [
        f"config.json says {wire} {of_golden[1]}; {told} {of_golden[0]}"
        for wire, of_golden in difference(golden, said).items()
    ]


def _claimed(
    checkpoint: Checkpoint, who: Recognised, wish: Wish, target: Target | None
) -> tuple[Tap, ...]:
    """Boundaries by the config's own lists; one reading must remain."""
    layers = target.layers if target else None
    family = target.family if target else None
    found = claims(checkpoint, layers, wish.trainer, family)
    where = checkpoint.folder / "config.json"
    if not found and who.name == "eagle" and layers is not None:
        return default_taps(layers)
    if not found:
        raise InputError(f"{where}: names no layers; give the boundaries with --taps")
    rules = {"output": "as_output", "boundary": "as_boundary", None: "meant"}
    if wish.read_ids not in rules:
        raise InputError(f"--read-ids: expected output or boundary, found {wish.read_ids!r}")
    marked = [claim for claim in found if claim.level == "mark"]
    used = marked if marked and wish.read_ids is None else [c for c in found if c not in marked]
    read = {getattr(claim, rules[wish.read_ids]) for claim in used}
    asks = who.name == "specforge" and family is None and rules[wish.read_ids] == "meant"
    if asks and not marked:
        raise InputError(
            f"{where}: what SpecForge's ids mean hangs on the target's family: give --target, or "
            "--taps, or --read-ids output|boundary"
        )
    if len(read) == 1 and (taps := read.pop()) is not None:
        return taps
    said = "; ".join(f"{claim.key} {list(claim.ids)} ({claim.why})" for claim in found)
    raise InputError(
        f"{where}: the taps are not certain: {said}; give --taps, or --read-ids output|boundary"
    )


def _may_mean(claim: TapClaim, taps: tuple[int, ...]) -> bool:
    """Whether a list names these boundaries under some rule; the engine's order may be another."""
    return any(
        read and sorted(read) == sorted(taps) for read in (claim.as_output, claim.as_boundary)
    )


def certain_taps(checkpoint: Checkpoint, layers: int | None) -> tuple[tuple[Tap, ...] | None, str]:
    """The boundaries that a config names beyond doubt, and by what; None and why where it does not.

    Certain are the mark of our own conversion and the top-level list of speculators, which hands it
    to vLLM as it stands. Every other list has to be readable as the same boundaries.
    """
    who = recognise(checkpoint, layout_of(checkpoint)).name
    found = claims(checkpoint, layers)
    sure = {
        claim.meant: claim.key
        for claim in found
        if claim.meant is not None
        and (claim.level == "mark" or (who, claim.level) == ("speculators", "top"))
    }
    odd = [claim for claim in found if not any(_may_mean(claim, taps) for taps in sure)]
    if len(sure) == 1 and not odd:
        [(taps, key)] = sure.items()
        return taps, f"{key} in config.json ({who}: boundaries)"
    if sure:
        said = [f"{key} {taps_name(taps)}" for taps, key in sure.items()]
        said += [f"{claim.key} {list(claim.ids)}" for claim in odd]
        return None, f"config.json names several choices: {' and '.join(said)}"
    said = ", ".join(f"{claim.key} {list(claim.ids)}" for claim in found)
    return None, f"what it names is not certain ({said})" if said else "config.json names none"
