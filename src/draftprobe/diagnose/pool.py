"""A pool of scored tokens on which any boundary can be put into any slot at the price of a sum.

Projects every candidate boundary through every slot of fc once; a candidate tuple then costs the
head of the scored tokens and one block over them. Knows no statistics and draws no conclusion.

    g_t = R_t sum_s P_s[l_s]_t          P_s[l] = W_s (norm_s? h[l])
          R_t = 1, or with one norm over the concatenation 1 / rms_t, whose mean square is the mean
          of the taps' own mean squares
    k_t, v_t = e-half + r_t sum_s K_s[l_s]_t       K_s[l] = W_kv (w * P_s[l]), keys turned already
          r_t = R_t / rms(g_t) from the inner products of the projections; R_t without hidden_norm

So a slot that is only looked at costs as much as its keys and values, and needs no matrix product;
queries, MLP and head run on the scored tokens alone. Where keys and values are not linear in u
(norms of single heads, latent attention), their last part is done anew for each tuple, turning
included. Several decoder layers have no such form: their context must be run whole.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from draftprobe.drafter.attention import Heads
from draftprobe.drafter.model import Drafter
from draftprobe.drafter.vocabulary import draft_labels
from draftprobe.drafter.wiring import Tap
from draftprobe.errors import InputError
from draftprobe.measure.replay import check_fit, spread
from draftprobe.states.record import States

MIN_SEQUENCES = 16
"""Fewer independent sequences give intervals that depend on each sequence's luck."""

Filling = tuple[Tap | None, ...]
"""What stands in each slot; None is a slot that is fed zeros."""

_ROWS = 256  # scored tokens per pass


@dataclass(frozen=True, slots=True)
class Limits:
    """How much text a pool takes.

    Attributes:
        tokens: at most so many scored tokens, spread evenly over the sequences.
        sequences: at most so many sequences, scattered over the file.
        context: at most so many slots of a sequence. They are its first ones, so that a scored
            token sees all that a decoder's cache would hold, unless the counted text begins later
            than half-way through them: then the first slots of the sequence are not attended to.
        memory: bytes that projections may take; a larger pool is made of fewer sequences.
    """

    tokens: int = 2048
    sequences: int = 256
    context: int = 256
    memory: int = 3 * 2**29


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """The part of a sequence that takes part: slots ``start``..., scored ones among them."""

    index: int
    start: int
    scored: torch.Tensor

    @property
    def rows(self) -> int:
        return int(self.scored[-1]) + 1 - self.start


def rewired(drafter: Drafter, taps: Sequence[Tap]) -> Drafter:
    """The same weights, not copied, fed from other boundaries."""
    other = copy.copy(drafter)
    other.wiring = replace(drafter.wiring, taps=tuple(taps))
    return other


