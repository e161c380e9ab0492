"""Every candidate boundary projected through every slot of fc, once, for the tokens of a pool.

    g_t = R_t sum_s P_s[l_s]_t       P_s[l] = W_s (norm_s? h[l])
    k_t, v_t = e-half + r_t sum_s K_s[l_s]_t       K_s[l] = W_kv (w * P_s[l])

See :mod:`draftprobe.diagnose.pool`. States are read boundary by boundary, sequence by sequence; fc
is used block by block. Scores nothing and knows no labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from draftprobe.diagnose.windows import Window
from draftprobe.drafter.attention import Heads
from draftprobe.drafter.matrix import product, quick_dtype
from draftprobe.drafter.model import Drafter
from draftprobe.drafter.wiring import Tap
from draftprobe.states.record import States

_FILLED = 2**26  # numbers that are projected at a time


class Projections:
    """Projections of some windows, and what a drafter pass takes of them.

    Attributes:
        dtype: they are kept and summed up in: the weights' own where the machine is quick in it.
        starts: int64 [sequences], the first row of each window; rows stand one after another.
        line: int64 [n], the window of each scored token; row: int64 [n], its row.
        positions: int64 [rows], rotary; longest: rows of the longest window; width: of keys and
            values before they are finished.
        embedded: [n, H].
    """

    def __init__(
        self,
        drafter: Drafter,
        states: States,
        candidates: Sequence[Tap],
        windows: Sequence[Window],
        progress: Callable[[int, int], None],
    ) -> None:
        """Project ``candidates``, and zeros as one more choice, behind them."""
        self._drafter, self._layer = drafter, drafter.decoder[0]
        attention = self._layer.self_attn
        self.linear = isinstance(attention, Heads) and attention.k_norm is None
        self._widths = [source.out_features for source in attention.sources]
        self._candidates, self._choices = tuple(candidates), len(candidates) + 1
        self._slots, self.width = drafter.shape.taps, sum(self._widths)
        self._device, self.dtype = drafter.fc.weight.device, dtype_of(drafter)
        self.longest = max(window.rows for window in windows)
        self._of_e, self._of_g = self._halves()
        self._allocate(windows)
        done = 0
        for number, window in enumerate(windows):
            self._fill(done, int(self.starts[number]), states, window)
            done += len(window.scored)
            progress(number + 1, len(windows))

    def g(self, places: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """What fc gives for choices [B, slots] at scored tokens [B, C], whose rows are [B, C]."""
        total = self._sum(self._projections, places, tokens)
        return (total * self._before_fc(places, rows)[..., None]).to(self.dtype)

    def keys_values(
        self, places: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys (turned) and values of context rows [B, T], each [B, kv heads, T, d]."""
        wiring = self._drafter.wiring
        scale = self._before_fc(places, rows)  # [B, T]
        if wiring.hidden_norm:
            square = torch.zeros_like(scale)
            for (s, t), products in self._products.items():
                pair = products[rows, places[:, s, None], places[:, t, None]]
                square += pair if s == t else 2 * pair
            epsilon, hidden = self._layer.hidden_norm.epsilon, self._drafter.shape.hidden
            scale = scale * (scale.square() * square / hidden + epsilon).rsqrt()
        both = self._sum(self._hidden_half, places, rows) * scale[..., None]
        both = (self._embedding_half[rows] + both).to(self.dtype)
        return self._finished(both, None if self.linear else self.positions[rows])

    def _sum(self, parts: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Sum over slots of parts [slots, choices, rows, ..] at rows [B, R]: float32 [B, R, ..]."""
        total = parts[0, places[:, 0, None], rows].float()
        for slot in range(1, self._slots):
            total += parts[slot, places[:, slot, None], rows]
        return total

    def _finished(
        self, both: torch.Tensor, positions: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Projections [..., T, W] -> keys and values; no positions: the keys are turned already."""

        def turn(x: torch.Tensor) -> torch.Tensor:
            return x if positions is None else self._drafter.turn(x, positions.to(x.device))

        return self._layer.self_attn.keys_values(both.split(self._widths, dim=-1), turn)

    def _before_fc(self, places: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """R [B, R]: what one norm over the concatenation divides by, inverted; else ones."""
        if self._drafter.wiring.pre_fc_norm != "whole":
            return torch.ones(rows.shape, device=self._device)
        square = self._squares[places[:, :, None], rows[:, None]].mean(1)
        return (square + self._drafter.input_norm.epsilon).rsqrt()

    def _allocate(self, windows: Sequence[Window]) -> None:
        shape, choices = self._drafter.shape, self._choices
        ends = torch.tensor([window.rows for window in windows]).cumsum(0)
        rows, total = int(ends[-1]), sum(len(window.scored) for window in windows)
        self.starts = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1]])
        sizes = torch.tensor([len(window.scored) for window in windows])
        self.line = torch.arange(len(windows)).repeat_interleave(sizes)
        opened = torch.tensor([window.start for window in windows])
        slot = torch.cat([window.scored for window in windows])
        self.row = slot - opened[self.line] + self.starts[self.line]
        self.positions = torch.empty(rows, dtype=torch.long)
        width, like = self.width, torch.empty(0, dtype=self.dtype, device=self._device)
        self._hidden_half = like.new_empty(self._slots, choices, rows, width)
        self._embedding_half = like.new_empty(rows, width)
        self._projections = like.new_empty(self._slots, choices, total, shape.hidden)
        self.embedded = like.new_empty(total, shape.hidden)
        self._squares = torch.empty(choices, rows, device=self._device)
        self._products = {
            (s, t): torch.empty(rows, choices, choices, device=self._device)
            for s in range(self._slots)
            for t in range(s + 1)
        }

    def _halves(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys' and values' weights for the embedding and for the normed hidden half, [W, H]."""
        wiring, layer = self._drafter.wiring, self._layer
        both = torch.cat([source.weight for source in layer.self_attn.sources])  # [W, 2H]
        halves = both.to(self.dtype).chunk(2, dim=1)
        of_e, of_g = halves if wiring.half_order == "embedding_first" else halves[::-1]
        if wiring.hidden_norm:
            of_g = (of_g * layer.hidden_norm.weight).to(self.dtype)
        return of_e.contiguous(), of_g.contiguous()

    def _fill(self, first_token: int, first_row: int, states: States, window: Window) -> None:
        """Project one sequence; ``first_token`` and ``first_row`` are where its part begins."""
        drafter, wiring = self._drafter, self._drafter.wiring
        slots = torch.arange(window.start, window.start + window.rows)
        text = states.sequence(window.index, ()).tokens
        fed = (slots + wiring.state_shift).clamp(0, len(text) - 2)
        x = self._states(states, window.index, fed)  # [A, T, target_hidden]
        rows = torch.arange(first_row, first_row + window.rows)
        token = torch.full((window.rows,), -1)
        token[window.scored - window.start] = first_token + torch.arange(len(window.scored))
        positions = drafter.position(slots, 1)
        step = max(1, _FILLED // (self._slots * len(x) * drafter.shape.hidden))
        for part in torch.arange(window.rows).split(step):
            self._project(x[:, part], rows[part], token[part], positions[part])
        e = drafter.embed(text[(slots + wiring.token_shift).clamp(0, len(text) - 1)])  # [T, H]
        scored = slice(first_token, first_token + len(window.scored))
        self.embedded[scored] = e[window.scored - window.start].to(self.dtype)
        self.positions[rows] = positions
        if wiring.embedding_norm:
            e = self._layer.input_layernorm(e)
        half = product(e.to(self.dtype), self._of_e) + self._bias()
        self._embedding_half[rows] = self._turned(half, positions)

    def _states(self, states: States, index: int, fed: torch.Tensor) -> torch.Tensor:
        """Every choice's states at some slots, read boundary by boundary; zeros last."""
        out: torch.Tensor | None = None
        for place, tap in enumerate(self._candidates):
            h = states.sequence(index, (tap,)).h[tap][fed]
            if out is None:
                shape = (self._choices, *h.shape)
                out = torch.zeros(shape, dtype=self.dtype, device=self._device)
            out[place] = h.to(self._device)
        assert out is not None
        return out

    def _project(
        self, x: torch.Tensor, rows: torch.Tensor, token: torch.Tensor, positions: torch.Tensor
    ) -> None:
        """Project states x [A, T, target_hidden] through every slot; token is -1 if not scored."""
        drafter, seen = self._drafter, token >= 0
        self._squares[:, rows] = x.float().square().mean(-1)
        blocks = drafter.fc.weight.split(drafter.shape.target_hidden, dim=1)
        floats = []
        for slot, block in enumerate(blocks):
            projected = product(_normed(drafter, slot, x).to(self.dtype), block)  # [A, T, H]
            if drafter.fc.bias is not None and slot == 0:
                projected += drafter.fc.bias  # whatever stands in that slot
            self._projections[slot][:, token[seen]] = projected[:, seen]
            half = product(projected, self._of_g)
            self._hidden_half[slot][:, rows] = self._turned(half, positions)
            floats.append(projected.float().transpose(0, 1))  # [T, A, H]
        for (s, t), products in self._products.items():
            products[rows] = floats[s] @ floats[t].transpose(1, 2)

    def _bias(self) -> torch.Tensor:
        """What keys and values have added to them, [W]; it goes with the embedding's half."""
        sources = self._layer.self_attn.sources
        zeros = self._of_e.new_zeros
        return torch.cat([zeros(s.out_features) if s.bias is None else s.bias for s in sources])

    def _turned(self, both: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Projections [..., T, W], of plain heads with the keys rotated already."""
        if not self.linear:
            return both
        keys, values = self._finished(both, positions)
        return torch.cat([part.transpose(-2, -3).flatten(-2) for part in (keys, values)], dim=-1)


def dtype_of(drafter: Drafter) -> torch.dtype:
    """What a pool of this drafter computes in; see the head of :mod:`~draftprobe.diagnose.pool`."""
    return quick_dtype(drafter.fc.weight, drafter.dtype)


def sizes_of(drafter: Drafter, choices: int) -> tuple[int, int]:
    """Bytes that a pool keeps per slot attended to, and more per scored token."""
    shape, sources = drafter.shape, drafter.decoder[0].self_attn.sources
    dtype = dtype_of(drafter)
    width, pairs = sum(s.out_features for s in sources), shape.taps * (shape.taps + 1) // 2
    row = choices * shape.taps * width * dtype.itemsize + pairs * choices**2 * 4
    return row, choices * shape.taps * shape.hidden * dtype.itemsize


def _normed(drafter: Drafter, slot: int, x: torch.Tensor) -> torch.Tensor:
    """What fc's block of this slot reads of a state, but for R."""
    if drafter.wiring.tap_norm == "last" and slot == drafter.shape.taps - 1:
        x = drafter.final_norm(x)
    if drafter.wiring.pre_fc_norm == "per_tap":
        return drafter.fc_norm[slot](x)
    if drafter.wiring.pre_fc_norm == "whole":
        return x * drafter.input_norm.weight.split(x.shape[-1])[slot]
    return x
