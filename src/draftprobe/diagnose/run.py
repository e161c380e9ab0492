"""A diagnosis from folders to a run folder: opens what is diagnosed, writes what was found.

Knows files and configs; the judging is in diagnosis.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from draftprobe.diagnose.checks.given import open_target
from draftprobe.diagnose.diagnosis import Served
from draftprobe.diagnose.mend import Wanted, mend, read_config
from draftprobe.diagnose.search import Search
from draftprobe.diagnose.verdict import Finding, Mend, NotEvaluated, Verdict
from draftprobe.diagnose.wires import parse_wire
from draftprobe.diagnose.witness import Witness
from draftprobe.dialects.engines import config_engines, parse_engine
from draftprobe.dialects.families import read_family
from draftprobe.dialects.ids import KEY, NESTED, layer_ids
from draftprobe.dialects.rope_keys import read_rope
from draftprobe.dialects.trainers import parse
from draftprobe.drafter.checkpoint import Checkpoint, open_checkpoint
from draftprobe.drafter.layout import layout_of
from draftprobe.drafter.model import Drafter, load_drafter
from draftprobe.drafter.parts import Parts, read_parts, rewire
from draftprobe.drafter.wiring import Rope, Tap, Wiring, check_taps, taps_name
from draftprobe.errors import InputError
from draftprobe.states.record import States, open_states
from draftprobe.states.target import (
    check_belongs,
    embedding_table,
    final_norm,
    head_table,
    text_config,
)


@dataclass(frozen=True)
class Subject:
    """What is diagnosed.

    Attributes:
        checkpoint: the drafter's folder; drafter: loaded, its taps still to be found.
        states: of its target.
        family: the target's, as engines' rules name it.
        parts: what the drafter can be wired with; rope: the target's, None if not known.
        target: the target's folder, if it is there.
    """

    checkpoint: Checkpoint
    drafter: Drafter
    states: States
    family: str
    parts: Parts
    rope: Rope | None
    target: Path | None

    @property
    def layers(self) -> int:
        """L of the target."""
        return self.states.provenance.layers

    def served(self, given: tuple[Tap, ...] | None, engine: str | None) -> tuple[Tap, ...] | None:
        """What the server feeds: as given, or as an engine reads the config; None without either.

        Raises:
            InputError: as many taps as slots are needed, within the target's layers, recorded.
        """
        taps = given
        if engine is not None:
            where = self.checkpoint.folder / "config.json"
            reader = parse_engine(engine)
            taps = reader.delivered(self.checkpoint.config, self.family, self.layers, where)
        if taps is None:
            return None
        check_taps(taps, self.layers)
        if len(taps) != self.drafter.shape.taps:
            raise InputError(
                f"served {taps_name(taps)}: expected {self.drafter.shape.taps} boundaries, one per "
                f"slot of this drafter's fc, found {len(taps)}"
            )
        self.states.require(taps)
        return taps

    def served_as(
        self, taps: tuple[Tap, ...] | None, engine: str | None, wires: Sequence[str]
    ) -> Served:
        """What the server runs: the wiring as trained, as an engine alters it, and as given.

        Args:
            taps: boundaries fed, if known; see :meth:`served`.
            engine: whose effects apply, where the target's config is at hand.
            wires: wires given outright, ``name=value``.

        Raises:
            InputError: no such wire, or a value that nothing at hand can serve.
        """
        wiring = self.drafter.wiring
        if engine is not None and self.target is not None:
            reader = parse_engine(engine)
            layout, target = layout_of(self.checkpoint), open_target(self.target)
            wiring = reader.served(wiring, reader.effects(self.checkpoint, layout, target))
        for text in wires:
            wiring = parse_wire(text, wiring)
        trained = self.drafter.wiring
        return Served(taps, self._ones(wiring), self.parts, self.rope, trained)

    def _ones(self, wiring: Wiring) -> Wiring:
        """A norm that is served without weights stands at ones; all else must be at hand."""
        names = {"whole": "input_norm.weight", "per_tap": "fc_norm.0.weight"}
        if wiring.pre_fc_norm not in self.parts.pre_fc_norms:
            wiring = replace(wiring, initial=wiring.initial | {names[wiring.pre_fc_norm]})
        some = (self.states.boundaries[0],) * self.drafter.shape.taps
        rewire(self.drafter, replace(wiring, taps=some), self.parts)
        return wiring

    def not_evaluated(self, engine: str | None = None) -> list[NotEvaluated]:
        """What a diagnosis from files leaves open."""
        out = [
            NotEvaluated("compare", "no dump of served states was given"),
            NotEvaluated("cost", "step costs were not measured"),
        ]
        if engine is None:
            told = "the other wires are taken as trained; give --engine or --served-wire"
            out.append(NotEvaluated("engine", told))
        elif self.target is None:
            told = "what it does beside the taps needs the target's config; give --target"
            out.append(NotEvaluated("engine", told))
        missing = [
            tap for tap in (*range(self.layers + 1), "N") if tap not in self.states.boundaries
        ]
        if missing:
            told = f"{len(missing)} of {self.layers + 2} boundaries are not in the states file"
            out.append(NotEvaluated("other boundaries", told))
        return out

    def provenance(self, command: Sequence[str]) -> dict[str, Any]:
        """Files, digests and versions that the verdict rests on."""
        packages = ("draftprobe", "torch", "transformers", "safetensors")
        config = (self.checkpoint.folder / "config.json").read_bytes()
        return {
            "command": ["draftprobe", *command],
            "drafter": str(self.checkpoint.folder.resolve()),
            "config_sha256": hashlib.sha256(config).hexdigest(),
            "states": str(self.states.path),
            "target": self.states.provenance.model,
            "family": self.family,
            "layers": self.layers,
            "text": self.states.provenance.source,
            "versions": {name: version(name) for name in packages},
        }

    def mended(self, verdict: Verdict, engine: str | None) -> Verdict:
        """The verdict with a mend per engine where the taps are wrong, and the config's own claim.

        Every engine that reads ids from this config is told, unless one is named.
        """
        if not any(finding.wire == "taps" for finding in verdict.findings):
            claim = self._config_claim(verdict)
            if claim is None:
                return verdict
            verdict = replace(verdict, findings=(*verdict.findings, claim))
        names = [engine] if engine else config_engines()
        return replace(verdict, mend=tuple(self._mend(verdict, name) for name in names))

    def _mend(self, verdict: Verdict, engine: str) -> Mend:
        folder, proved = self.checkpoint.folder, bool(verdict.provenance["proved"])
        wanted = Wanted(folder, verdict.wanted, self.family, self.layers, proved)
        return mend(read_config(folder), wanted, parse_engine(engine)).mend

    def _config_claim(self, verdict: Verdict) -> Finding | None:
        """A drafter's own ids are a claim: told where no reading of them is in the tie set."""
        where = self.checkpoint.folder / "config.json"
        nested = self.checkpoint.config.get(NESTED)
        ids = layer_ids(self.checkpoint.config, where)
        if ids is None and isinstance(nested, dict):
            ids = layer_ids(nested, where)
        if ids is None or verdict.verdict in ("quality", "undecided"):
            return None
        readings = (tuple(ids), tuple(i + 1 for i in ids))
        if any(_tied(reading, verdict.tied) for reading in readings):
            return None
        return Finding(
            id="W105",
            title="the drafter's own config names other layers than its weights want",
            wire="taps",
            severity=None,
            served=f"{KEY} {ids}",
            wanted=taps_name(verdict.wanted),
            evidence=(
                f"{KEY} {ids} means {taps_name(readings[0])} (as boundaries) or "
                f"{taps_name(readings[1])} (as layer outputs); neither is in the tie set"
            ),
        )


