"""Which boundary is each slot? Compared token by token with States captured from the target.

    error of token t = |x_t - h_t| / |h_t|, for each recorded boundary h; median and largest over t

Never pooled over tokens, and without the first of each sequence: its state is often hundreds of
times larger than all others. A slot is identified when, over enough tokens, the best boundary's
median lies within what rounding explains and no other comes near; where the reference lacks a
neighbour of the best one, that could not come near, it must err less. Else the slot stays unknown,
with the best two told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftprobe.drafter.wiring import Tap, tap_name
from draftprobe.errors import InputError
from draftprobe.states.dumps.record import GIVEN, GIVEN_IDS, Dump, Sequence, Slot
from draftprobe.states.record import States

if TYPE_CHECKING:
    import torch

ROUNDING = {
    "float64": 2.0**-16, "float32": 2.0**-16, "float16": 2.0**-10, "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-5, "float8_e5m2": 2.0**-4,
}  # fmt: skip
"""Relative error per token by dtype. Below float32 it is one rounding of the stored value; float32
stands for the different order of sums in two programs (1e-7 to 2e-6 between vLLM and transformers,
measured on a 30-layer model)."""
ALLOWANCE = 8
"""Times the rounding: an engine that computes in bfloat16 rounds at every layer (1e-3 to 2e-2
measured), not only when it stores."""
STORAGE = ("float8_e4m3fn", "float8_e5m2")
"""Types that states are stored in and no engine computes in: nothing adds up over the layers."""
STORED_ONLY = 2
"""Times the rounding of those: e4m3 with a scale per token errs by 2e-2 to 5e-2, measured."""
MARGIN = 4
"""The runner-up must err this many times more."""
ALONE = 4
"""The part of the floor that is left where a neighbouring boundary is not in the reference."""
FEWEST = 8
"""Tokens that a name needs, the first of each sequence not counted."""
_COMPARED = "compared with the reference"


@dataclass(frozen=True, slots=True)
class Error:
    """How far a slot is from one boundary: median and largest error over the compared tokens."""

    boundary: Tap
    median: float
    largest: float


@dataclass(frozen=True, slots=True)
class Match:
    """One slot against every recorded boundary.

    Attributes:
        errors: by rising median.
        floor: the noise floor: what rounding explains, or less where a neighbour of the best
            boundary is not in the reference.
        tokens: compared, the first of each sequence left out unless there is no other.
    """

    errors: tuple[Error, ...]
    floor: float
    tokens: int

    @property
    def boundary(self) -> Tap | None:
        """The boundary, or None where none is within the noise and clear of the next."""
        best = self.errors[0]
        near = [e for e in self.errors[1:] if e.median < MARGIN * max(best.median, 2.0**-24)]
        few = self.tokens < FEWEST
        return None if best.median > self.floor or near or few else best.boundary

    def __str__(self) -> str:
        best, *others = self.errors
        told = f"error {best.median:.2g}"
        if others:
            told += f" (next best {tap_name(others[0].boundary)} {others[0].median:.2g})"
        if self.boundary is not None:
            return told
        if self.tokens < FEWEST:
            return f"not known from {self.tokens} tokens, {FEWEST} are needed"
        return (
            f"no boundary matches within {self.floor:.2g}: nearest is {tap_name(best.boundary)}, "
            f"{told}"
        )


def identify(dump: Dump, reference: States, limit: int = 2048) -> tuple[Match, ...]:
    """One Match per slot, over at most ``limit`` tokens that both files hold.

    The reference's dtype counts too: the coarser of the two sets the floor.

    Raises:
        InputError: another hidden size, no common tokens, or states that are NaN or infinite.
    """
    if reference.provenance.hidden_size != dump.hidden:
        raise InputError(
            f"{reference.path}: expected reference states of hidden size {dump.hidden}, found "
            f"{reference.provenance.hidden_size}; capture them from the dump's target"
        )
    errors: list[dict[Tap, list[torch.Tensor]]] = [{} for _ in dump.slots]
    index, tokens = Index(reference), 0
    for one in dump.stream():
        found = index.find(one)
        if found is None:
            continue
        number, rows = found[0], min(found[1], limit - tokens)
        for tap in reference.boundaries:
            h = reference.sequence(number, [tap]).h[tap][:rows].float()
            for slot, collected in zip(one.slots, errors, strict=True):
                collected.setdefault(tap, []).append(relative_error(slot[:rows].float(), h))
        tokens += rows
        if tokens >= limit:
            break
    if not tokens:
        raise InputError(
            f"{reference.path}: expected states of the same tokens as {dump.path}, found none that "
            "begin alike; capture them with --tokens from the dump's own ids"
        )
    floor = _floor(dump.dtype, reference)
    return tuple(_match(collected, floor, reference) for collected in errors)


def _floor(dtype: str, reference: States) -> float:
    """What rounding explains: of what is stored, and of what was computed with."""
    origin = reference.provenance
    names = (dtype, origin.dtype, origin.compute)
    computed = [ROUNDING.get(name, 0.0) for name in names if name not in STORAGE]
    stored = [ROUNDING[name] for name in names if name in STORAGE]
    return max(ALLOWANCE * max(computed, default=0.0), STORED_ONLY * max(stored, default=0.0))


def relative_error(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """|x_t - h_t| / |h_t| per token, float32 [T], of two [T, H]; infinite where h_t is zero."""
    import torch

    distance, size = (x - h).norm(dim=-1), h.norm(dim=-1)
    return torch.where(distance == 0, 0.0, distance / size)


def _match(collected: dict[Tap, list[torch.Tensor]], floor: float, reference: States) -> Match:
    import torch

    errors: list[Error] = []
    tokens = 0
    for tap, parts in collected.items():
        joined = torch.cat([part[1:] for part in parts])
        joined = joined if len(joined) else torch.cat(parts)
        if any(torch.isnan(part).any() for part in parts):
            raise InputError("the dump holds NaN or infinite states: there is nothing to compare")
        ordered = joined.sort().values  # of an even number torch.median would take the lower
        errors.append(Error(tap, float(ordered[len(ordered) // 2]), float(ordered[-1])))
        tokens = len(joined)
    errors.sort(key=lambda error: error.median)
    floor = floor if _has_neighbours(errors[0].boundary, reference) else floor / ALONE
    return Match(tuple(errors), floor, tokens)


def _has_neighbours(tap: Tap, reference: States) -> bool:
    """Whether the boundaries before and behind are recorded, as far as the target has them."""
    if tap == "N":  # normed: no boundary is near it
        return True
    layers = reference.provenance.layers
    beside = [k for k in (tap - 1, tap + 1) if 0 <= k <= layers]
    return all(k in reference.boundaries for k in beside)


class Index:
    """Finds the reference sequence that begins as a dump's sequence does."""

    def __init__(self, reference: States) -> None:
        self._tokens = [part.tolist() for part in reference.tokens.split(list(reference.lengths))]
        self._by_start: dict[tuple[int, ...], list[int]] = {}
        for number, tokens in enumerate(self._tokens):
            self._by_start.setdefault(tuple(tokens[:2]), []).append(number)

    def find(self, one: Sequence) -> tuple[int, int] | None:
        """The sequence with the longest common beginning, and how many rows both have of it."""
        tokens = one.tokens.tolist()
        best: tuple[int, int] | None = None
        for number in self._by_start.get(tuple(tokens[:2]), []):
            other = self._tokens[number]
            same = _common(tokens, other)
            rows = min(same, one.rows, len(other) - 1)
            if best is None or rows > best[1]:
                best = number, rows
        return best


def _common(a: list[int], b: list[int]) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def name_by(dump: Dump, matches: tuple[Match, ...]) -> Dump:
    """The dump with every identified slot named; the comparison outweighs what a format promises.

    Raises:
        InputError: the comparison names another boundary than a person gave for a slot.
    """
    slots = zip(dump.slots, matches, strict=True)
    return dump.named(tuple(_named(dump, slot, match) for slot, match in slots))


def _named(dump: Dump, slot: Slot, match: Match) -> Slot:
    found = match.boundary
    if found is None:
        told = "" if slot.boundary is None else "not confirmed: "
        return replace(slot, how=f"{slot.how}; {told}{match}")
    if slot.boundary not in (None, found):
        if slot.how in (GIVEN, GIVEN_IDS):
            raise InputError(
                f"{dump.path}: expected {slot.name} as {slot.how} says, found {tap_name(found)}: "
                f"{match}; leave {slot.how} out to take what the comparison finds"
            )
        told = f"{_COMPARED}: {match}; NOT {slot.name}, as by {slot.how}"
        return Slot(slot.role, found, told)
    return Slot(slot.role, found, f"{_COMPARED}: {match}")
