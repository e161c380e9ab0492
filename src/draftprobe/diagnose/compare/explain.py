"""What a slot holds: tests from the simplest explanation to the least, the first that fits wins.

Each takes a View and gives a Found or None. A test accepts a small error only where the next best
boundary errs clearly more; what nothing explains stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from draftprobe.diagnose.compare.products import boundary_rows
from draftprobe.diagnose.compare.view import Candidate, Ranked, View
from draftprobe.drafter.wiring import Tap, tap_name

Treatment = Literal[
    "identity", "scaled", "normalised", "token_scale", "final_norm", "other_norm", "branch",
    "part_of_branch", "part_of_layer", "rotated", "rows", "imprecise", "zero", "constant",
    "not_finite", "tied", "few_rows", "unknown",
]  # fmt: skip
"""What was done to a boundary, or why none is named."""

ACCEPT = 2.0**-4
"""A median error up to here is rounding, somewhere: bfloat16 at 30 layers errs by 0.02, and two
neighbour layers of a trained model lie 0.2 and more apart (both measured)."""
MARGIN = 2.0
"""The next best must err this many times more: it is the other one's noise plus a layer's step."""
FAR, BESIDE = 4.0, 0.02
"""Another explanation must leave FAR times less to be preferred; a factor counts from there on."""
SMALL = 1e-7
NOISY = 0.5
"""Above this error nothing is called a boundary with noise, and vectors are others."""
STRUCTURE = (0.2, 0.3)
"""Noise points no further along a layer's branch than the first median cosine (a target in 4 bits:
0.19 at most, measured), a branch of the layer further than the second."""
ROWS = 8
"""Fewer rows, first ones not counted, decide nothing."""
LONGEST = 512
"""Rows that one sequence gives to the sample."""
MANY_ROWS, MOST_ROWS = 24, 256
"""What a fit of weights or a comparison of Gram matrices needs, and takes."""


@dataclass(frozen=True, slots=True)
class Rival:
    """The explanation that came second among those of the same kind."""

    boundary: Tap
    branch: bool
    shift: int
    median: float


@dataclass(frozen=True, slots=True)
class Found:
    """What a slot holds.

    Attributes:
        boundary: which one, or None.
        treatment: what was done to it.
        shift: rows by which the states come late; early where negative.
        scale: the constant factor, where there is one.
        median: error of this explanation per token.
        rival: the next best.
        tied: boundaries that cannot be told apart.
        cosine: of an unknown slot, the largest median cosine with any boundary, its sign left out;
            None where the rows are too few to say.
        told: the evidence, in words.
    """

    boundary: Tap | None
    treatment: Treatment
    median: float | None = None
    told: str = ""
    shift: int = 0
    scale: float | None = None
    rival: Rival | None = None
    tied: tuple[Tap, ...] = ()
    cosine: float | None = None


def find(view: View) -> Found:
    """The first explanation that fits."""
    for test in TESTS:
        found = test(view)
        if found is not None:
            return found
    return _unknown(view)


def _empty(view: View) -> Found | None:
    """No finite row, all rows zero, or all rows one and the same."""
    if int(torch.isfinite(view.served).sum()) == 0:
        return Found(None, "not_finite", told="no row is finite")
    if float(view.served.nan_to_num().max()) == 0:
        return Found(None, "zero", told=f"all {len(view.served):,} compared rows are zero")
    first, alike, count = view.parts[0].slots[view.slot, -1].float(), True, 0
    for part in view.parts:
        rows = part.slots[view.slot].float()
        alike = alike and bool((rows - first).abs().max() <= 1e-6 * first.abs().max())
        count += len(rows)
    if alike and count >= ROWS:
        return Found(None, "constant", told=f"all {count:,} compared rows are the same")
    return None


def _few(view: View) -> Found | None:
    count = view.count
    if count >= ROWS:
        return None
    ranked = view.ranked(view.exact, branch=False, still=True)
    told = f"{count} rows beside first ones; {ROWS} or more decide"
    if count and ranked.errors[0] <= ACCEPT:
        told = f"nearest {_name(ranked[0][0])} ({_error(ranked.errors[0])}); {told}"
    return Found(None, "few_rows", told=told)


def _as_it_is(view: View) -> Found | None:
    ranked = view.ranked(view.exact, branch=False, still=True)
    candidate, _, error = ranked[0]
    if error > ACCEPT and error > _accept(view, candidate):
        return None
    if _better(view, candidate, error):
        return None
    if error > _accept(view, candidate):
        told = f"is near {_name(candidate)} ({_error(error)}), whose neighbours are not recorded"
        return Found(None, "unknown", error, told)
    tied = _near(ranked)
    if len(tied) > 1:
        names = ", ".join(map(tap_name, tied))
        return Found(None, "tied", error, f"{names} all lie within the noise", tied=tied)
    return _found(view, ranked, "identity", f"is {_name(candidate)} as it is")


def _better(view: View, candidate: Candidate, error: float) -> bool:
    """A branch, or a factor beside 1, leaves far less: a first layer's branch is nearly h[1]."""
    branches = view.ranked(view.exact, branch=True, still=True)
    left = view.at(view.scaled, candidate, 0)
    off = abs(view.at(view.scale, candidate, 0) - 1)
    scaled = off > BESIDE and left < error / FAR
    return scaled or (len(branches) > 0 and branches.errors[0] < error / FAR and error > SMALL)


