"""From the taps that the weights want to the config that makes an engine feed them.

Shows a diff and writes beside the old config, never over it. Knows no engine's rule itself.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftprobe.diagnose.verdict import SCHEMA_VERSION, Mend
from draftprobe.dialects.engines import Engine
from draftprobe.dialects.ids import KEY, NESTED, Spelling
from draftprobe.drafter.checkpoint import read_json
from draftprobe.drafter.json_text import remove_member, set_member
from draftprobe.drafter.wiring import Tap, check_taps, parse_taps, taps_name
from draftprobe.errors import InputError

_MAX_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a mend needs of a verdict.

    Attributes:
        drafter: its folder; taps: what the weights want.
        family, layers: the target's.
        proved: by replay.
    """

    drafter: Path
    taps: tuple[Tap, ...]
    family: str
    layers: int
    proved: bool


@dataclass(frozen=True, slots=True)
class Mended:
    """A mend, and the whole text of the mended config; None where none can say it."""

    mend: Mend
    text: str | None


def mend(text: str, wanted: Wanted, engine: Engine) -> Mended:
    """The change to ``text``, a drafter's ``config.json``, after which ``engine`` feeds the taps.

    Raises:
        InputError: the text is not a JSON object.
    """
    where = wanted.drafter / "config.json"
    config, taps = _parse(text, where), taps_name(wanted.taps)
    spelling = engine.spell(wanted.taps, wanted.family, wanted.layers)
    if not isinstance(spelling, Spelling):
        reason = f"cannot be expressed here: {spelling.reason}"
        return Mended(Mend(engine.name, engine.version, False, "", reason), None)
    safe = wanted.proved and not spelling.patch
    fed = _feeds(config, wanted, engine, where)
    if spelling.level == "option" and not fed:  # no part of the drafter's config
        note = f"{spelling.text}; that feeds {taps}: {spelling.rule}"
        if not wanted.proved:
            note += "; unsafe: the wanted wiring was not proved by replay"
        return Mended(Mend(engine.name, engine.version, safe, "", note), None)
    mended = text if fed else _rewritten(text, spelling)
    if mended == text:
        note = f"nothing to change: {engine} feeds {taps} already"
        return Mended(Mend(engine.name, engine.version, safe, "", note), text)
    note = f"{spelling.level} ids {list(spelling.ids)} feed {taps}: {spelling.rule}"
    if not wanted.proved:
        note += "; unsafe: the wanted wiring was not proved by replay"
    if spelling.patch:
        note += f"; unsafe: {spelling.patch}"
    diff = _diff(text, mended, f"config.{engine.name}.json")
    return Mended(Mend(engine.name, engine.version, safe, diff, note), mended)


def write_beside(folder: Path, text: str, engine: Engine) -> Path:
    """Write ``config.<engine>.json`` into the drafter's folder, whole or not at all.

    Raises:
        InputError: it exists already, or the folder cannot be written to.
    """
    path = folder / f"config.{engine.name}.json"
    part = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=folder, prefix=".config-", delete=False, encoding="utf-8", newline=""
        ) as file:
            part = Path(file.name)
            file.write(text)
        part.chmod((folder / "config.json").stat().st_mode & 0o777)
        os.link(part, path)  # unlike a rename, refuses to replace
    except FileExistsError:
        raise InputError(
            f"{path}: exists already and is not overwritten; move it away first"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
    return path


def read_config(folder: Path) -> str:
    """The text of a drafter's ``config.json``, line ends as they are."""
    path = folder / "config.json"
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text: {error}") from None


def read_wanted(path: Path) -> Wanted:
    """What a mend needs, out of a ``verdict.json`` or the run folder that holds it.

    Raises:
        InputError: not a verdict, or one that says nothing about drafter, target and taps.
    """
    file = path / "verdict.json" if path.is_dir() else path
    data = read_json(file)
    found = data.get("schema_version")
    if type(found) is not int or found != SCHEMA_VERSION:
        raise InputError(
            f"{file}: expected a verdict of schema_version {SCHEMA_VERSION}, found "
            f"{data.get('schema_version')!r}; is it what `draftprobe diagnose --out` wrote?"
        )
    facts = data.get("provenance")
    facts = facts if isinstance(facts, dict) else {}
    layers = _fact(facts, "layers", int, file)
    if not 1 <= layers <= _MAX_LAYERS:
        raise InputError(
            f"{file}: expected 1 to {_MAX_LAYERS} layers in provenance, found {layers}"
        )
    drafter, family = _fact(facts, "drafter", str, file), _fact(facts, "family", str, file)
    taps = _taps(data.get("wanted"), layers, file)
    return Wanted(Path(drafter), taps, family, layers, _fact(facts, "proved", bool, file))


def check_unchanged(path: Path, wanted: Wanted, text: str) -> None:
    """Raise InputError if the drafter's config is not the one that was diagnosed."""
    file = path / "verdict.json" if path.is_dir() else path
    diagnosed = read_json(file).get("provenance", {}).get("config_sha256")
    if diagnosed is not None and diagnosed != hashlib.sha256(text.encode()).hexdigest():
        raise InputError(
            f"{wanted.drafter / 'config.json'}: has changed since {file} was written; "
            "diagnose again"
        )


def _fact(facts: dict[str, Any], key: str, kind: type, file: Path) -> Any:
    value = facts.get(key)
    if type(value) is not kind or value == "" or "\0" in str(value):
        raise InputError(
            f"{file}: expected provenance to hold {key!r} ({kind.__name__}), found {value!r}; "
            "diagnose again with this version"
        )
    return value


def _taps(wanted: Any, layers: int, file: Path) -> tuple[Tap, ...]:
    if not isinstance(wanted, list) or not wanted or len(wanted) > layers + 2:
        raise InputError(f"{file}: expected a list of boundaries under 'wanted', found {wanted!r}")
    if not all(type(tap) is int or tap == "N" for tap in wanted):
        raise InputError(f"{file}: expected integers or N under 'wanted', found {wanted!r}")
    try:
        taps = parse_taps(",".join(map(str, wanted)))
        check_taps(taps, layers)
    except InputError as error:
        raise InputError(f"{file}: wanted {error}") from None
    return taps


def _parse(text: str, where: Path) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: expected JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"{where}: expected a JSON object, found {type(config).__name__}")
    return config


def _feeds(config: dict[str, Any], wanted: Wanted, engine: Engine, where: Path) -> bool:
    """Whether the config as it is makes the engine feed the wanted taps, for certain."""
    try:
        return engine.delivered(config, wanted.family, wanted.layers, where) == wanted.taps
    except InputError:  # the engine would fail on it, or its reading is not certain: to be mended
        return False


def _rewritten(text: str, spelling: Spelling) -> str:
    ids, count = list(spelling.ids), len(spelling.ids)
    if spelling.level == "top":
        text = remove_member(set_member(text, (KEY,), ids), (NESTED, KEY))
        if json.loads(text).get(NESTED) == {}:
            text = remove_member(text, (NESTED,))
    else:
        text = set_member(text, (NESTED, KEY), ids)
    config = json.loads(text)
    nested = config.get(NESTED)
    if isinstance(nested, dict) and nested.get("use_aux_hidden_state", True) is not True:
        text = set_member(text, (NESTED, "use_aux_hidden_state"), True)
    # fc is sized by this key, else by the nested list, else for three
    sized = config.get("num_aux_hidden_states") or (3 if spelling.level == "top" else count)
    return text if sized == count else set_member(text, ("num_aux_hidden_states",), count)


def _diff(old: str, new: str, name: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), "config.json", name
    )
    ended = (
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    return "".join(ended)
