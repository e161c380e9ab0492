"""The reference drafter: EAGLE-3 (arXiv 2503.01840) in plain torch, every wire from a Wiring.

Parameter names are the layout's inside names. Knows neither engines nor where its states come from.

    g_t   = fc(norm?(cat(tap states at t)))                      fuse
    u_t   = cat(input_layernorm(e(x_{t+1})), hidden_norm(g_t))   block
    a_t   = g_t + attention(u_t)
    o_t   = a_t + mlp(post_attention_layernorm(a_t))
    draft = argmax lm_head(norm(o_t))   predicts x_{t+2}         logits
    Step 2 starts from o_t in place of g_t, at the next position, with the drafted token.

Further layers are usual ones on o_t: they read input_layernorm(o_t), H wide, and add to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

from draftprobe.drafter.attention import Attend, Heads, LatentHeads, RMSNorm, linear
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.kind import check_eagle3
from draftprobe.drafter.layout import Layout, layout_of
from draftprobe.drafter.matrix import Matrix, finite, quick_dtype
from draftprobe.drafter.rope import amplitude, inverse_frequencies, rotate, sharpness
from draftprobe.drafter.shape import Shape, shape_of
from draftprobe.drafter.vocabulary import target_ids
from draftprobe.drafter.wiring import Wiring
from draftprobe.errors import InputError

FLOATS = (torch.float32, torch.float16, torch.bfloat16)

WORKING_SET = 2**23
"""Numbers in the largest tensor that is made at a time: attention weights, states, logits."""

RESIDENT = 2**31
"""Bytes that a drafter's weights may take in the dtype that is computed in; above, its matrices
stay in their file, mapped."""


def pick(x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Of x [B, T, H], or [T] or [B, T], the slots [B, C] of each sequence."""
    if x.dim() == 1:
        return x[slots]
    return x.gather(1, slots if x.dim() == 2 else slots[..., None].expand(-1, -1, x.shape[-1]))