def _moved(view: View) -> Found | None:
    return _exactly(view, branch=False, still=False, treatment="identity")


def _branch(view: View) -> Found | None:
    for still in (True, False):
        found = _exactly(view, branch=True, still=still, treatment="branch")
        if found is not None:
            return found
    return None


def _exactly(view: View, branch: bool, still: bool, treatment: Treatment) -> Found | None:
    """A candidate with nothing done to it but a shift; ties are no answer."""
    ranked = view.ranked(view.exact, branch, still)
    if not len(ranked) or not _clear(view, ranked):
        return None
    candidate, shift, _ = ranked[0]
    told = f"is {_name(candidate)}{_when(shift)}"
    if branch:
        told += ", what that layer added, without the residual stream"
    return _found(view, ranked, treatment, told)


def _scaled(view: View) -> Found | None:
    for branch in (False, True):
        for still in (True, False):
            ranked = view.ranked(view.scaled, branch, still)
            if len(ranked) and _clear(view, ranked):
                candidate, shift, error = ranked[0]
                if view.at(view.turned, candidate, shift) < error / FAR and error > FAR * SMALL:
                    continue  # the lengths differ beside the factor: a norm
                if not _gains(view, candidate, shift, error):
                    continue
                scale = view.at(view.scale, candidate, shift)
                told = f"is {scale:.4g} times {_name(candidate)}{_when(shift)}"
                return _found(view, ranked, "scaled", told, scale)
    return None


def _normalised(view: View) -> Found | None:
    """The right direction at every token, another length at each."""
    for still in (True, False):
        ranked = view.ranked(view.turned, branch=False, still=still)
        if not _clear(view, ranked) or not _gains(view, *ranked[0]):
            continue
        candidate, shift, _ = ranked[0]
        length = view.served[view.products.row > 0].sqrt()
        width = view.parts[0].slots.shape[-1]
        spread = float(length.std() / length.mean())
        size = float(length.median()) / width**0.5
        told = f"has the direction of {_name(candidate)}{_when(shift)} at every token, and "
        if spread < ACCEPT:
            told += f"length {size:.3g} times the root of H at every token: an RMS norm"
            return _found(view, ranked, "normalised", told, size)
        told += "another length at each"
        return _found(view, ranked, "token_scale", told)
    return None


def _weighted_norm(view: View) -> Found | None:
    """An RMS norm with a weight per channel: fitted on half the rows, tried on the others."""
    x, chosen = view.rows(MOST_ROWS)
    if len(x) < MANY_ROWS:
        return None
    fits: list[tuple[float, Candidate, torch.Tensor]] = []
    for tap in view.products.taps:
        n = _unit(view.boundary(tap, chosen))
        w = (x[::2] * n[::2]).sum(0) / n[::2].square().sum(0).clamp(min=1e-30)
        error = (x[1::2] - w * n[1::2]).norm(dim=-1) / x[1::2].norm(dim=-1)
        fits.append((float(error.nanmedian()), Candidate(tap), w))
    fits.sort(key=lambda fit: fit[0])
    ranked = Ranked(tuple((c, 0) for _, c, _ in fits), tuple(e for e, _, _ in fits))
    if not _clear(view, ranked) or not _gains(view, *ranked[0]):
        return None
    candidate, weight = fits[0][1], fits[0][2]
    told = f"is {_name(candidate)} after an RMS norm with a weight per channel"
    final = _final_weight(view, chosen)
    if final is None and candidate.tap == view.reference.provenance.layers:
        return replace(
            _found(view, ranked, "identity", f"{told}: h[N], which the reference does not hold"),
            boundary="N",
        )
    if final is None:
        told += " (the reference lacks h[L] or h[N]: whether it is the final norm is not known)"
    else:
        alike = float(torch.cosine_similarity(weight, final, dim=0))
        if alike > 0.99:
            return _found(view, ranked, "final_norm", f"is the final norm of {_name(candidate)}")
        told += f", not the final norm's (cosine of the weights {alike:.2f})"
    return _found(view, ranked, "other_norm", told)


