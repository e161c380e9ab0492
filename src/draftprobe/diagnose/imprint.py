"""What training leaves of a state in a slot's block of ``fc``: four statistics and their null.

Training moves a block W along the directions of the state it reads, so that its departure from the
isotropic start shows that state's principal directions. Knows matrices, no file and no decision.

    z       = state / its RMS channel by channel, at unit length;  S = mean of z z' = V diag(s) V'
    A       = W' W = U diag(w) U';  M = log(A + floor), less its mean eigenvalue

    align   = H <A, S> / tr A            energy of W along the state, 1 where unrelated
    top16   = <U_16 U_16', S>            share of the state in W's 16 strongest directions
    diaglog = |diag(V' M V)|^2 / |M|^2   share of M that is diagonal in the state's basis
    aniso   = sd of log |W v_i|^2        how unevenly W treats the principal directions

The first two rise early in training and turn round as it converges: a converged map is small where
its input is large. The last two have no sign; they need V, that is at least H tokens. Rescaling W
changes none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

STATISTICS = ("diaglog", "aniso", "align", "top16")
TOP = 16
"""Strongest directions of a block that ``top16`` looks at."""
_DRAWS = 16_384  # columns of random blocks drawn in all, within 24 to 128 blocks
_SMALL, _TINY = 1e-20, 1e-300  # floors of float32 and float64 values


@dataclass(frozen=True, slots=True)
class Block:
    """A block of ``fc`` in the forms that the statistics read.

    Attributes:
        weight: W [rows, H], float32.
        gram: A / tr A [H, H], float64.
        log: M / |M| [H, H], float32.
        top: U_16 [H, 16], float64.
    """

    weight: torch.Tensor
    gram: torch.Tensor
    log: torch.Tensor
    top: torch.Tensor


def block_of(weight: torch.Tensor) -> Block:
    """Prepare W [rows, H], with one eigenproblem.

    The floor is a tenth of the median of the eigenvalues that can differ from zero: without it the
    smallest eigenvalues of a square random block, which say nothing, would rule the logarithm.
    """
    weight = weight.double()
    weight = weight / weight.norm().clamp(min=_TINY)
    gram = weight.T @ weight
    w, u = torch.linalg.eigh(gram)
    floor = 0.1 * w[-min(weight.shape) :].median().clamp(min=_TINY)
    log = (w.clamp(min=0) + floor).log()
    log = log - log.mean()
    log = log / log.norm().clamp(min=_TINY)
    return Block(weight.float(), gram, ((u * log) @ u.T).float(), u[:, -TOP:])


@dataclass(frozen=True, slots=True)
class Directions:
    """A state's second moment S [H, H], float64 of trace 1, and its eigenproblem.

    Attributes:
        moment: S.
        spectrum: s [H], ascending.
        basis: V [H, H], float32; None where the sample does not give S full rank.
    """

    moment: torch.Tensor
    spectrum: torch.Tensor
    basis: torch.Tensor | None


def unit(h: torch.Tensor) -> torch.Tensor:
    """States [N, H], channels divided by their RMS, at unit length: float32."""
    z = h.float()
    z = z / z.square().mean(0).sqrt().clamp(min=_SMALL)
    return z / z.norm(dim=1, keepdim=True).clamp(min=_SMALL)


def directions_of(h: torch.Tensor, with_basis: bool) -> Directions:
    """The directions of states [N, H]; ``with_basis`` says that N suffices for V."""
    z = unit(h)
    moment = (z.T @ z).double() / len(z)
    spectrum, v = torch.linalg.eigh(moment)
    return Directions(moment, spectrum.clamp(min=0), v.float() if with_basis else None)


def imprint(block: Block, state: Directions) -> torch.Tensor:
    """The statistics in STATISTICS' order, float64 [4]; the first two NaN without V."""
    align = len(state.moment) * (block.gram * state.moment).sum()
    top16 = ((state.moment @ block.top) * block.top).sum()
    diaglog = aniso = align * torch.nan
    if (v := state.basis) is not None:
        diaglog = ((block.log @ v) * v).sum(0).double().square().sum()
        aniso = _sd_of_log((block.weight @ v).double().square().sum(0))
    return torch.stack([diaglog, aniso, align, top16])


def _sd_of_log(energy: torch.Tensor) -> torch.Tensor:
    return energy.clamp(min=_TINY).log().std(-1)


@dataclass(frozen=True, slots=True)
class Null:
    """Isotropic Gaussian blocks: in any state's principal directions they look alike.

    Attributes:
        diaglog: of each draw, [draws].
        energy: |W v_i|^2 / |W|^2, [draws, H].
        top: |U_16' v_i|^2, [draws, H].
    """

    diaglog: torch.Tensor
    energy: torch.Tensor
    top: torch.Tensor

    def values(self, state: Directions) -> torch.Tensor:
        """The statistics of the draws against a state, [draws, 4]."""
        align = len(state.spectrum) * self.energy @ state.spectrum
        top16 = self.top @ state.spectrum
        return torch.stack([self.diaglog, _sd_of_log(self.energy), align, top16], dim=-1)


def draws(hidden: int) -> int:
    """How many random blocks are drawn."""
    return min(128, max(24, _DRAWS // hidden))


def draw_null(
    rows: int, hidden: int, generator: torch.Generator, device: torch.device | str = "cpu"
) -> Null:
    """Blocks of the size of a drafter's own, seen in the basis V of any state."""
    blocks = [
        block_of(torch.randn(rows, hidden, generator=generator, dtype=torch.float64).to(device))
        for _ in range(draws(hidden))
    ]
    return Null(
        torch.stack([block.log.diagonal().double().square().sum() for block in blocks]),
        torch.stack([block.gram.diagonal() for block in blocks]),
        torch.stack([block.top.square().sum(1) for block in blocks]),
    )
