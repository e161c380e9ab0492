"""Changes single members of a JSON object in its text, so that every other byte stays as it was.

Takes text that is already known to be valid JSON; knows no config key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Member:
    """Where ``"key": value`` lies in the text."""

    key: str
    start: int
    value: int
    end: int


def set_member(text: str, path: tuple[str, ...], value: Any) -> str:
    """The text with the member at ``path`` set; objects on the way are made where absent."""
    return _set(text, 0, path, value)


def remove_member(text: str, path: tuple[str, ...]) -> str:
    """The text without the member at ``path``; unchanged if there is none."""
    start = _object(text, 0)
    for key in path[:-1]:
        member = _find(text, start, key)
        if member is None or text[member.value] != "{":
            return text
        start = member.value
    while member := _find(text, start, path[-1]):  # a key may stand twice; the last one counts
        text = _cut(text, start, member)
    return text


def _set(text: str, start: int, path: tuple[str, ...], value: Any) -> str:
    start, key = _object(text, start), path[0]
    member = _find(text, start, key)
    if len(path) > 1 and member and text[member.value] == "{":
        return _set(text, member.value, path[1:], value)
    for outer in reversed(path[1:]):
        value = {outer: value}
    if member is None:
        return _append(text, start, key, value)
    old = text[member.value : member.end]
    step = "" if old.startswith("[") and "\n" not in old else _step(text)
    shown = _render(value, step, _margin(text, member.start))
    return text[: member.value] + shown + text[member.end :]


def _append(text: str, start: int, key: str, value: Any) -> str:
    members, step, margin = list(_members(text, start)), _step(text), _margin(text, start)
    if not members:
        end, gap, tail = start + 1, "", ""
        if step:
            gap, tail = f"\n{margin}{step}", f"\n{margin}"
        shown = _render(value, step, margin + step)
        return f"{text[:end]}{gap}{json.dumps(key)}: {shown}{tail}{text[_skip(text, end) :]}"
    last = members[-1]
    gap = text[: last.start][len(text[: last.start].rstrip(" \t\r\n")) :]  # as before the last one
    shown = _render(value, step if "\n" in gap else "", _margin(text, last.start))
    return f"{text[: last.end]},{gap or ' '}{json.dumps(key)}: {shown}{text[last.end :]}"


def _cut(text: str, start: int, member: _Member) -> str:
    after = _SPACE.match(text, member.end)
    assert after is not None
    if text[after.end()] == ",":
        following = _SPACE.match(text, after.end() + 1)
        assert following is not None
        return text[: member.start] + text[following.end() :]
    before = text[: member.start].rstrip(" \t\r\n")
    if before.endswith(","):
        return before[:-1] + text[member.end :]
    return before + text[after.end() :]


def _members(text: str, start: int) -> Iterator[_Member]:
    position = _skip(text, start + 1)
    while text[position] != "}":
        key, end = _DECODER.raw_decode(text, position)
        value = _skip(text, _skip(text, end) + 1)  # over the colon
        _, stop = _DECODER.raw_decode(text, value)
        yield _Member(key, position, value, stop)
        position = _skip(text, stop)
        if text[position] == ",":
            position = _skip(text, position + 1)


def _find(text: str, start: int, key: str) -> _Member | None:
    found = [member for member in _members(text, start) if member.key == key]
    return found[-1] if found else None


def _object(text: str, start: int) -> int:
    return text.index("{", start)


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


def _step(text: str) -> str:
    """One level of indentation: what stands before the first member; empty on a single line."""
    match = re.match(r"\s*\{[ \t\r]*\n([ \t]*)", text)
    return match.group(1) if match else ""


def _margin(text: str, position: int) -> str:
    """The indentation of the line that ``position`` lies on."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _render(value: Any, step: str, margin: str) -> str:
    if not step:
        return json.dumps(value)
    return json.dumps(value, indent=step).replace("\n", "\n" + margin)