def _final_weight(view: View, chosen: list[tuple[int, torch.Tensor]]) -> torch.Tensor | None:
    """The final norm's weight [H], read off h[L] and h[N]."""
    last = view.reference.provenance.layers
    if not {last, "N"} <= set(view.products.taps):
        return None
    n, y = _unit(view.boundary(last, chosen)), view.boundary("N", chosen)
    return (y * n).sum(0) / n.square().sum(0).clamp(min=1e-30)


def _rotated(view: View) -> Found | None:
    """The same lengths and the same angles between tokens, other vectors: an orthogonal change.

    residual^2 = |X|^2 + |H|^2 - 2 |X^T H|_* over rows of length 1 (orthogonal Procrustes); the
    nuclear norm follows from the Gram matrices, as the trace of (A^1/2 B A^1/2)^1/2.
    """
    x, chosen = view.rows(MOST_ROWS)
    if len(x) < MANY_ROWS:
        return None
    gram, size = _gram(x), x.norm(dim=-1)
    errors: list[tuple[float, Candidate]] = []
    for tap in view.products.taps:
        h = view.boundary(tap, chosen)
        longer = (size / h.norm(dim=-1) - 1).abs().nanmedian()
        apart = _off(gram - _gram(h)).norm() / _off(gram).norm().clamp(min=1e-30)
        errors.append((max(float(longer), float(apart)), Candidate(tap)))
    errors.sort(key=lambda one: one[0])
    ranked = Ranked(tuple((c, 0) for _, c in errors), tuple(e for e, _ in errors))
    if not _clear(view, ranked) or len(ranked) < 2:
        return None
    candidate = errors[0][1]
    residual = _procrustes(gram, _gram(view.boundary(candidate.tap, chosen)))
    straight = view.at(view.exact, candidate, 0)
    if straight < NOISY or residual > _accept(view, candidate):
        return None  # the vectors nearly agree: noise, not another basis
    told = (
        f"has the lengths and angles of {_name(candidate)} among {len(x)} tokens (Gram matrices "
        f"differ by {ranked.errors[0]:.1e}, the next boundary's by {ranked.errors[1]:.1e}; "
        f"{residual:.1e} left after the best orthogonal map), and other vectors (they err by "
        f"{straight:.2f}): a change of basis"
    )
    return _found(view, ranked, "rotated", told)


def _gram(x: torch.Tensor) -> torch.Tensor:
    unit = torch.nn.functional.normalize(x.double(), dim=-1)
    return unit @ unit.T


def _off(gram: torch.Tensor) -> torch.Tensor:
    return gram - torch.diag(gram.diag())


def _procrustes(a: torch.Tensor, b: torch.Tensor) -> float:
    """What the best orthogonal map leaves, as a share, from two Gram matrices [R, R]."""
    values, vectors = torch.linalg.eigh(a)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    nuclear = torch.linalg.eigvalsh(root @ b @ root).clamp(min=0).sqrt().sum()
    squared = (a.trace() + b.trace() - 2 * nuclear) / b.trace()
    return float(squared.clamp(min=0).sqrt())


def _any_row(view: View) -> Found | None:
    """Each row is some row of the boundary, of this sequence or another one."""
    x = view.rows(MOST_ROWS)[0].double()
    if len(x) < 2 * ROWS:
        return None
    errors: list[tuple[float, Candidate]] = []
    for tap in view.products.taps:
        h = torch.cat(
            [boundary_rows(view.reference, p.reference, tap, LONGEST)[1:] for p in view.parts]
        ).double()
        nearest = torch.cdist(x, h) / h.norm(dim=-1).clamp(min=1e-30)
        errors.append((float(nearest.min(dim=-1).values.nanmedian()), Candidate(tap)))
    errors.sort(key=lambda one: one[0])
    ranked = Ranked(tuple((c, 0) for _, c in errors), tuple(e for e, _ in errors))
    if not _clear(view, ranked):
        return None
    told = f"holds rows of {_name(ranked[0][0])}, not in their places"
    return _found(view, ranked, "rows", told)