class _MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = linear(shape, "gate_proj", shape.hidden, shape.intermediate)
        self.up_proj = linear(shape, "up_proj", shape.hidden, shape.intermediate)
        self.down_proj = linear(shape, "down_proj", shape.intermediate, shape.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A decoder layer: ``number`` 0 reads embedding and hidden state, others the stream alone."""

    def __init__(self, shape: Shape, number: int, factor: float) -> None:
        super().__init__()
        self.number, inputs = number, shape.hidden if number else 2 * shape.hidden
        self.input_layernorm = RMSNorm(shape.hidden, shape.epsilon)
        if number == 0:
            self.hidden_norm = RMSNorm(shape.hidden, shape.epsilon)
        latent = shape.latent is not None
        self.self_attn = LatentHeads(shape, inputs, factor) if latent else Heads(shape, inputs)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.epsilon)
        self.mlp = _MLP(shape)

    def forward(
        self,
        u: torch.Tensor,
        residual: torch.Tensor,
        turn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        positions: torch.Tensor,
        attend: Attend,
        asked: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """What attention reads [B, T, inputs] and the stream it adds to [B, T, H] -> [B, T, H].

        With ``asked`` [B, C] only these slots are computed, all slots being attended to.
        """
        attention, keys = self.self_attn, [source(u) for source in self.self_attn.sources]
        k, v = attention.keys_values(keys, lambda x: turn(x, positions))
        at = positions
        if asked is not None:
            u, residual, at = (pick(x, asked) for x in (u, residual, positions))
        q = attention.queries(u, lambda x: turn(x, at))
        mixed = attend(self.number, q, k, v)  # [B, heads, T, e]
        a = residual + attention.o_proj(mixed.transpose(-2, -3).flatten(-2))
        return a + self.mlp(self.post_attention_layernorm(a))


class Drafter(nn.Module):
    """Weights, a wiring, and the embedding table that the wiring names.

    ``embedding`` [V, H] is held by reference, outside the parameters: a mapped table stays mapped.
    ``target_norm`` [H] is the weight of the target's final norm, needed where ``tap_norm`` says so.
    """

    d2t: torch.Tensor

    def __init__(self, shape: Shape, wiring: Wiring, embedding: torch.Tensor) -> None:
        super().__init__()
        if embedding.shape != (shape.vocabulary, shape.hidden):
            raise InputError(
                f"embedding table: expected shape ({shape.vocabulary}, {shape.hidden}), found "
                f"{tuple(embedding.shape)}; is it this drafter's target?"
            )
        self.shape = shape
        self.wire(wiring)
        self.embedding = embedding
        self.target_norm: torch.Tensor | None = None
        width = shape.taps * shape.target_hidden
        self.fc = linear(shape, "fc", width, shape.hidden)
        if wiring.pre_fc_norm == "whole":
            self.input_norm = RMSNorm(width, shape.epsilon)
        elif wiring.pre_fc_norm == "per_tap":
            self.fc_norm = nn.ModuleList(
                RMSNorm(shape.target_hidden, shape.epsilon) for _ in range(shape.taps)
            )
        factor = sharpness(wiring.rope)
        self.layers = nn.ModuleList(Layer(shape, i, factor) for i in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.epsilon)
        self.lm_head = Matrix(shape.hidden, shape.draft_vocabulary, bias=False)
        self.register_buffer("d2t", torch.zeros(shape.draft_vocabulary, dtype=torch.long))

    def wire(self, wiring: Wiring) -> None:
        """Take another wiring; the modules that it needs are the caller's to put in place."""
        self.wiring = wiring
        self._frequencies = inverse_frequencies(wiring.rope, self.shape.rotary)  # stays float32
        self._amplitude = amplitude(wiring.rope)

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in; large matrices may lie in another, see :func:`load_drafter`."""
        return self.norm.weight.dtype

    @property
    def decoder(self) -> tuple[Layer, ...]:
        """The decoder layers; the first reads embedding and hidden state."""
        return tuple(layer for layer in self.layers if isinstance(layer, Layer))

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """e(tokens): [..., H], in the drafter's dtype and on its device."""
        table, weight = self.embedding, self.norm.weight
        rows = table[tokens.to(table.device)].to(weight)
        return rows * self.wiring.embedding_scale if self.wiring.embedding_scale != 1 else rows

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        """Tap states in slot order, [..., taps * target_hidden] -> g [..., H]."""
        if self.wiring.tap_norm == "last":
            *before, last = taps.split(self.shape.target_hidden, dim=-1)
            taps = torch.cat([*before, self.final_norm(last)], dim=-1)
        if self.wiring.pre_fc_norm == "whole":
            taps = self.input_norm(taps)
        elif self.wiring.pre_fc_norm == "per_tap":
            parts = taps.split(self.shape.target_hidden, dim=-1)
            pairs = zip(self.fc_norm, parts, strict=True)
            taps = torch.cat([norm(part) for norm, part in pairs], dim=-1)
        return self.fc(taps)

    def final_norm(self, h: torch.Tensor) -> torch.Tensor:
        """The target's final norm of a state [..., H].

        Raises:
            InputError: its weight is not known.
        """
        if self.target_norm is None:
            raise InputError(
                "tap_norm: the target's final norm is not known; record h[L] and h[N] to have it"
            )
        y = F.rms_norm(h.float(), (h.shape[-1],), None, self.shape.epsilon)
        return (y * self.target_norm.to(h.device)).to(h.dtype)

    def turn(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rope: [..., heads, T, d] at positions [..., T]."""
        frequencies, style = self._frequencies.to(x.device), self.wiring.rope.style
        return rotate(x, positions, frequencies, style, self._amplitude)

    def block(
        self,
        e: torch.Tensor,
        g: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        asked: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The decoder layers: e and g [B, T, H], positions [T] or [B, T] -> o [B, T, H].

        With ``asked`` [B, C] only these slots, [B, C, H]; for a drafter of one layer.
        """
        first, *later = self.decoder
        wiring = self.wiring
        normed = first.hidden_norm(g)
        halves = [
            first.input_layernorm(e) if wiring.embedding_norm else e,
            normed if wiring.hidden_norm else g,
        ]
        u = torch.cat(halves if wiring.half_order == "embedding_first" else halves[::-1], dim=-1)
        streams = {"raw": g, "normed": normed, "embedding": e, "none": torch.zeros_like(g)}
        o = first(u, streams[wiring.residual], self.turn, positions, attend, asked)
        for layer in later:
            o = layer(layer.input_layernorm(o), o, self.turn, positions, attend)
        return o

    def logits(self, o: torch.Tensor) -> torch.Tensor:
        """Scores over the draft vocabulary: [..., D]."""
        return self.lm_head(self.norm(o) if self.wiring.head_norm else o)

    def feedback(self, o: torch.Tensor, received: torch.Tensor | None = None) -> torch.Tensor:
        """What the next draft step receives as hidden state, after ``received`` gave ``o``."""
        if self.wiring.feedback == "stale":
            if received is None:
                raise ValueError("feedback: a stale state is what this step received; give it")
            return received
        return self.norm(o) if self.wiring.feedback == "post_norm" else o

    def position(self, slots: torch.Tensor, step: int) -> torch.Tensor:
        """Rotary positions of draft step ``step`` (1-based) of chains that start at ``slots``."""
        wiring = self.wiring
        at = slots + wiring.position_start + (step - 1) * wiring.position_advance
        return at if wiring.position_limit is None else at.clamp(max=wiring.position_limit - 1)

    def target_ids(self) -> torch.Tensor:
        """The target id of each draft id, int64 [D], on the CPU."""
        shape = self.shape
        return target_ids(
            self.d2t.cpu(), self.wiring.vocabulary, shape.draft_vocabulary, shape.vocabulary
        )


class Chains:
    """Attention of teacher-forced chains: one chain starts at every slot (training-time test).

    Step 1 is causal over the slots. Step j's query of the chain that starts at slot t sees the
    step-1 keys of slots 0..t and the keys of its own steps 2..j: what a decoder's cache would hold.
    Every layer has keys and values of its own. Right padding needs no mask, since no query looks
    right. With a ``window`` a query sees only so many latest slots, its own counted.
    """

    def __init__(self, window: int | None = None, asked: torch.Tensor | None = None) -> None:
        """``asked`` [B, C]: step 1's queries are of these slots alone, in place of all."""
        self._window, self._asked = window, asked
        self._seen: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._slots: torch.Tensor | None = None

    def at(self, slots: torch.Tensor) -> Chains:
        """After step 1: steps 2.. of only the chains that start at ``slots`` [B, C]."""
        some = Chains(self._window)
        some._seen = {layer: pairs[:1] for layer, pairs in self._seen.items()}
        some._slots = slots
        return some

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Attend for the next step; see :data:`Attend`."""
        groups, pairs = q.shape[1] // k.shape[1], self._seen.setdefault(layer, [])
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        pairs.append((k, v))
        if len(pairs) == 1 and self._window is None and self._asked is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if len(pairs) == 1:
            slots = torch.arange(k.shape[-2], device=q.device)
            at = slots[:, None] if self._asked is None else self._asked[:, None, :, None]
            seen = slots <= at  # [T, T] or [B, 1, C, T]
            if self._window is not None:
                seen = seen & (slots > at - self._window)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        (first, values), *later = pairs
        q = q * q.shape[-1] ** -0.5
        past = q @ first.transpose(-1, -2)  # [B, heads, T, T], or [B, heads, C, T] after at()
        slots = torch.arange(past.shape[-1], device=q.device)
        starts = (slots if self._slots is None else self._slots[:, None])[..., None]
        hidden = slots > starts
        own = torch.stack([(q * key).sum(-1) for key, _ in later], dim=-1)  # [B, heads, T, j - 1]
        if self._window is not None:
            hidden = hidden | (slots <= starts + len(later) - self._window)
            own[..., : max(0, len(later) - self._window)] = -torch.inf
        weights = torch.cat([past.masked_fill(hidden, -torch.inf), own], dim=-1).softmax(-1)
        out = weights[..., : past.shape[-1]] @ values
        for index, (_, value) in enumerate(later):
            out = out + weights[..., past.shape[-1] + index, None] * value
        return out


def unroll(
    drafter: Drafter,
    taps: torch.Tensor,
    tokens: torch.Tensor,
    steps: int,
    slots: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
) -> Iterator[torch.Tensor]:
    """Teacher-forced draft steps: step i of the chain that starts at slot t predicts x_{t+1+i}.

    Args:
        drafter: the drafter.
        taps: tap states in slot order, [B, T, taps * target_hidden].
        tokens: the text, int64 [B, n], right-padded with any id; slot t of step i reads token
            t + token_shift + (i - 1) * token_advance, and the last token where that lies beyond
            the text.
        steps: how many.
        slots: where chains start, int64 [B, C]; every slot if None.
        ends: length of each text, int64 [B, 1]; n if None.

    Yields:
        o_i, [B, C, H], for i = 1..steps.
    """
    return unroll_fused(drafter, drafter.fuse(taps), tokens, steps, slots, ends)


def unroll_fused(
    drafter: Drafter,
    fused: torch.Tensor,
    tokens: torch.Tensor,
    steps: int,
    slots: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
) -> Iterator[torch.Tensor]:
    """:func:`unroll` from fc's output on, [B, T, H]."""
    every = torch.arange(fused.shape[1], device=fused.device).expand(len(fused), -1)
    if ends is None:
        ends = torch.full_like(every[:, :1], tokens.shape[1])

    def embed(at: torch.Tensor, step: int) -> torch.Tensor:
        wiring = drafter.wiring
        index = (at + wiring.token_shift + (step - 1) * wiring.token_advance).clamp(min=0)
        return drafter.embed(tokens.gather(1, index.minimum(ends - 1)))

    alone = slots if drafter.shape.layers == 1 else None  # a later layer attends to all slots
    attend, received = Chains(drafter.wiring.window, alone), fused
    o = drafter.block(embed(every, 1), fused, drafter.position(every, 1), attend, alone)
    if slots is None:
        slots = every
    else:
        o, received = o if alone is not None else pick(o, slots), pick(fused, slots)
    yield o
    size = max(1, WORKING_SET // (fused.shape[0] * drafter.shape.heads * fused.shape[1]))
    pieces = [(piece, attend.at(piece)) for piece in slots.split(size, dim=1)]
    for step in range(2, steps + 1):
        received = drafter.feedback(o, received)
        o = torch.cat(
            [
                drafter.block(embed(piece, step), g, drafter.position(piece, step), some)
                for (piece, some), g in zip(pieces, received.split(size, dim=1), strict=True)
            ],
            dim=1,
        )
        yield o


class Cache:
    """Attention of one decoding sequence: keys and values of all earlier slots, then its own."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def length(self) -> int:
        """Slots held."""
        return self._seen[0][0].shape[-2] if self._seen else 0

    def truncate(self, length: int) -> None:
        """Forget all slots from ``length`` on."""
        for layer, (k, v) in self._seen.items():
            self._seen[layer] = k[..., :length, :], v[..., :length, :]

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Append k and v and attend causally; see :data:`Attend`."""
        if layer in self._seen:
            pairs = zip(self._seen[layer], (k, v), strict=True)
            k, v = (torch.cat(pair, dim=-2) for pair in pairs)
        self._seen[layer] = k, v
        new, total = q.shape[-2], k.shape[-2]
        seen = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)


def load_drafter(
    checkpoint: Checkpoint,
    wiring: Wiring,
    embedding: torch.Tensor,
    head: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Drafter:
    """The reference drafter of a folder in any layout, in evaluation mode.

    Args:
        checkpoint: folder of an EAGLE-3 drafter; see ``layout``.
        wiring: how it is wired, in this replay.
        embedding: the target's table [V, H]; unused where the wiring says the drafter's own.
        head: the target's head [V, H]; used where the wiring says the target's.
        dtype: to compute in. The matrices of a drafter that would take over :data:`RESIDENT` bytes
            in it stay mapped, in their file's dtype. It is computed in that dtype, as an engine
            does, where the machine multiplies faster in it; else blocks are converted when used.

    Raises:
        InputError: another family's folder; a tensor is missing, has another shape, is quantised,
            or holds NaN; a tensor that has no place.
    """
    layout = layout_of(checkpoint)
    check_eagle3(checkpoint, layout)
    shape = shape_of(checkpoint, wiring, layout)
    if wiring.embedding == "own":
        embedding = layout.read(checkpoint, "embed_tokens.weight")
    with torch.device("meta"):  # nothing is made that the file holds
        drafter = Drafter(shape, wiring, embedding)
    drafter.wire(wiring)
    empty = drafter.state_dict()
    large = sum(wanted.numel() for wanted in empty.values()) * dtype.itemsize > RESIDENT
    if large:
        dtype = quick_dtype(_read(checkpoint, layout, "fc.weight", drafter.fc.weight), dtype)
    state = {"d2t": torch.zeros(shape.draft_vocabulary, dtype=torch.long)}
    for name, wanted in empty.items():
        if name == "d2t" and wiring.vocabulary == "identity":
            continue
        if name != "lm_head.weight" or wiring.head == "own":
            tensor = _read(checkpoint, layout, name, wanted)
            state[name] = _held(tensor, torch.long if name == "d2t" else dtype, large)
    drafter.load_state_dict(state, strict=False, assign=True)
    ids = drafter.target_ids()  # a map that points outside the vocabulary is told now
    if wiring.head != "own":
        table = drafter.embedding if wiring.head == "tied" else head
        rows = _rows(table, ids, drafter, checkpoint)
        drafter.lm_head.weight = nn.Parameter(_held(rows, dtype, large))
    return drafter.eval()


def _held(tensor: torch.Tensor, dtype: torch.dtype, large: bool) -> torch.Tensor:
    """A copy in ``dtype``; of a large drafter a matrix as it lies in its file, mapped."""
    return tensor if large and tensor.dim() > 1 else tensor.to(dtype, copy=True)


def _read(checkpoint: Checkpoint, layout: Layout, name: str, wanted: torch.Tensor) -> torch.Tensor:
    """A tensor that fits the parameter or table ``wanted``."""
    where = layout.shape(checkpoint, name)
    if where != tuple(wanted.shape):
        raise InputError(
            f"{checkpoint.folder}: {name} should have shape {tuple(wanted.shape)}, found {where}"
        )
    tensor = layout.read(checkpoint, name)
    if wanted.is_floating_point() and tensor.dtype not in FLOATS:
        raise InputError(
            f"{checkpoint.folder}: {name} should be float32, float16 or bfloat16, found "
            f"{tensor.dtype}; quantised weights are not read"
        )
    if not wanted.is_floating_point() and tensor.dtype not in (torch.int64, torch.int32):
        raise InputError(
            f"{checkpoint.folder}: {name} should be int64 or int32, found {tensor.dtype}"
        )
    if tensor.is_floating_point() and not finite(tensor):
        raise InputError(f"{checkpoint.folder}: {name} holds NaN or infinite values")
    return tensor


def _rows(
    table: torch.Tensor | None, ids: torch.Tensor, drafter: Drafter, checkpoint: Checkpoint
) -> torch.Tensor:
    """The head's rows [D, H] that stand for the draft vocabulary, out of a table [V, H]."""
    shape = drafter.shape
    if table is None:
        raise InputError(
            f"{checkpoint.folder}: this drafter takes the target's head and has none of its own; "
            "give the target"
        )
    if table.shape != (shape.vocabulary, shape.hidden):
        raise InputError(
            f"head: expected shape ({shape.vocabulary}, {shape.hidden}), found "
            f"{tuple(table.shape)}; is it this drafter's target?"
        )
    whole = torch.equal(ids, torch.arange(len(table)))
    return table if whole else table[ids.to(table.device)]
