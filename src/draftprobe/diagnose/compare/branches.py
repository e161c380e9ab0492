"""A boundary with noise, or with only a part of what a layer adds: what tells the two apart.

Each takes a View and gives a Found or None. Noise points along no layer's branch, half a layer
does.
"""

from __future__ import annotations

import torch

from draftprobe.diagnose.compare.found import NOISY, STRUCTURE, Found, found_in, name_of
from draftprobe.diagnose.compare.view import Candidate, View
from draftprobe.drafter.wiring import tap_name


def with_noise(view: View) -> Found | None:
    """Nearest to one boundary by far, and what differs points along no layer and not along it."""
    ranked = view.ranked(view.exact, branch=False, still=True)
    candidate, _, error = ranked[0]
    if error > NOISY or len(ranked) < 2 or ranked.errors[1] < 1.5 * error:
        return None
    if not view.surrounded(candidate.tap) or _structure(view, candidate) > STRUCTURE[0]:
        return None
    told = f"is {name_of(candidate)} with an error that neither rounding nor a shift explains"
    return found_in(view, ranked, "imprecise", told)


def _structure(view: View, candidate: Candidate) -> float:
    """Largest median cosine of x - h with a branch that starts or ends there."""
    k = view.candidates.index(candidate)
    dots, sizes = view.products.dots[view.slot, 0, k], view.products.sizes[0, k]
    apart = (view.served - 2 * dots + sizes).clamp(min=1e-30)
    along = [torch.zeros(())]
    taps = view.branches()
    for number, end in enumerate(taps):
        before, after, step = view.layer(number)
        if end == candidate.tap:  # x - h against h - h_before
            along.append(((before - after - step) / (2 * (apart * step).sqrt())).abs().nanmedian())
        elif isinstance(end, int) and end - 1 == candidate.tap:
            along.append(((before + step - after) / (2 * (apart * step).sqrt())).abs().nanmedian())
    return max(float(one) for one in along)


def inside_layer(view: View) -> Found | None:
    """Between two neighbours: the residual stream with only one of the layer's two branches."""
    scores: list[tuple[float, int, float]] = []
    for number in range(len(view.branches())):
        before, after, step = view.layer(number)
        share = ((before + step - after) / (2 * step)).nanmedian()
        round_ = ((before + after) / step).nanmedian()
        error = min(float(one.sqrt().nanmedian()) for one in view.ends(number))
        if 0.1 < float(share) < 0.9 and error < NOISY:
            scores.append((float(round_), number, float(share)))
    scores.sort()
    if scores and _structure(view, Candidate(view.branches()[scores[0][1]])) < STRUCTURE[1]:
        return None
    if not scores or scores[0][0] > 1.5 or (len(scores) > 1 and scores[1][0] < 1.5 * scores[0][0]):
        return None
    _, number, share = scores[0]
    end = view.branches()[number]
    assert isinstance(end, int)
    start = tap_name(end - 1)
    error = view.at(view.exact, Candidate(end), 0)
    told = (
        f"lies between {start} and {tap_name(end)} ({share:.0%} of the way along what the layer "
        f"adds, errors {view.at(view.exact, Candidate(end - 1), 0):.2f} and {error:.2f}): the "
        "residual stream with one branch of the layer and not the other; excluded are both "
        "boundaries and the branch alone; which branch it has, boundaries cannot tell"
    )
    return Found(end, "part_of_layer", error, told)


def part_of_branch(view: View) -> Found | None:
    """One branch of a layer without the residual stream: along what the layer adds, and shorter."""
    columns = [c for c, one in enumerate(view.candidates) if one.branch]
    ranked = sorted(columns, key=lambda c: -float(view.cosine[0, c]))
    if not ranked or float(view.cosine[0, ranked[0]]) < 0.3:
        return None
    best = ranked[0]
    first, second = (float(view.cosine[0, c]) for c in (ranked + ranked)[:2])
    stream = max(float(view.cosine[0, c]) for c in range(len(view.products.taps)))
    if len(ranked) < 2 or first < 1.5 * abs(second) or first < 1.25 * abs(stream):
        return None
    candidate = view.candidates[best]
    told = (
        f"points along {name_of(candidate)} (median cosine {first:.2f}, the next layer's "
        f"{second:.2f}, the nearest boundary's {stream:.2f}): a branch of that layer, attention or "
        "MLP alone, without the residual stream; excluded are every boundary and the layer's whole "
        "branch; which of the two it is, boundaries cannot tell"
    )
    error = view.at(view.exact, candidate, 0)
    return Found(candidate.tap, "part_of_branch", error, told)
