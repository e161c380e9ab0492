"""What a slot holds: tests from the simplest explanation to the least, the first that fits wins.

Each takes a View and gives a Found or None. A test accepts a small error only where the next best
boundary errs clearly more; what nothing explains stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from draftprobe.diagnose.compare.branches import inside_layer, part_of_branch, with_noise
from draftprobe.diagnose.compare.fits import any_row, rotated, weighted_norm
from draftprobe.diagnose.compare.found import (
    ACCEPT,
    BESIDE,
    FAR,
    MANY_ROWS,
    ROWS,
    SMALL,
    Found,
    Rival,
    Treatment,
    accept,
    clear,
    errs,
    found_in,
    gains,
    name_of,
    near,
    when,
)
from draftprobe.diagnose.compare.view import Candidate, View
from draftprobe.drafter.wiring import tap_name


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
        told = f"nearest {name_of(ranked[0][0])} ({errs(ranked.errors[0])}); {told}"
    return Found(None, "few_rows", told=told)


def _as_it_is(view: View) -> Found | None:
    ranked = view.ranked(view.exact, branch=False, still=True)
    candidate, _, error = ranked[0]
    if error > ACCEPT and error > accept(view, candidate):
        return None
    if _better(view, candidate, error):
        return None
    if error > accept(view, candidate):
        told = f"is near {name_of(candidate)} ({errs(error)}), whose neighbours are not recorded"
        return Found(None, "unknown", error, told)
    tied = near(ranked)
    if len(tied) > 1:
        names = ", ".join(map(tap_name, tied))
        return Found(None, "tied", error, f"{names} all lie within the noise", tied=tied)
    return found_in(view, ranked, "identity", f"is {name_of(candidate)} as it is")


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
    if not len(ranked) or not clear(view, ranked):
        return None
    candidate, shift, _ = ranked[0]
    told = f"is {name_of(candidate)}{when(shift)}"
    if branch:
        told += ", what that layer added, without the residual stream"
    return found_in(view, ranked, treatment, told)


def _scaled(view: View) -> Found | None:
    for branch in (False, True):
        for still in (True, False):
            ranked = view.ranked(view.scaled, branch, still)
            if len(ranked) and clear(view, ranked):
                candidate, shift, error = ranked[0]
                if view.at(view.turned, candidate, shift) < error / FAR and error > FAR * SMALL:
                    continue  # the lengths differ beside the factor: a norm
                if not gains(view, candidate, shift, error):
                    continue
                scale = view.at(view.scale, candidate, shift)
                told = f"is {scale:.4g} times {name_of(candidate)}{when(shift)}"
                return found_in(view, ranked, "scaled", told, scale)
    return None


def _normalised(view: View) -> Found | None:
    """The right direction at every token, another length at each."""
    for still in (True, False):
        ranked = view.ranked(view.turned, branch=False, still=still)
        if not clear(view, ranked) or not gains(view, *ranked[0]):
            continue
        candidate, shift, _ = ranked[0]
        length = view.served[view.products.row > 0].sqrt()
        width = view.parts[0].slots.shape[-1]
        spread = float(length.std() / length.mean())
        size = float(length.median()) / width**0.5
        told = f"has the direction of {name_of(candidate)}{when(shift)} at every token, and "
        if spread < ACCEPT:
            told += f"length {size:.3g} times the root of H at every token: an RMS norm"
            return found_in(view, ranked, "normalised", told, size)
        told += "another length at each"
        return found_in(view, ranked, "token_scale", told)
    return None


def _unknown(view: View) -> Found:
    ranked = view.ranked(view.exact, branch=False, still=True)
    candidate, _, error = ranked[0]
    told = f"is no recorded boundary; the nearest, {name_of(candidate)}, errs by {error:.2f}"
    cosine: float | None = None
    if view.count >= MANY_ROWS:
        cosine = float(view.cosine[:, : len(view.products.taps)].abs().nan_to_num().max())
    rival = Rival(candidate.tap, False, 0, error)
    return Found(None, "unknown", error, told, rival=rival, cosine=cosine)


TESTS: tuple[Callable[[View], Found | None], ...] = (
    _empty, _few, _as_it_is, _moved, _branch, _scaled, _normalised, weighted_norm, rotated,
    any_row, with_noise, inside_layer, part_of_branch,
)  # fmt: skip
