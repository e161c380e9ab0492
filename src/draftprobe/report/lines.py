"""A labelled line for a terminal, wrapped; the same for every screen."""

from __future__ import annotations

import textwrap

WIDTH, LABEL = 100, 9


def labelled(label: str, text: str) -> list[str]:
    """The label, then the text in lines of at most WIDTH; words are never cut.

    A label alone where there is no text, and nothing where there is neither.
    """
    lines = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{label:{LABEL - 1}} ",
        subsequent_indent=" " * LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [label] * bool(label)
