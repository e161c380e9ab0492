"""Explanations that are fitted on rows: a norm's weights, another basis, rows out of place.

Each takes a View and gives a Found or None.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from draftprobe.diagnose.compare.found import (
    LONGEST,
    MANY_ROWS,
    MOST_ROWS,
    NOISY,
    ROWS,
    Found,
    accept,
    clear,
    found_in,
    gains,
    name_of,
    unit,
    when,
)
from draftprobe.diagnose.compare.products import boundary_rows
from draftprobe.diagnose.compare.view import Candidate, Ranked, View


def weighted_norm(view: View) -> Found | None:
    """An RMS norm with a weight per channel: fitted on half the rows, tried on the others."""
    x, chosen = view.rows(MOST_ROWS)
    if len(x) < MANY_ROWS:
        return None
    fits: list[tuple[float, Candidate, torch.Tensor]] = []
    for tap in view.products.taps:
        n = unit(view.boundary(tap, chosen))
        w = (x[::2] * n[::2]).sum(0) / n[::2].square().sum(0).clamp(min=1e-30)
        error = (x[1::2] - w * n[1::2]).norm(dim=-1) / x[1::2].norm(dim=-1)
        fits.append((float(error.nanmedian()), Candidate(tap), w))
    fits.sort(key=lambda fit: fit[0])
    ranked = Ranked(tuple((c, 0) for _, c, _ in fits), tuple(e for e, _, _ in fits))
    if not clear(view, ranked) or not gains(view, *ranked[0]):
        return None
    candidate, weight = fits[0][1], fits[0][2]
    told = f"is {name_of(candidate)} after an RMS norm with a weight per channel"
    final = _final_weight(view, chosen)
    if final is None and candidate.tap == view.reference.provenance.layers:
        return replace(
            found_in(view, ranked, "identity", f"{told}: h[N], which the reference does not hold"),
            boundary="N",
        )
    if final is None:
        told += " (the reference lacks h[L] or h[N]: whether it is the final norm is not known)"
    else:
        alike = float(torch.cosine_similarity(weight, final, dim=0))
        if alike > 0.99:
            return found_in(
                view, ranked, "final_norm", f"is the final norm of {name_of(candidate)}"
            )
        told += f", not the final norm's (cosine of the weights {alike:.2f})"
    return found_in(view, ranked, "other_norm", told)


def _final_weight(view: View, chosen: list[tuple[int, torch.Tensor]]) -> torch.Tensor | None:
    """The final norm's weight [H], read off h[L] and h[N]."""
    last = view.reference.provenance.layers
    if not {last, "N"} <= set(view.products.taps):
        return None
    n, y = unit(view.boundary(last, chosen)), view.boundary("N", chosen)
    return (y * n).sum(0) / n.square().sum(0).clamp(min=1e-30)


def rotated(view: View) -> Found | None:
    """The same lengths and the same angles between tokens, other vectors: an orthogonal change.

    residual^2 = |X|^2 + |H|^2 - 2 |X^T H|_* over rows of length 1 (orthogonal Procrustes); the
    nuclear norm follows from the Gram matrices, as the trace of (A^1/2 B A^1/2)^1/2.
    """
    tried = (_rotated(view, shift) for shift in (0, 1, -1))
    return next((found for found in tried if found is not None), None)


def _rotated(view: View, shift: int) -> Found | None:
    x, chosen = view.rows(MOST_ROWS, shift)
    if len(x) < MANY_ROWS:
        return None
    chosen = [(number, rows - shift) for number, rows in chosen]
    gram, size = _gram(x), x.norm(dim=-1)
    errors: list[tuple[float, Candidate]] = []
    for tap in view.products.taps:
        h = view.boundary(tap, chosen)
        longer = (size / h.norm(dim=-1) - 1).abs().nanmedian()
        apart = _off(gram - _gram(h)).norm() / _off(gram).norm().clamp(min=1e-30)
        errors.append((max(float(longer), float(apart)), Candidate(tap)))
    errors.sort(key=lambda one: one[0])
    ranked = Ranked(tuple((c, shift) for _, c in errors), tuple(e for e, _ in errors))
    if not clear(view, ranked) or len(ranked) < 2:
        return None
    candidate = errors[0][1]
    residual = _procrustes(gram, _gram(view.boundary(candidate.tap, chosen)))
    straight = view.at(view.exact, candidate, shift)
    if straight < NOISY or residual > accept(view, candidate):
        return None  # the vectors nearly agree: noise, not another basis
    told = (
        f"has the lengths and angles of {name_of(candidate)}{when(shift)} among {len(x)} tokens "
        f"(Gram matrices differ by {ranked.errors[0]:.1e}, the next boundary's by "
        f"{ranked.errors[1]:.1e}; {residual:.1e} left after the best orthogonal map), and other "
        f"vectors (they err by {straight:.2f}): a change of basis"
    )
    return found_in(view, ranked, "rotated", told)


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


def any_row(view: View) -> Found | None:
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
    if not clear(view, ranked):
        return None
    told = f"holds rows of {name_of(ranked[0][0])}, not in their places"
    return found_in(view, ranked, "rows", told)
