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

A drafter whose matrices stay mapped in bf16 is scored in bf16 where the machine is faster in it, as
an engine would: products are summed in float32 and rounded, the head alone is float32. Of a large
head only some rows are scored: those of all the pool's labels and random ones, the same for every
tuple. log p over these rows is a proper score too: it asks the likeliest wiring for the token given
that it is among them, and only loses what the other rows would have told.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from draftprobe.diagnose.projections import Projections, sizes_of
from draftprobe.diagnose.windows import MIN_SEQUENCES, Limits, Window, dear, scattered, windows_of
from draftprobe.drafter.matrix import product
from draftprobe.drafter.model import Drafter
from draftprobe.drafter.vocabulary import draft_labels
from draftprobe.drafter.wiring import Tap
from draftprobe.errors import InputError
from draftprobe.measure.replay import check_fit
from draftprobe.states.record import States

Filling = tuple[Tap | None, ...]
"""What stands in each slot; None is a slot that is fed zeros."""

_PASS = 2**25  # numbers in the largest tensor of a pass over scored tokens
_ROWS = 2048  # scored tokens in it at most


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
        scored_rows: rows of the head that are scored, all unless it is large.
        dear: a token costs much, so that few should be looked at first.
    """

    @torch.inference_mode()
    def __init__(
        self,
        drafter: Drafter,
        states: States,
        candidates: Sequence[Tap] | None = None,
        limits: Limits | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Project ``candidates`` (all recorded boundaries by default) through every slot.

        Raises:
            InputError: the states do not fit the drafter, no token can be scored, the memory
                allowed does not hold 16 sequences, or the drafter has no closed form.
        """
        _check_form(drafter)
        limits = limits or Limits()
        self._drafter = drafter
        self.candidates = tuple(states.boundaries if candidates is None else candidates)
        self.slots, self.dear = drafter.shape.taps, dear(drafter)
        if not self.candidates:
            raise InputError(f"{states.path}: expected at least one candidate boundary, found none")
        for tap in self.candidates:
            check_fit(rewired(drafter, (tap,) * self.slots), states)
        self._choices = {tap: place for place, tap in enumerate((*self.candidates, None))}
        labels = draft_labels(drafter.target_ids(), drafter.shape.vocabulary)
        self._device = drafter.fc.weight.device
        windows = self._fitting(windows_of(drafter, states, labels, limits), states, limits)
        self.cut = sum(window.start > 0 for window in windows)
        text = states.tokens.split(list(states.lengths))
        wanted = torch.cat([text[window.index][window.scored + 2] for window in windows])
        self._set_head(labels[wanted], limits.vocabulary)
        self._made = made = Projections(drafter, states, self.candidates, windows, progress)
        self.sequence = torch.tensor([window.index for window in windows])[made.line]
        self.slot = torch.cat([window.scored for window in windows])
        whole = 0 if self._head is not None else drafter.shape.draft_vocabulary
        self._rows = min(_ROWS, max(64, _PASS // max(made.longest * made.width, whole)))
        self._scores: dict[Filling, tuple[torch.Tensor, torch.Tensor]] = {}

    def _set_head(self, labels: torch.Tensor, most: int) -> None:
        """Which rows of the head are scored; ``labels`` are draft ids [n]."""
        size, self._head = self._drafter.shape.draft_vocabulary, None
        if size > most:
            kept = torch.zeros(size, dtype=torch.bool)
            kept[torch.randperm(size, generator=torch.Generator().manual_seed(0))[:most]] = True
            kept[labels] = True
            labels = (kept.cumsum(0) - 1)[labels]
            weight = self._drafter.lm_head.weight
            self._head = weight[kept.nonzero().flatten().to(weight.device)]
        self.scored_rows = size if self._head is None else len(self._head)
        self._labels = labels.to(self._device)

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def fillings(self) -> int:
        """Distinct tuples of boundaries scored so far, on however many tokens."""
        return sum(None not in filling for filling in self._scores)

    def log_likelihood(self, filling: Filling, tokens: torch.Tensor) -> torch.Tensor:
        """Of each of ``tokens`` (places in the pool) under the drafter fed so: float64 [m]."""
        return self.log_likelihoods([filling], tokens)[0]

    def log_likelihoods(self, fillings: Sequence[Filling], tokens: torch.Tensor) -> torch.Tensor:
        """The same of several tuples, scored side by side: float64 [K, m]."""
        self._score(fillings, tokens)
        return torch.stack([self._scores[filling][0][tokens] for filling in fillings])

    def correct(self, filling: Filling, tokens: torch.Tensor) -> torch.Tensor:
        """Whether the step-1 draft, among the rows scored, is the text's token, bool [m]."""
        self._score([filling], tokens)
        return self._scores[filling][1][tokens]

    @torch.inference_mode()
    def _score(self, fillings: Sequence[Filling], tokens: torch.Tensor) -> None:
        """Score what is not known yet, all tuples side by side."""
        places, pairs = [], []
        for filling in dict.fromkeys(fillings):
            if len(filling) != self.slots or any(tap not in self._choices for tap in filling):
                raise ValueError(f"{filling}: not {self.slots} of the pool's candidates")
            if filling not in self._scores:
                unknown = torch.full((len(self),), torch.nan, dtype=torch.float64)
                self._scores[filling] = unknown, torch.zeros(len(self), dtype=torch.bool)
            likely, _ = self._scores[filling]
            missing = tokens[likely[tokens].isnan()].unique()  # ascending: sequence by sequence
            if len(missing):
                places.append(([self._choices[tap] for tap in filling], filling))
                pairs.append(missing)
        if not pairs:
            return
        table = torch.tensor([row for row, _ in places])
        number = torch.arange(len(pairs)).repeat_interleave(torch.tensor([*map(len, pairs)]))
        scored = torch.cat(pairs)
        parts = zip(number.split(self._rows), scored.split(self._rows), strict=True)
        columns = [self._run(table, *part) for part in parts]
        likely, correct = (
            torch.cat(column).split([*map(len, pairs)]) for column in zip(*columns, strict=True)
        )
        for (_, filling), missing, one, other in zip(places, pairs, likely, correct, strict=True):
            self._scores[filling][0][missing] = one
            self._scores[filling][1][missing] = other

    def _run(
        self, table: torch.Tensor, number: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One drafter pass over [B lines, C scored tokens, T slots that they see].

        Tuple ``number`` (a row of ``table``) on each of ``tokens``; a line is one tuple on one
        sequence.
        """
        drafter, made = self._drafter, self._made
        lines = number * len(made.starts) + made.line[tokens]
        _, line, counts = lines.unique_consecutive(return_inverse=True, return_counts=True)
        first = counts.cumsum(0) - counts
        own, places = made.line[tokens[first]], table[number[first]]  # [B], [B, slots]
        column = torch.arange(len(tokens)) - first[line]
        chosen = tokens.new_zeros(len(own), int(counts.max()))  # [B, C], padded with token 0
        chosen[line, column] = tokens
        rows = made.row[chosen]  # [B, C]
        starts = made.starts[own][:, None]
        seen = torch.arange(int((rows[line, column] - starts[line, 0]).max()) + 1)
        context = (starts + seen).clamp(max=len(made.positions) - 1)  # [B, T]
        visible = context[:, None] <= rows[..., None]  # [B, C, T]
        if drafter.wiring.window is not None:
            visible &= context[:, None] > rows[..., None] - drafter.wiring.window
        mask = visible.to(self._device)[:, None]
        keys, values = made.keys_values(places, context)  # [B, kv heads, T, d]

        def attend(
            _layer: int, q: torch.Tensor, _k: torch.Tensor, _v: torch.Tensor
        ) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)

        positions = made.positions[rows].to(self._device)
        g = made.g(places, chosen, rows)  # [B, C, H]
        o = drafter.block(made.embedded[chosen], g, positions, attend)
        logits = self._logits(o[line, column])
        label = self._labels[tokens]
        likely = logits.gather(-1, label[:, None])[:, 0] - logits.logsumexp(-1)
        if not torch.isfinite(likely).all():
            raise InputError(
                f"the drafter's scores are NaN or infinite with {places[0].tolist()} of "
                f"{self.slots} slots; search in float32, and check the states"
            )
        return likely.double().cpu(), (logits.argmax(-1) == label).cpu()

    def _fitting(self, windows: list[Window], states: States, limits: Limits) -> list[Window]:
        """As many of the windows, scattered over the file, as the memory holds."""
        rows, tokens = (sum(w.rows for w in windows), sum(len(w.scored) for w in windows))
        row, token = sizes_of(self._drafter, len(self._choices))
        needed = rows * row + tokens * token
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
        return [windows[place] for place in scattered(len(windows), keep)]

    def _logits(self, o: torch.Tensor) -> torch.Tensor:
        """Scores [m, rows of the head that are scored], float32."""
        o = o.float()
        if self._head is None:
            return self._drafter.logits(o)
        return product(self._drafter.norm(o) if self._drafter.wiring.head_norm else o, self._head)


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