class Pool:
    """Scored tokens with every projection they need, and what was computed on them so far.

    Attributes:
        candidates: boundaries that may stand in a slot.
        slots: how many slots the drafter has.
        sequence: int64 [n], the sequence of each scored token; slot: int64 [n], the slot whose
            step-1 draft predicts it. All are counted tokens inside the draft vocabulary.
        cut: sequences whose first slots are not attended to; see :class:`Limits`.
    """

    @torch.inference_mode()
    def __init__(
        self,
        drafter: Drafter,
        states: States,
        candidates: Sequence[Tap] | None = None,
        limits: Limits = Limits(),
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Project ``candidates`` (all recorded boundaries by default) through every slot.

        Raises:
            InputError: the states do not fit the drafter, no token can be scored, the memory
                allowed does not hold 16 sequences, or the drafter has no closed form.
        """
        _check_form(drafter)
        self._drafter, self._layer = drafter, drafter.decoder[0]
        attention = self._layer.self_attn
        self._linear = isinstance(attention, Heads) and attention.k_norm is None
        self._widths = [source.out_features for source in attention.sources]
        self.candidates = tuple(states.boundaries if candidates is None else candidates)
        self.slots = drafter.shape.taps
        if not self.candidates:
            raise InputError(f"{states.path}: expected at least one candidate boundary, found none")
        for tap in self.candidates:
            check_fit(rewired(drafter, (tap,) * self.slots), states)
        self._choices = {tap: place for place, tap in enumerate((*self.candidates, None))}
        labels = draft_labels(drafter.target_ids(), drafter.shape.vocabulary)
        windows = self._fitting(_windows(drafter, states, labels, limits), states, limits)
        self.cut = sum(window.start > 0 for window in windows)
        self._allocate(windows)
        done = 0
        for number, window in enumerate(windows):
            self._fill(done, int(self._starts[number]), states, window)
            done += len(window.scored)
            progress(number + 1, len(windows))
        text = states.tokens.split(list(states.lengths))
        wanted = [text[window.index][window.scored + 2] for window in windows]
        self._labels = labels[torch.cat(wanted)].to(self._device)
        self._scores: dict[Filling, tuple[torch.Tensor, torch.Tensor]] = {}

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def fillings(self) -> int:
        """Distinct tuples of boundaries scored so far, on however many tokens."""
        return sum(None not in filling for filling in self._scores)

    def log_likelihood(self, filling: Filling, tokens: torch.Tensor) -> torch.Tensor:
        """Of each of ``tokens`` (places in the pool) under the drafter fed so: float64 [m]."""
        return self._score(filling, tokens)[0]

    def correct(self, filling: Filling, tokens: torch.Tensor) -> torch.Tensor:
        """Whether the step-1 draft is the text's token, bool [m]."""
        return self._score(filling, tokens)[1]

    @torch.inference_mode()
    def _score(self, filling: Filling, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if len(filling) != self.slots or any(tap not in self._choices for tap in filling):
            raise ValueError(f"{filling}: not {self.slots} of the pool's candidates")
        if filling not in self._scores:
            unknown = torch.full((len(self),), torch.nan, dtype=torch.float64)
            self._scores[filling] = unknown, torch.zeros(len(self), dtype=torch.bool)
        likely, correct = self._scores[filling]
        places = [self._choices[tap] for tap in filling]
        missing = tokens[likely[tokens].isnan()].unique()  # ascending: sequence by sequence
        for part in missing.split(_ROWS) if len(missing) else ():
            likely[part], correct[part] = self._run(places, part)
        return likely[tokens], correct[tokens]

    def _run(self, places: list[int], tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One drafter pass over [B sequences, C scored tokens, T slots that they see]."""
        drafter, shape = self._drafter, self._drafter.shape
        own, line, counts = self._line[tokens].unique_consecutive(
            return_inverse=True, return_counts=True
        )
        column = torch.arange(len(tokens)) - (counts.cumsum(0) - counts)[line]
        chosen = tokens.new_zeros(len(own), int(counts.max()))  # [B, C], padded with token 0
        chosen[line, column] = tokens
        rows = self._row[chosen]  # [B, C]
        starts = self._starts[own][:, None]
        seen = torch.arange(int((rows[line, column] - starts[line, 0]).max()) + 1)
        context = (starts + seen).clamp(max=len(self._positions) - 1)  # [B, T]
        visible = context[:, None] <= rows[..., None]  # [B, C, T]
        if drafter.wiring.window is not None:
            visible &= context[:, None] > rows[..., None] - drafter.wiring.window
        mask = visible.to(self._device)[:, None]
        keys, values = self._keys_values(places, context)  # [B, kv heads, T, d]

        def attend(
            _layer: int, q: torch.Tensor, _k: torch.Tensor, _v: torch.Tensor
        ) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)

        parts = (self._projections[slot, place][chosen] for slot, place in enumerate(places))
        g = sum(parts) * self._before_fc(places, rows)[..., None].to(self._embedded.dtype)
        positions = self._positions[rows].to(self._device)
        o = drafter.block(self._embedded[chosen], g, positions, attend)
        logits = drafter.logits(o[line, column]).float()
        label = self._labels[tokens]
        likely = logits.gather(-1, label[:, None])[:, 0] - logits.logsumexp(-1)
        if not torch.isfinite(likely).all():
            raise InputError(
                f"the drafter's scores are NaN or infinite with {places} of "
                f"{shape.taps} slots; search in float32, and check the states"
            )
        return likely.double().cpu(), (logits.argmax(-1) == label).cpu()

    def _keys_values(
        self, places: list[int], rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys (turned) and values of context rows [B, T], each [B, kv heads, T, d]."""
        wiring = self._drafter.wiring
        scale = self._before_fc(places, rows)  # [B, T]
        if wiring.hidden_norm:
            square = torch.zeros_like(scale)
            for s, a in enumerate(places):
                for t, b in enumerate(places[: s + 1]):
                    square += (1 if s == t else 2) * self._products[s, t][rows, a, b]
            epsilon, hidden = self._layer.hidden_norm.epsilon, self._drafter.shape.hidden
            scale = scale * (scale.square() * square / hidden + epsilon).rsqrt()
        both = sum(self._hidden_half[slot, place][rows] for slot, place in enumerate(places))
        both = self._embedding_half[rows] + both * scale[..., None].to(self._embedded.dtype)
        return self._finished(both, None if self._linear else self._positions[rows])

    def _finished(
        self, both: torch.Tensor, positions: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Projections [..., T, W] -> keys and values; no positions: the keys are turned already."""

        def turn(x: torch.Tensor) -> torch.Tensor:
            return x if positions is None else self._drafter.turn(x, positions.to(x.device))

        return self._layer.self_attn.keys_values(both.split(self._widths, dim=-1), turn)

    def _before_fc(self, places: list[int], rows: torch.Tensor) -> torch.Tensor:
        """R: what one norm over the concatenation divides by, inverted; else ones."""
        if self._drafter.wiring.pre_fc_norm != "whole":
            return torch.ones(rows.shape, device=self._device)
        square = self._squares[places][:, rows].mean(0)
        return (square + self._drafter.input_norm.epsilon).rsqrt()

    def _fitting(self, windows: list[_Window], states: States, limits: Limits) -> list[_Window]:
        """As many of the windows, scattered over the file, as the memory holds."""
        shape, choices = self._drafter.shape, len(self._choices)
        size, pairs = self._drafter.fc.weight.element_size(), self.slots * (self.slots + 1) // 2
        row = choices * self.slots * sum(self._widths) * size
        row += pairs * choices**2 * 4
        token = choices * self.slots * shape.hidden * size
        needed = sum(window.rows * row + len(window.scored) * token for window in windows)
        keep = int(len(windows) * limits.memory / needed)
        if keep >= len(windows):
            return windows
        if keep < MIN_SEQUENCES:
            raise InputError(
                f"{states.path}: {len(self.candidates)} boundaries in {self.slots} slots of "
                f"{len(windows)} sequences need {needed / 2**30:.1f} GiB of projections, and "
                f"{limits.memory / 2**30:.1f} GiB do not hold {MIN_SEQUENCES} sequences; "
                "give fewer candidates or more memory"
            )
        return [windows[place] for place in _scattered(len(windows), keep)]

    def _allocate(self, windows: list[_Window]) -> None:
        shape, choices = self._drafter.shape, len(self._choices)
        weight = self._drafter.fc.weight
        self._device = weight.device
        ends = torch.tensor([window.rows for window in windows]).cumsum(0)
        rows, total = int(ends[-1]), sum(len(window.scored) for window in windows)
        self._starts = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1]])
        sizes = torch.tensor([len(window.scored) for window in windows])
        self._line = torch.arange(len(windows)).repeat_interleave(sizes)
        self.sequence = torch.tensor([window.index for window in windows])[self._line]
        self.slot = torch.cat([window.scored for window in windows])
        opened = torch.tensor([window.start for window in windows])
        self._row = self.slot - opened[self._line] + self._starts[self._line]
        self._positions = torch.empty(rows, dtype=torch.long)
        width = sum(self._widths)
        self._hidden_half = weight.new_empty(self.slots, choices, rows, width)
        self._embedding_half = weight.new_empty(rows, width)
        self._projections = weight.new_empty(self.slots, choices, total, shape.hidden)
        self._embedded = weight.new_empty(total, shape.hidden)
        self._squares = torch.empty(choices, rows, device=self._device)
        self._products = {
            (s, t): torch.empty(rows, choices, choices, device=self._device)
            for s in range(self.slots)
            for t in range(s + 1)
        }

    def _fill(self, first_token: int, first_row: int, states: States, window: _Window) -> None:
        """Project one sequence; ``first_token`` and ``first_row`` are where its part begins."""
        drafter, shape, wiring = self._drafter, self._drafter.shape, self._drafter.wiring
        weight, layer = drafter.fc.weight, self._layer
        slots = torch.arange(window.start, window.start + window.rows)
        rows = slice(first_row, first_row + window.rows)
        tokens = slice(first_token, first_token + len(window.scored))
        recorded = states.sequence(window.index, self.candidates)
        text = recorded.tokens
        fed = (slots + wiring.state_shift).clamp(0, len(text) - 2)
        taps = [recorded.h[tap][fed].to(weight) for tap in self.candidates]
        x = torch.stack([*taps, torch.zeros_like(taps[0])])  # [A, T, target_hidden]
        self._squares[:, rows] = x.float().square().mean(-1)
        projected = torch.stack(
            [
                _normed(drafter, slot, x) @ block.T
                for slot, block in enumerate(weight.split(shape.target_hidden, dim=1))
            ]
        )  # [slots, A, T, H]
        if drafter.fc.bias is not None:
            projected[0] += drafter.fc.bias  # whatever stands in that slot
        for (s, t), products in self._products.items():
            pair = (projected[slot].float().transpose(0, 1) for slot in (s, t))  # [T, A, H]
            first, second = pair
            products[rows] = first @ second.transpose(1, 2)
        self._projections[:, :, tokens] = projected[:, :, window.scored - window.start]

        e = drafter.embed(text[(slots + wiring.token_shift).clamp(0, len(text) - 1)])  # [T, H]
        self._embedded[tokens] = e[window.scored - window.start]
        positions = drafter.position(slots, 1)
        self._positions[rows] = positions
        both = torch.cat([source.weight for source in layer.self_attn.sources])  # [W, 2H]
        halves = both.chunk(2, dim=1)
        of_e, of_g = halves if wiring.half_order == "embedding_first" else halves[::-1]
        if wiring.embedding_norm:
            e = layer.input_layernorm(e)
        if wiring.hidden_norm:
            of_g = of_g * layer.hidden_norm.weight
        self._embedding_half[rows] = self._turned(e @ of_e.T + self._bias(), positions)
        self._hidden_half[:, :, rows] = self._turned(projected @ of_g.T, positions)

    def _bias(self) -> torch.Tensor:
        """What keys and values have added to them, [W]; it goes with the embedding's half."""
        zeros = self._drafter.fc.weight.new_zeros
        sources = self._layer.self_attn.sources
        return torch.cat([zeros(s.out_features) if s.bias is None else s.bias for s in sources])

    def _turned(self, both: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Projections [..., T, W], of plain heads with the keys rotated already."""
        if not self._linear:
            return both
        keys, values = self._finished(both, positions)
        return torch.cat([part.transpose(-2, -3).flatten(-2) for part in (keys, values)], dim=-1)


def _check_form(drafter: Drafter) -> None:
    """Raise InputError where a slot's share in keys and values is no sum over slots."""
    layers = len(drafter.layers)
    if layers > 1:
        raise InputError(
            f"search: expected a drafter of one decoder layer, found {layers}: what a later layer "
            "attends to is no sum over slots; `draftprobe replay` measures any one wiring of it"
        )
    if drafter.wiring.tap_norm != "none" and drafter.wiring.pre_fc_norm == "whole":
        raise InputError(
            "search: expected no final norm on one tap beside one norm over fc's whole input, "
            "found both: they have no closed form here; `draftprobe replay` measures any one wiring"
        )
    if drafter.fc.bias is not None and drafter.wiring.pre_fc_norm == "whole":
        raise InputError(
            "search: expected no bias of fc beside one norm over its whole input, found both: they "
            "have no closed form here; `draftprobe replay` measures any one wiring of it"
        )


def _normed(drafter: Drafter, slot: int, x: torch.Tensor) -> torch.Tensor:
    """What fc's block of this slot reads of a state, but for R."""
    if drafter.wiring.tap_norm == "last" and slot == drafter.shape.taps - 1:
        x = drafter.final_norm(x)
    if drafter.wiring.pre_fc_norm == "per_tap":
        return drafter.fc_norm[slot](x)
    if drafter.wiring.pre_fc_norm == "whole":
        return x * drafter.input_norm.weight.split(x.shape[-1])[slot]
    return x


def _windows(
    drafter: Drafter, states: States, labels: torch.Tensor, limits: Limits
) -> list[_Window]:
    """Which slots of which sequences: counted tokens inside the draft vocabulary."""
    text, masks = (x.split(list(states.lengths)) for x in (states.tokens, states.mask))
    windows = []
    for index, (tokens, mask) in enumerate(zip(text, masks, strict=True)):
        scored = (mask[2:] & (labels[tokens[2:]] >= 0)).nonzero().flatten()
        read = scored + drafter.wiring.token_shift
        scored = scored[(read >= 0) & (read < len(tokens))]
        if len(scored):
            end = max(limits.context, int(scored[0]) + limits.context // 2)
            start = max(0, min(end, len(tokens)) - limits.context)
            windows.append(_Window(index, start, scored[(scored >= start) & (scored < end)]))
    if not windows:
        raise InputError(
            f"{states.path}: no token can be scored: none of the counted ones from each third "
            "token on lies in the draft vocabulary"
        )
    windows = [windows[place] for place in _scattered(len(windows), limits.sequences)]
    quotas = spread([len(window.scored) for window in windows], limits.tokens)
    return [
        replace(window, scored=_evenly(window.scored, quota))
        for window, quota in zip(windows, quotas, strict=True)
        if quota
    ]


def _evenly(values: torch.Tensor, count: int) -> torch.Tensor:
    return values[((torch.arange(count) + 0.5) * len(values) / count).long()]


def _scattered(total: int, count: int) -> list[int]:
    """``count`` places of 0..total-1, ascending, neighbours in the file apart."""
    return sorted(sorted(range(total), key=lambda place: place * 0.6180339887 % 1)[:count])
