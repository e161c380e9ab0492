"""What the layer ids in a config mean: beyond doubt, likely, or not to be told from files.

Rests on where a list stands, on the boundaries that our own conversion notes, and on who trained
the drafter. Knows no engine; the weights are not asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from draftprobe.diagnose.checks.subject import Subject
from draftprobe.diagnose.checks.taps import lists, readings_of
from draftprobe.dialects.ids import KEY, NESTED, default_taps
from draftprobe.dialects.trainers import TapClaim

Taps = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the drafter was trained on, as far as its config says it.

    Attributes:
        taps: where all that the config says agrees on one meaning; else None.
        places: the meaning of each list by itself, None in doubt.
        likely: what the trainer's habit makes of ids that can be read in two ways.
        usual: there are no ids, and ``taps`` is the default of training stacks.
        either: what the ids may mean, where that is in doubt.
        agree: whether the lists can name the same boundaries.
    """

    taps: Taps | None
    places: Mapping[str, Taps | None]
    likely: Taps | None
    usual: bool = False
    either: tuple[Taps, ...] = ()
    agree: bool = True


def meaning_of(subject: Subject, claims: Iterable[TapClaim]) -> Meaning:
    """The meaning of a folder's ids; without ids and with a target, the usual default."""
    found, claims = lists(subject), tuple(claims)
    admitted = {place: readings_of(subject, place, ids) for place, ids in found.items()}
    marks = {claim.meant for claim in claims if claim.level == "mark" and claim.meant is not None}
    sets = [*map(set, admitted.values()), *([marks] if marks else [])]
    if not sets:
        usual = None if subject.target is None else default_taps(subject.target.layers)
        return Meaning(usual, {}, None, usual=True)
    common = set.intersection(*sets)
    if len(common) == 1:
        [taps] = common
        return Meaning(taps, dict.fromkeys(found, taps), None)
    places = {place: taps[0] if len(taps) == 1 else None for place, taps in admitted.items()}
    told = common & {claim.meant for claim in claims if claim.meant is not None}
    likely = next(iter(told)) if len(told) == 1 else None
    either = tuple(dict.fromkeys(taps for all_taps in admitted.values() for taps in all_taps))
    agree = bool(common) or not all(sets)
    return Meaning(None, places, likely, either=either, agree=agree)


def place_of(found: str) -> str:
    """A Reading's ``found`` as :func:`lists` names the place."""
    return {"top": KEY, "nested": f"{NESTED}.{KEY}"}.get(found, found)
