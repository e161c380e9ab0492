"""The pages of the findings: one Markdown file for each id, the one source of what it means.

Knows files and their form, no finding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from draftprobe.errors import InputError

SECTIONS = ("Symptom", "Mechanism", "How it is established", "Mend", "Public reports")
"""What every page has, in this order."""

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its id, its title, and each section's text, Markdown as it stands."""

    id: str
    title: str
    sections: dict[str, str]
    text: str


def ids() -> list[str]:
    """Every id that has a page, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("[A-Z][0-9][0-9][0-9].md"))


def read_page(identifier: str) -> Page:
    """The page of an id, whatever its case.

    Raises:
        InputError: no page has that id; the message lists those that have.
    """
    known, wanted = ids(), identifier.upper()
    if wanted not in known:
        raise InputError(f"expected a finding's id of {', '.join(known)}; found {identifier!r}")
    text = (_FOLDER / f"{wanted}.md").read_text(encoding="utf-8")
    head, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    title = head.removeprefix("# ").strip().removeprefix(wanted).lstrip(": ")
    sections = {}
    for part in parts:
        name, _, body = part.partition("\n")
        sections[name.strip()] = body.strip()
    return Page(wanted, title, sections, text)
