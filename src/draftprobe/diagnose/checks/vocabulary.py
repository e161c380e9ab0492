"""Checks of the draft vocabulary: d2t and t2d against each other, and against a text's tokens.

The convention is EAGLE's: ``target id = i + d2t[i]``. Knows tables, no engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from draftprobe.diagnose.checks.catalogue import finding
from draftprobe.diagnose.checks.subject import Subject
from draftprobe.diagnose.verdict import Finding

if TYPE_CHECKING:
    import numpy as np

LEAST_COVERAGE = 0.9
"""Below this share of a text's tokens, the ceiling of step 1 is a finding (W307)."""

_TELLING = 16
"""From so many entries on, ids without a single pair of neighbours are taken for absolute."""


def check(subject: Subject) -> Iterator[Finding]:
    """W301 to W306, W308 and W317."""
    draft, vocabulary = subject.draft_vocabulary, subject.vocabulary
    for told in subject.odd.values():
        yield finding("W317", f"{told}: expected a vector of integers, one for each token")
    if subject.d2t is None:
        if (
            "d2t" not in subject.odd
            and draft is not None
            and vocabulary is not None
            and draft < vocabulary
        ):
            yield finding(
                "W301",
                f"the head has {draft} rows, the target {vocabulary} tokens, and there is no d2t: "
                "vLLM and SGLang then take draft ids for target ids without a word, so that only "
                f"tokens 0..{draft - 1} can be drafted, under wrong names",
            )
    elif vocabulary is not None:
        yield from _table(subject, subject.d2t, vocabulary)
    if subject.config.get("tie_word_embeddings") is True and "lm_head.weight" in subject.layout:
        yield finding(
            "W308",
            f"tie_word_embeddings is true, and {subject.file_name('lm_head.weight')} "
            f"{list(subject.shape('lm_head.weight') or ())} is there: SGLang makes the embedding "
            "the head then and drops this one without a word",
        )


def target_ids(subject: Subject) -> np.ndarray | None:
    """Target id of each draft id under the offset reading; all of them where D is V; else None."""
    import numpy as np

    if subject.d2t is not None:
        return subject.d2t + np.arange(len(subject.d2t))
    draft = subject.draft_vocabulary
    return np.arange(draft) if draft is not None and draft == subject.vocabulary else None


def _table(subject: Subject, d2t: np.ndarray, vocabulary: int) -> Iterator[Finding]:
    import numpy as np

    name, size = subject.file_name("d2t"), len(d2t)
    head = subject.shape("lm_head.weight")
    if head and head[0] != size:
        yield finding("W315", f"{name} has {size} entries, the head {head[0]} rows")
    if not size:
        return
    ids = d2t + np.arange(size)
    if not d2t.any():
        if size < vocabulary and not _names(subject.t2d, ids):
            yield finding(
                "W302",
                f"{name}: all {size} entries are 0, so draft id i means target id i, with "
                f"{vocabulary} target tokens; a table that was never filled looks like this",
            )
        return
    if _absolute(d2t, ids, subject.t2d, vocabulary):
        yield finding("W303", _told_absolute(name, d2t, ids, vocabulary))
        return
    outside = int(((ids < 0) | (ids >= vocabulary)).sum())
    if outside:
        yield finding(
            "W304",
            f"{name}: {outside} of {size} ids i + d2t[i] lie outside 0..{vocabulary - 1} (they go "
            f"from {int(ids.min())} to {int(ids.max())}): a table of another target or vocabulary",
        )
        return
    yield from _order(name, ids)
    yield from _against_t2d(subject, ids, vocabulary)


def _absolute(d2t: Any, ids: Any, t2d: np.ndarray | None, vocabulary: int) -> bool:
    """Ascending target ids themselves, and a reading as offsets that fails or is disowned."""
    import numpy as np

    rising = bool((np.diff(d2t) > 0).all()) and d2t[0] >= 0 and d2t[-1] < vocabulary
    if not rising or len(d2t) < 2:
        return False
    if t2d is not None and len(t2d) == vocabulary:
        return _names(t2d, d2t) and not _names(t2d, ids)
    return bool(ids[-1] >= vocabulary) or len(d2t) >= _TELLING


def _told_absolute(name: str, d2t: Any, ids: Any, vocabulary: int) -> str:
    size = len(d2t)
    if ids[-1] >= vocabulary:
        why = f"i + d2t[i] would go up to {int(ids[-1])}, beyond {vocabulary - 1}"
    elif (d2t == range(size)).all():
        why = "d2t[i] is i, so that offsets make it draft every second token"
    else:
        why = "as offsets no two ids would be neighbours"
    return f"{name} rises strictly from {int(d2t[0])} to {int(d2t[-1])} over {size} entries: {why}"


def _order(name: str, ids: np.ndarray) -> Iterator[Finding]:
    import numpy as np

    steps = np.diff(ids)
    if (steps > 0).all():
        return
    twice = len(ids) - len(np.unique(ids))
    at = int((steps <= 0).argmax())
    told = f"many to one: {twice} draft ids repeat a target id" if twice else "each id occurs once"
    yield finding(
        "W305",
        f"{name}: draft ids {at} and {at + 1} mean target ids {int(ids[at])} and "
        f"{int(ids[at + 1])}; trainers write ascending ids; {told}",
    )


def _against_t2d(subject: Subject, ids: np.ndarray, vocabulary: int) -> Iterator[Finding]:
    t2d = subject.t2d
    if t2d is None or _names(t2d, ids):
        return
    name = subject.file_name("t2d")
    if len(t2d) != vocabulary:
        yield finding("W306", f"{name} has {len(t2d)} entries, the vocabulary {vocabulary}")
        return
    held = int(t2d[ids].sum())
    yield finding(
        "W306",
        f"{name} marks {int(t2d.sum())} tokens, d2t names {len(ids)}, and {held} of these are "
        "marked: the two are of different runs, or one was never filled",
    )


def _names(t2d: np.ndarray | None, ids: np.ndarray) -> bool:
    """Whether t2d marks these ids and no others."""
    import numpy as np

    return t2d is not None and np.array_equal(np.flatnonzero(t2d), np.unique(ids))


def coverage(subject: Subject, counts: np.ndarray) -> float | None:
    """Share of counted tokens that the draft vocabulary holds; None where d2t says nothing."""
    ids = target_ids(subject)
    if ids is None or not counts.sum():
        return None
    import numpy as np

    ids = np.unique(ids[(ids >= 0) & (ids < len(counts))])
    return float(counts[ids].sum() / counts.sum())


def check_coverage(subject: Subject, counts: np.ndarray) -> Iterator[Finding]:
    """W307."""
    share = coverage(subject, counts)
    if share is not None and share < LEAST_COVERAGE:
        yield finding(
            "W307",
            f"the draft vocabulary of {subject.draft_vocabulary} holds {share:.3f} of "
            f"{int(counts.sum()):,} counted tokens (expected {LEAST_COVERAGE} or more): step 1 "
            "cannot be right more often than that",
        )
