"""Text from strangers' files made safe to print: no control characters, no half characters."""

from __future__ import annotations

import unicodedata


def clean(text: str) -> str:
    """The text with what could move a cursor, or cannot be encoded, written as an escape.

    Line ends and tabs stay. Names in a checkpoint may hold anything.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _harmless(char) else _escaped(char) for char in text)


def _harmless(char: str) -> bool:
    return char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
