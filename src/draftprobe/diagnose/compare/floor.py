"""The noise floor: how far a healthy dump may lie from a reference of another precision.

By dtype, or measured between two captures of the same tokens. Knows no boundary's meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from draftprobe.drafter.wiring import Tap, tap_name
from draftprobe.errors import InputError
from draftprobe.states.dumps.identify import ALLOWANCE, ROUNDING, relative_error
from draftprobe.states.record import States

FP8 = {2: "float8_e5m2", 3: "float8_e4m3fn"}
"""Storage by bits of its mantissa."""
MEASURED = 3
"""Times the measured median error: another engine sums in another order than transformers."""


@dataclass(frozen=True, slots=True)
class Floors:
    """Floors by boundary.

    Attributes:
        general: relative error per token that the dtypes explain.
        measured: by boundary, where two captures were compared.
        source: where the floor comes from, in words.
    """

    general: float
    source: str
    measured: dict[Tap, float] = field(default_factory=dict)

    def of(self, tap: Tap | None) -> float:
        """The floor of a boundary."""
        return self.measured.get(tap, self.general) if tap is not None else self.general


def by_dtype(names: Iterable[str]) -> Floors:
    """The floor that the coarsest of several dtypes sets; ``identify`` says what it rests on.

    FP8 is storage only: nothing computes in it, so its rounding comes once and not per layer.
    """
    floors = {
        name: ROUNDING[name] * (2 if name.startswith("float8") else ALLOWANCE)
        for name in names
        if name in ROUNDING
    }
    coarsest = max(floors, key=lambda name: floors[name])
    return Floors(floors[coarsest], coarsest)


def measured(reference: States, twin: States, general: Floors) -> Floors:
    """Floors measured between two captures of the same tokens, in two dtypes.

    Raises:
        InputError: other tokens, another target's sizes, or no row beside first ones.
    """
    if twin.lengths != reference.lengths or not torch.equal(twin.tokens, reference.tokens):
        raise InputError(
            f"{twin.path}: expected the same token sequences as {reference.path}, found others; "
            "capture both from one file with --tokens"
        )
    if twin.provenance.hidden_size != reference.provenance.hidden_size:
        raise InputError(
            f"{twin.path}: expected states of {reference.provenance.hidden_size} numbers, found "
            f"{twin.provenance.hidden_size}"
        )
    floors: dict[Tap, float] = {}
    for tap in reference.boundaries:
        if tap not in twin.boundaries:
            continue
        errors = [
            relative_error(other.h[tap][1:].float(), one.h[tap][1:].float())
            for one, other in zip(reference.sequences([tap]), twin.sequences([tap]), strict=True)
        ]
        median = float(torch.cat(errors).nanmedian())
        if median != median:
            raise InputError(
                f"{twin.path}: expected sequences of 3 tokens or more for {tap_name(tap)}"
            )
        floors[tap] = max(MEASURED * median, ALLOWANCE * ROUNDING["float32"])
    source = f"measured against {twin.path} ({twin.provenance.compute})"
    return Floors(general.general, source, floors)


def stored(states: torch.Tensor, dtype: str) -> str:
    """The coarsest dtype that holds all these values, [T, H], which may lie in a wider one.

    A JSON response and a rescaled FP8 file are float32 outside. FP8 times a scale per row is told
    by its mantissas: 8 of them (e4m3) or 4 (e5m2) in a row, whatever the scale.
    """
    rows = states[torch.isfinite(states).all(dim=-1) & (states != 0).any(dim=-1)].float()
    if not len(rows):
        return dtype
    counts = [len(torch.frexp(row[row != 0].abs()).mantissa.unique()) for row in rows[:64]]
    filled = [int((row != 0).sum()) for row in rows[:64]]
    if min(filled) >= 24:
        for bits, name in FP8.items():
            if sorted(counts)[len(counts) // 2] <= 2**bits:
                return name
    if dtype not in ("float32", "float64"):
        return dtype
    for name in ("bfloat16", "float16"):
        narrow = rows.to(getattr(torch, name)).float()
        if torch.equal(narrow, rows):
            return name
    return dtype
