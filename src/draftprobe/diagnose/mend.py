"""From the taps that the weights want to the config that makes an engine feed them.

Shows a diff and writes beside the old config, never over it. Knows no engine's rule itself.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftprobe.diagnose.verdict import SCHEMA_VERSION, Mend
from draftprobe.dialects.engines import Engine, config_engines, parse_engine
from draftprobe.dialects.ids import KEY, NESTED, Spelling, nested_of
from draftprobe.dialects.reading import Unknown
from draftprobe.dialects.recognise import MARK
from draftprobe.drafter.checkpoint import read_json
from draftprobe.drafter.json_text import remove_member, set_member
from draftprobe.drafter.wiring import Tap, check_taps, parse_taps, taps_name
from draftprobe.errors import InputError

_MAX_LAYERS = 10_000

CANNOT = "cannot be expressed here"
"""How a mend's note begins where an engine has no way to feed the wanted taps."""
NOT_KNOWN = "not known here"
"""How it begins where the engine's rule is not known, and there may be a way."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a mend needs of a verdict.

    Attributes:
        drafter: its folder; taps: what the weights want.
        family, layers: the target's.
        proved: by replay.
        doubt: why it is not proved, where that is known better than that.
    """

    drafter: Path
    taps: tuple[Tap, ...]
    family: str
    layers: int
    proved: bool
    doubt: str = "the wanted wiring was not proved by replay"


@dataclass(frozen=True, slots=True)
class Mended:
    """A mend, and the whole text of the mended config; None where none can say it."""

    mend: Mend
    text: str | None


def mend(text: str, wanted: Wanted, engine: Engine, old: str | None = None) -> Mended:
    """The change to ``text``, a drafter's ``config.json``, after which ``engine`` feeds the taps.

    A list of ids that another engine reads is kept, and set to say the same where it can: one
    config for both.

    Args:
        text: the config to start from.
        wanted: the taps, and for which target.
        engine: whose reading.
        old: what the diff starts from, where ``text`` is changed already.

    Raises:
        InputError: the text is not a JSON object.
    """
    where, old = wanted.drafter / "config.json", text if old is None else old
    config, taps = _parse(text, where), taps_name(wanted.taps)
    spelling = engine.spell(wanted.taps, wanted.family, wanted.layers)
    if not isinstance(spelling, Spelling):
        known = not isinstance(spelling.reason, Unknown)
        reason = f"{CANNOT if known else NOT_KNOWN}: {spelling.reason}"
        return Mended(Mend(engine.name, engine.version, False, "", reason), None)
    safe = wanted.proved and not spelling.patch
    fed = feeds(config, wanted, engine)
    if spelling.level == "option" and not fed:  # no part of the drafter's config
        note = f"{spelling.text}; that feeds {taps}: {spelling.rule}"
        if not wanted.proved:
            note += f"; unsafe: {wanted.doubt}"
        return Mended(Mend(engine.name, engine.version, safe, "", note), None)
    mended = text if fed else _rewritten(text, wanted, engine, spelling)
    if mended == old:
        note = f"nothing to change: {engine} feeds {taps} already"
        return Mended(Mend(engine.name, engine.version, safe, "", note), text)
    note = f"{spelling.level} ids {list(spelling.ids)} feed {taps}: {spelling.rule}"
    if fed:
        note = f"{engine} then feeds {taps}"
    if not fed and list(spelling.ids) != sorted(spelling.ids):
        note += "; out of order on purpose, as a first id of 1 is read otherwise there"
    if not wanted.proved:
        note += f"; unsafe: {wanted.doubt}"
    if spelling.patch:
        note += f"; unsafe: {spelling.patch}"
    diff = diff_of(old, mended, f"config.{engine.name}.json")
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
    if path.is_dir() and not file.exists() and (path / "config.json").exists():
        raise InputError(
            f"{path}: expected the folder that `draftprobe diagnose --out` wrote, found a "
            "drafter's; "
            f"from files alone: draftprobe inspect {path} --target T --engine E --wanted 0,3,16"
        )
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
    proved = _fact(facts, "proved", bool, file)
    wanted = Wanted(Path(drafter), taps, family, layers, proved)
    if data.get("served") == data.get("wanted"):
        doubt = "no gain was measured, as served and wanted are the same"
        return replace(wanted, doubt=doubt)
    return wanted


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


def feeds(config: dict[str, Any], wanted: Wanted, engine: Engine) -> bool:
    """Whether a config makes the engine feed the wanted taps, for certain."""
    try:
        found = engine.delivered(config, wanted.family, wanted.layers, wanted.drafter)
    except InputError:  # the engine would fail on it, or its reading is not certain: to be mended
        return False
    return found == wanted.taps


def _rewritten(text: str, wanted: Wanted, engine: Engine, spelling: Spelling) -> str:
    text = _written(text, spelling)
    for other in config_engines():
        if other != engine.name:
            theirs = parse_engine(other).spell(wanted.taps, wanted.family, wanted.layers)
            if isinstance(theirs, Spelling) and _lists(text).get(theirs.level):
                text = _written(text, theirs)
    config, count = json.loads(text), len(spelling.ids)
    nested = config.get(NESTED)
    if isinstance(nested, dict) and nested.get("use_aux_hidden_state", True) is not True:
        text = set_member(text, (NESTED, "use_aux_hidden_state"), True)
    mark = config.get(MARK)
    if isinstance(mark, dict) and mark.get(KEY) not in (None, list(wanted.taps)):
        text = remove_member(text, (MARK, KEY))  # no longer what the ids mean
    # fc is sized by this key, else by the nested list, else for three
    listed = _lists(text).get("nested")
    sized = config.get("num_aux_hidden_states") or (len(listed) if listed else 3)
    return text if sized == count else set_member(text, ("num_aux_hidden_states",), count)


def _written(text: str, spelling: Spelling) -> str:
    path = (KEY,) if spelling.level == "top" else (NESTED, KEY)
    return set_member(text, path, list(spelling.ids))


def _lists(text: str) -> dict[str, list[Any]]:
    """The lists of ids that a config holds, by level."""
    config = json.loads(text)
    found = {"top": config.get(KEY), "nested": nested_of(config).get(KEY)}
    return {level: ids for level, ids in found.items() if isinstance(ids, list)}


def diff_of(old: str, new: str, name: str) -> str:
    """A unified diff of ``config.json`` that ``patch`` can apply."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), "config.json", name
    )
    ended = (
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    return "".join(ended)
