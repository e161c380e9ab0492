"""The reference drafter: EAGLE-3 (arXiv 2503.01840) in plain torch, every wire from a Wiring.

Parameter names are the SpecForge file's. Knows neither engines nor where its states come from.

    g_t   = fc(norm?(cat(tap states at t)))                      fuse
    u_t   = cat(input_layernorm(e(x_{t+1})), hidden_norm(g_t))   block
    a_t   = g_t + attention(u_t)
    o_t   = a_t + mlp(post_attention_layernorm(a_t))
    draft = argmax lm_head(norm(o_t))   predicts x_{t+2}         logits
    Step 2 starts from o_t in place of g_t, at the next position, with the drafted token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.rope import inverse_frequencies, rotate
from draftprobe.drafter.vocabulary import target_ids
from draftprobe.drafter.wiring import Wiring
from draftprobe.errors import InputError

FLOATS = (torch.float32, torch.float16, torch.bfloat16)

WORKING_SET = 2**23
"""Numbers in the largest tensor that is made at a time: attention weights, states, logits."""

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(q [B, heads, T, d], k, v [B, kv heads, T, d]) -> [B, heads, T, d]."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a drafter; ``target_hidden`` is the width of one tap, ``taps`` their number."""

    hidden: int
    target_hidden: int
    taps: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    draft_vocabulary: int
    vocabulary: int
    epsilon: float


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, computed in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same shape and dtype as ``x``."""
        y = F.rms_norm(x.float(), (x.shape[-1],), None, self.epsilon)
        return (y * self.weight.float()).to(x.dtype)


class _Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.heads * shape.head_dim
        kv_width = shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(2 * shape.hidden, width, bias=False)
        self.k_proj = nn.Linear(2 * shape.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(2 * shape.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden, bias=False)


class _MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.epsilon)
        self.hidden_norm = RMSNorm(shape.hidden, shape.epsilon)
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.epsilon)
        self.mlp = _MLP(shape)


class Drafter(nn.Module):
    """Weights, a wiring, and the embedding table that the wiring names.

    ``embedding`` [V, H] is held by reference, outside the parameters: a mapped table stays mapped.
    """

    d2t: torch.Tensor

    def __init__(self, shape: Shape, wiring: Wiring, embedding: torch.Tensor) -> None:
        super().__init__()
        if embedding.shape != (shape.vocabulary, shape.hidden):
            raise InputError(
                f"embedding table: expected shape ({shape.vocabulary}, {shape.hidden}), found "
                f"{tuple(embedding.shape)}; is it this drafter's target?"
            )
        self.shape, self.wiring = shape, wiring
        self.embedding = embedding
        self._frequencies = inverse_frequencies(wiring.rope, shape.head_dim)  # stays float32
        width = shape.taps * shape.target_hidden
        self.fc = nn.Linear(width, shape.hidden, bias=False)
        if wiring.pre_fc_norm == "whole":
            self.input_norm = RMSNorm(width, shape.epsilon)
        elif wiring.pre_fc_norm == "per_tap":
            self.fc_norm = nn.ModuleList(
                RMSNorm(shape.target_hidden, shape.epsilon) for _ in range(shape.taps)
            )
        self.midlayer = _Layer(shape)
        self.norm = RMSNorm(shape.hidden, shape.epsilon)
        self.lm_head = nn.Linear(shape.hidden, shape.draft_vocabulary, bias=False)
        self.register_buffer("d2t", torch.zeros(shape.draft_vocabulary, dtype=torch.long))

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """e(tokens): [..., H], in the drafter's dtype and on its device."""
        table, weight = self.embedding, self.fc.weight
        rows = table[tokens.to(table.device)].to(device=weight.device, dtype=weight.dtype)
        return rows * self.wiring.embedding_scale if self.wiring.embedding_scale != 1 else rows

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        """Tap states in slot order, [..., taps * target_hidden] -> g [..., H]."""
        if self.wiring.pre_fc_norm == "whole":
            taps = self.input_norm(taps)
        elif self.wiring.pre_fc_norm == "per_tap":
            parts = taps.split(self.shape.target_hidden, dim=-1)
            pairs = zip(self.fc_norm, parts, strict=True)
            taps = torch.cat([norm(part) for norm, part in pairs], dim=-1)
        return self.fc(taps)

    def block(
        self, e: torch.Tensor, g: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """The decoder layer: e and g [B, T, H], positions [T] or [B, T] -> o [B, T, H]."""
        layer, wiring, shape = self.midlayer, self.wiring, self.shape
        normed = layer.hidden_norm(g)
        halves = [
            layer.input_layernorm(e) if wiring.embedding_norm else e,
            normed if wiring.hidden_norm else g,
        ]
        u = torch.cat(halves if wiring.half_order == "embedding_first" else halves[::-1], dim=-1)
        q, k, v = (
            projection(u).unflatten(-1, (-1, shape.head_dim)).transpose(-2, -3)  # [B, heads, T, d]
            for projection in (
                layer.self_attn.q_proj,
                layer.self_attn.k_proj,
                layer.self_attn.v_proj,
            )
        )
        turn = (positions, self._frequencies.to(u.device), wiring.rope.style)
        mixed = attend(rotate(q, *turn), rotate(k, *turn), v).transpose(-2, -3).flatten(-2)
        a = (normed if wiring.residual == "normed" else g) + layer.self_attn.o_proj(mixed)
        return a + layer.mlp(layer.post_attention_layernorm(a))

    def logits(self, o: torch.Tensor) -> torch.Tensor:
        """Scores over the draft vocabulary: [..., D]."""
        return self.lm_head(self.norm(o) if self.wiring.head_norm else o)

    def feedback(self, o: torch.Tensor) -> torch.Tensor:
        """What the next draft step receives as hidden state."""
        return self.norm(o) if self.wiring.feedback == "post_norm" else o

    def position(self, slots: torch.Tensor, step: int) -> torch.Tensor:
        """Rotary positions of draft step ``step`` (1-based) of chains that start at ``slots``."""
        return slots + self.wiring.position_start + (step - 1) * self.wiring.position_advance

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
    Right padding needs no mask, since no query looks right.
    """

    def __init__(self) -> None:
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._slots: torch.Tensor | None = None

    def at(self, slots: torch.Tensor) -> Chains:
        """After step 1: steps 2.. of only the chains that start at ``slots`` [B, C]."""
        some = Chains()
        some._keys, some._values, some._slots = self._keys[:1], self._values[:1], slots
        return some

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend for the next step; see :data:`Attend`."""
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        self._keys.append(k)
        self._values.append(v)
        if len(self._keys) == 1:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        first, *later = self._keys
        q = q * q.shape[-1] ** -0.5
        past = q @ first.transpose(-1, -2)  # [B, heads, T, T], or [B, heads, C, T] after at()
        slots = torch.arange(past.shape[-1], device=q.device)
        ahead = slots > (slots if self._slots is None else self._slots[:, None])[..., None]
        own = torch.stack([(q * key).sum(-1) for key in later], dim=-1)  # [B, heads, T, j - 1]
        weights = torch.cat([past.masked_fill(ahead, -torch.inf), own], dim=-1).softmax(-1)
        out = weights[..., : past.shape[-1]] @ self._values[0]
        for index, value in enumerate(self._values[1:]):
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
            t + token_shift + i - 1, and the last token where that lies beyond the text.
        steps: how many.
        slots: where chains start, int64 [B, C]; every slot if None.
        ends: length of each text, int64 [B, 1]; n if None.

    Yields:
        o_i, [B, C, H], for i = 1..steps.
    """
    every = torch.arange(taps.shape[1], device=taps.device).expand(len(taps), -1)
    if ends is None:
        ends = torch.full_like(every[:, :1], tokens.shape[1])

    def embed(at: torch.Tensor, step: int) -> torch.Tensor:
        index = (at + drafter.wiring.token_shift + step - 1).clamp(min=0)
        return drafter.embed(tokens.gather(1, index.minimum(ends - 1)))

    attend = Chains()
    o = drafter.block(embed(every, 1), drafter.fuse(taps), drafter.position(every, 1), attend)
    if slots is None:
        slots = every
    else:
        o = o.gather(1, slots[..., None].expand(-1, -1, o.shape[-1]))
    yield o
    size = max(1, WORKING_SET // (taps.shape[0] * drafter.shape.heads * taps.shape[1]))
    pieces = [(piece, attend.at(piece)) for piece in slots.split(size, dim=1)]
    for step in range(2, steps + 1):
        fed = drafter.feedback(o).split(size, dim=1)
        o = torch.cat(
            [
                drafter.block(embed(piece, step), g, drafter.position(piece, step), some)
                for (piece, some), g in zip(pieces, fed, strict=True)
            ],
            dim=1,
        )
        yield o


class Cache:
    """Attention of one decoding sequence: keys and values of all earlier slots, then its own."""

    def __init__(self) -> None:
        self._key: torch.Tensor | None = None
        self._value: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Slots held."""
        return 0 if self._key is None else self._key.shape[-2]

    def truncate(self, length: int) -> None:
        """Forget all slots from ``length`` on."""
        if self._key is not None and self._value is not None:
            self._key, self._value = self._key[..., :length, :], self._value[..., :length, :]

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Append k and v and attend causally; see :data:`Attend`."""
        if self._key is not None and self._value is not None:
            k, v = torch.cat([self._key, k], dim=-2), torch.cat([self._value, v], dim=-2)
        self._key, self._value = k, v
        new, total = q.shape[-2], k.shape[-2]
        seen = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)


def shape_of(checkpoint: Checkpoint, wiring: Wiring) -> Shape:
    """Sizes read from a SpecForge-layout folder: weights first, config for what they cannot say.

    Raises:
        InputError: a size is missing, or weights, config and wiring contradict each other.
    """
    where, config = checkpoint.folder / "config.json", checkpoint.config
    fc = checkpoint.info("fc.weight").shape
    head = checkpoint.info("lm_head.weight").shape
    q = checkpoint.info("midlayer.self_attn.q_proj.weight").shape
    k = checkpoint.info("midlayer.self_attn.k_proj.weight").shape
    gate = checkpoint.info("midlayer.mlp.gate_proj.weight").shape
    if not all(len(shape) == 2 and 0 not in shape for shape in (fc, head, q, k, gate)):
        raise InputError(f"{checkpoint.folder}: expected two-dimensional weights, none empty")
    heads, vocabulary = (
        integer(config, "num_attention_heads", where),
        integer(config, "vocab_size", where),
    )
    taps = len(wiring.taps)
    if fc[1] % taps:
        raise InputError(
            f"{checkpoint.folder}: fc reads {fc[1]} channels, which {taps} taps cannot share "
            "evenly; give as many taps as the drafter has slots"
        )
    hidden = integer(config, "hidden_size", where)
    head_dim = q[0] // heads
    width = config.get("target_hidden_size", fc[1] // taps)
    if width != fc[1] // taps:
        raise InputError(
            f"{where}: fc reads {fc[1]} channels, {fc[1] / width if width else 0:g} taps of "
            f"target_hidden_size {width!r}, and {taps} taps were given"
        )
    if hidden != fc[0] or not head_dim or q[0] != heads * head_dim or k[0] % head_dim:
        raise InputError(
            f"{where}: hidden_size {hidden} and {heads} heads do not fit fc {fc}, q_proj {q}, "
            f"k_proj {k}"
        )
    return Shape(
        hidden=hidden,
        target_hidden=fc[1] // taps,
        taps=taps,
        heads=heads,
        kv_heads=k[0] // head_dim,
        head_dim=head_dim,
        intermediate=gate[0],
        draft_vocabulary=head[0],
        vocabulary=vocabulary,
        epsilon=_epsilon(config, where),
    )


def _epsilon(config: dict[str, Any], where: Any) -> float:
    value = config.get("rms_norm_eps", 1e-6)  # transformers' own default
    if not isinstance(value, float) or not 0 < value < 1:
        raise InputError(f"{where}: expected rms_norm_eps between 0 and 1, found {value!r}")
    return value


def integer(config: dict[str, Any], key: str, where: Any) -> int:
    """A positive integer that the config must hold; InputError otherwise."""
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise InputError(f"{where}: expected a positive integer {key!r}, found {value!r}")
    return value


def load_drafter(
    checkpoint: Checkpoint,
    wiring: Wiring,
    embedding: torch.Tensor,
    dtype: torch.dtype = torch.float32,
) -> Drafter:
    """The reference drafter of a SpecForge-layout folder, in evaluation mode.

    Args:
        checkpoint: folder with ``fc``, ``midlayer.*``, ``norm``, ``lm_head`` and maybe ``d2t``.
        wiring: how it is wired, in this replay.
        embedding: the target's table [V, H]; unused where the wiring says the drafter's own.
        dtype: to compute in.

    Raises:
        InputError: a tensor is missing, has another shape, or holds NaN.
    """
    shape = shape_of(checkpoint, wiring)
    if wiring.embedding == "own":
        embedding = checkpoint.read("embed_tokens.weight")
    drafter = Drafter(shape, wiring, embedding)
    state: dict[str, torch.Tensor] = {}
    for name, wanted in drafter.state_dict().items():
        if name == "d2t" and wiring.vocabulary == "identity":
            state[name] = wanted
            continue
        tensor = checkpoint.read(name)
        if tensor.shape != wanted.shape:
            raise InputError(
                f"{checkpoint.folder}: {name} should have shape {tuple(wanted.shape)}, found "
                f"{tuple(tensor.shape)}"
            )
        if wanted.is_floating_point() and tensor.dtype not in FLOATS:
            raise InputError(
                f"{checkpoint.folder}: {name} should be float32, float16 or bfloat16, found "
                f"{tensor.dtype}; quantised weights are not read"
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(f"{checkpoint.folder}: {name} holds NaN or infinite values")
        state[name] = tensor
    drafter.load_state_dict(state)
    drafter.target_ids()  # a map that points outside the vocabulary is told now
    return drafter.to(dtype).eval()
