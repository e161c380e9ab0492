"""Versions of engines, compared as numbers. Knows no engine."""

from __future__ import annotations

import re

from draftprobe.errors import InputError

_FORM = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?(?:\.post([0-9]{1,6}))?")


def version_key(text: str) -> tuple[int, ...]:
    """``0.5.12.post1`` as ``(0, 5, 12, 1)``, for comparing.

    Raises:
        InputError: another form, such as a commit or a release candidate.
    """
    match = _FORM.fullmatch(text)
    if not match:
        raise InputError(
            f"engine version: expected a release such as 0.5.13 or 0.5.12.post1, found {text!r}"
        )
    return tuple(int(part or 0) for part in match.groups())