def _tied(taps: Sequence[Tap], tied: Sequence[Sequence[Tap]]) -> bool:
    return len(taps) == len(tied) and all(a in slot for a, slot in zip(taps, tied, strict=True))


def open_subject(
    draft: Path, states: Path, target: Path | None, device: str, trainer: str | None = None
) -> Subject:
    """Open a drafter's folder and states, and what of the target is needed.

    ``target`` defaults to the folder that the states were captured from; ``trainer`` is who trained
    the drafter, where its folder does not tell.

    Raises:
        InputError: they are missing or do not fit together.
    """
    checkpoint, recorded = open_checkpoint(draft), open_states(states)
    hidden = recorded.provenance.hidden_size
    layout = layout_of(checkpoint)
    width = layout.shape(checkpoint, "fc.weight")[-1]
    if width % hidden:
        raise InputError(
            f"{draft}: fc reads {width} channels, no multiple of the states' hidden size {hidden}; "
            "are the states of another target?"
        )
    folder = target or Path(recorded.provenance.model)
    here = (folder / "config.json").is_file()
    if here:
        check_belongs(folder, recorded)
    family = read_family(folder) if here else recorded.provenance.model_type
    wiring = parse(checkpoint, layout, (0,) * (width // hidden), trainer)
    if "target" in (wiring.embedding, wiring.head) and not here:
        raise InputError(
            f"{folder}: expected the target's folder, whose embedding table or head this drafter "
            "reads, found none; give --target"
        )
    table = embedding_table(folder) if here else None
    head = head_table(folder) if here else None
    empty = torch.empty(0)
    drafter = load_drafter(checkpoint, wiring, empty if table is None else table, head).to(device)
    norm = final_norm(folder).float() if here else None
    parts = read_parts(checkpoint, drafter, table, head, norm)
    rope = _target_rope(folder) if here else None
    return Subject(checkpoint, drafter, recorded, family, parts, rope, folder if here else None)


def _target_rope(folder: Path) -> Rope | None:
    """The target's rotary embedding; None where its config spells one that is not read here."""
    try:
        return read_rope(text_config(folder), folder / "config.json")
    except InputError:
        return None


def check_out(out: Path) -> None:
    """Raise InputError unless ``out`` can be made: nothing there, a folder (or nothing) above."""
    if out.exists() or out.is_symlink():
        raise InputError(f"{out}: exists already and is not overwritten; choose another --out")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir():
        raise InputError(f"{out}: {above} is no folder; choose another --out")


def write_run(out: Path, verdict: Verdict, search: Search, witness: Witness) -> None:
    """Write a run folder: the verdict and both witnesses' tables; made beside, moved into place.

    Raises:
        InputError: it cannot be written.
    """
    beside = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        tables = {
            "verdict": verdict.to_json(),
            "search": search.to_json(),
            "witness": asdict(witness),
        }
        for name, table in tables.items():
            (beside / f"{name}.json").write_text(json.dumps(table, indent=2) + "\n")
        beside.chmod(0o755)
        os.replace(beside, out)
    except OSError as error:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)
        raise InputError(f"{out}: cannot be written: {error.strerror or error}") from None