def _with_noise(view: View) -> Found | None:
    """Nearest to one boundary by far, and what differs points along no layer and not along it."""
    ranked = view.ranked(view.exact, branch=False, still=True)
    candidate, _, error = ranked[0]
    if error > NOISY or len(ranked) < 2 or ranked.errors[1] < 1.5 * error:
        return None
    if not view.surrounded(candidate.tap) or _structure(view, candidate) > STRUCTURE[0]:
        return None
    told = f"is {_name(candidate)} with an error that neither rounding nor a shift explains"
    return _found(view, ranked, "imprecise", told)


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


def _inside_layer(view: View) -> Found | None:
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


def _part_of_branch(view: View) -> Found | None:
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
        f"points along {_name(candidate)} (median cosine {first:.2f}, the next layer's "
        f"{second:.2f}, the nearest boundary's {stream:.2f}): a branch of that layer, attention or "
        "MLP alone, without the residual stream; excluded are every boundary and the layer's whole "
        "branch; which of the two it is, boundaries cannot tell"
    )
    error = view.at(view.exact, candidate, 0)
    return Found(candidate.tap, "part_of_branch", error, told)


def _unknown(view: View) -> Found:
    ranked = view.ranked(view.exact, branch=False, still=True)
    candidate, _, error = ranked[0]
    told = f"is no recorded boundary; the nearest, {_name(candidate)}, errs by {error:.2f}"
    cosine: float | None = None
    if view.count >= MANY_ROWS:
        cosine = float(view.cosine[:, : len(view.products.taps)].abs().nan_to_num().max())
    rival = Rival(candidate.tap, False, 0, error)
    return Found(None, "unknown", error, told, rival=rival, cosine=cosine)


TESTS: tuple[Callable[[View], Found | None], ...] = (
    _empty, _few, _as_it_is, _moved, _branch, _scaled, _normalised, _weighted_norm, _rotated,
    _any_row, _with_noise, _inside_layer, _part_of_branch,
)  # fmt: skip


def _accept(view: View, candidate: Candidate) -> float:
    """Up to where an error is noise; the floor alone where a neighbour is not there to exclude."""
    floor = view.floors.of(candidate.tap)
    return max(ACCEPT, floor) if view.surrounded(candidate.tap) else floor


def _clear(view: View, ranked: Ranked) -> bool:
    """Within the noise, and nothing else near."""
    return ranked.errors[0] <= _accept(view, ranked[0][0]) and len(_near(ranked)) == 1


def _gains(view: View, candidate: Candidate, shift: int, error: float) -> bool:
    """It leaves far less than the candidate with nothing done to it."""
    return view.at(view.exact, candidate, shift) > FAR * error


def _near(ranked: Ranked) -> tuple[Tap, ...]:
    """The best one's boundary and all that err less than MARGIN times as much."""
    limit = MARGIN * max(ranked.errors[0], SMALL)
    pairs = zip(ranked.places, ranked.errors, strict=True)
    return tuple(place[0].tap for n, (place, error) in enumerate(pairs) if n == 0 or error < limit)


def _found(
    view: View, ranked: Ranked, treatment: Treatment, told: str, scale: float | None = None
) -> Found:
    candidate, shift, error = ranked[0]
    rival = None
    if len(ranked) > 1:
        other, moved, errs = ranked[1]
        rival = Rival(other.tap, other.branch, moved, errs)
    return Found(candidate.tap, treatment, error, told, shift, scale, rival)


def _unit(h: torch.Tensor) -> torch.Tensor:
    """A row divided by its root mean square."""
    return h / h.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-30)


def _name(candidate: Candidate) -> str:
    if candidate.branch and isinstance(candidate.tap, int):
        return f"{tap_name(candidate.tap)} - {tap_name(candidate.tap - 1)}"
    return tap_name(candidate.tap)


def _when(shift: int) -> str:
    if not shift:
        return ""
    rows = "row" if abs(shift) == 1 else "rows"
    return f", {abs(shift)} {rows} {'late' if shift > 0 else 'early'}"


def _error(error: float) -> str:
    return f"errs by {error:.1e}"
