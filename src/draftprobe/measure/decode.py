"""Greedy decoding of one prompt at a time, plain and speculative, with KV caches and rollback.

The text of both is the target's own argmax; how far they agree is compared here, and how fast they
were. Knows no file, no engine and no verdict.
"""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch

from draftprobe.drafter.model import Cache, Drafter
from draftprobe.drafter.wiring import Tap, check_taps
from draftprobe.errors import InputError
from draftprobe.measure.interval import Estimate, proportion, ratio
from draftprobe.states.capture import stop_ids
from draftprobe.states.target import Recorder, Target


@dataclass(frozen=True, slots=True)
class Decoded:
    """One prompt, decoded once.

    Attributes:
        tokens: the new tokens; the first comes from the prefill, an end token is included.
        gaps: distance of the two highest logits at each new token.
        runs: for each target pass after the prefill, the drafts that went into the text.
        steps: drafts per pass; 0 is plain decoding.
        prefill_seconds: until the first token.
        decode_seconds: all later tokens; the drafter's own reading of the prompt included.
    """

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]
    runs: tuple[int, ...]
    steps: int
    prefill_seconds: float
    decode_seconds: float

    @property
    def rounds(self) -> int:
        """Target passes after the prefill."""
        return len(self.runs)

    @property
    def emitted(self) -> int:
        """Tokens that came out of these passes: all but the first."""
        return len(self.tokens) - 1

    @property
    def accepted(self) -> int:
        """Drafts among them. A text that ends on one has its last bonus token cut, so that
        emitted = accepted + rounds, less one in that case.
        """
        return sum(self.runs)

    @property
    def drafted(self) -> int:
        """Drafts made, those behind the text's end included."""
        return self.rounds * self.steps


class Proposer(Protocol):
    """Whoever drafts: given the target's states of the slots verified since the last call."""

    taps: tuple[Tap, ...]
    steps: int

    def propose(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """States [T, taps * H] and the token after each [T] -> target ids of the drafts [steps]."""
        ...


# Lossless greedy speculation (Leviathan et al., arXiv 2211.17192, at temperature 0). With x_t the
# last token of the text, drafts d_1..d_k, and one target pass over x_t, d_1..d_k:
#
#     y_i = argmax p(. | ..x_t, d_1..d_i)           the target's own choice, i = 0..k
#     a   = max {i : d_j = y_{j-1} for all j <= i}  the longest agreeing prefix
#     text <- text, y_0..y_a                        a accepted drafts and the bonus token
#
# y_0..y_a depend on nothing but the text itself, so they are what plain decoding (k = 0) would say.
# What the pass left in the caches for d_{a+1}..d_k is forgotten.
def decode(
    target: Target, prompt: Sequence[int], new: int, proposer: Proposer | None = None
) -> Decoded:
    """Greedy text after ``prompt``, until an end token or ``new`` tokens; plain with no proposer.

    Raises:
        InputError: drafts were rejected, and the target's cache cannot take tokens back.
    """
    stops = set(stop_ids(target))
    steps = proposer.steps if proposer else 0
    runs: list[int] = []
    with torch.inference_mode(), Reader(target, proposer.taps if proposer else ()) as reader:
        start = perf_counter()
        logits, states = reader.read(torch.tensor(prompt), last=True)  # [1, V], [P, taps * H]
        fresh = logits.argmax(-1)  # [1]: x_P
        tokens, gaps = fresh.tolist(), _gaps(logits)
        prefilled = perf_counter()
        after = torch.cat([torch.tensor(prompt[1:], dtype=torch.long), fresh.cpu()])  # [P]
        while len(tokens) < new and tokens[-1] not in stops:
            drafts = proposer.propose(states, after) if proposer else fresh[:0]  # [k]
            drafts = drafts.to(fresh.device)
            logits, states = reader.read(torch.cat([fresh[-1:], drafts]))  # [k + 1, V], [k + 1, ..]
            chosen = logits.argmax(-1)  # [k + 1]: y_0..y_k
            agreed = int((drafts == chosen[:-1]).long().cumprod(0).sum())  # a
            reader.forget(steps - agreed)
            states = states[: agreed + 1]  # of x_t, d_1..d_a, which y_0..y_a follow
            fresh = after = chosen[: agreed + 1]
            kept = _until_stop(fresh.tolist(), stops)[: new - len(tokens)]
            tokens += kept
            gaps += _gaps(logits[: len(kept)])
            runs.append(min(agreed, len(kept)))
        done = perf_counter()
    return Decoded(
        tuple(tokens), tuple(gaps), tuple(runs), steps, prefilled - start, done - prefilled
    )


def _gaps(logits: torch.Tensor) -> list[float]:
    first, second = logits.float().topk(2, dim=-1).values.unbind(-1)
    return (first - second).tolist()


def _until_stop(tokens: list[int], stops: set[int]) -> list[int]:
    end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[:end]


class Reader:
    """The target reading one text through its KV cache, boundaries recorded on the way."""

    def __init__(self, target: Target, taps: tuple[Tap, ...]) -> None:
        from transformers import DynamicCache

        self._target, self._taps = target, taps
        self._recorder = Recorder(target.structure, taps)
        self._cache = DynamicCache(config=target.model.config)
        self._cache.activate_past_recording()  # sliding windows: what a rejected token pushed out

    def __enter__(self) -> Reader:
        self._recorder.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._recorder.__exit__(*error)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return int(self._cache.get_seq_length())

    def read(self, tokens: torch.Tensor, last: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """The next tokens [T] -> logits [T, V] and the taps side by side, [T, taps * H].

        With ``last`` only the last token's logits are computed, where the model can.
        """
        model: Any = self._target.model
        keep = last and "logits_to_keep" in inspect.signature(model.forward).parameters
        logits = model(
            input_ids=tokens[None].to(self._target.device),
            past_key_values=self._cache,
            use_cache=True,
            **({"logits_to_keep": 1} if keep else {}),
        ).logits[0]
        states = self._recorder.take()
        joined = torch.cat([states[tap][0] for tap in self._taps], -1) if states else logits[:, :0]
        return logits[-1:] if last else logits, joined

    def forget(self, count: int) -> None:
        """Take the last ``count`` tokens back out of the cache.

        Raises:
            InputError: a cache that cannot (recurrent layers keep a running state only).
        """
        if self._cache.is_croppable:
            self._cache.crop(-count)
        elif count:
            raise InputError(
                f"{self._target.name}: {type(self._target.model).__name__} keeps a running state "
                "from which rejected tokens cannot be taken back; it cannot decode speculatively"
            )


class Chain:
    """A drafter that follows one text; its cache holds the slots whose target states are known."""

    def __init__(self, drafter: Drafter, steps: int) -> None:
        wiring = drafter.wiring
        if wiring.token_shift != 1:
            raise InputError(
                f"token_shift: expected 1, found {wiring.token_shift}: decode is defined for slots "
                "that read the next token; replay measures any shift"
            )
        for name, usual in (("state_shift", 0), ("window", None)):
            value = getattr(wiring, name)
            if value != usual:
                raise InputError(
                    f"{name}: expected {usual}, found {value}: decode does not follow it; replay "
                    "measures it"
                )
        if steps < 1:
            raise InputError(f"steps: expected at least one draft per pass, found {steps}")
        self.taps, self.steps = wiring.taps, steps
        self._drafter, self._cache = drafter, Cache()
        self._ids = drafter.target_ids().to(drafter.fc.weight.device)

    @property
    def length(self) -> int:
        """Slots in the cache."""
        return self._cache.length

    # Slots on true states first; the last one gives d_1. From there each step feeds itself: its own
    # output in place of g, the token just drafted, the next position (EAGLE-3, arXiv 2503.01840).
    # The self-fed entries leave the cache again: next time these slots come with true states.
    def propose(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """See :class:`Proposer`."""
        drafter, cache, weight = self._drafter, self._cache, self._drafter.norm.weight
        slots = torch.arange(len(tokens), device=weight.device) + cache.length  # [T]
        tokens = tokens.to(weight.device)
        g = drafter.fuse(states.to(weight)[None])  # [1, T, H]
        o = drafter.block(drafter.embed(tokens[None]), g, drafter.position(slots, 1), cache)
        known, o, g = cache.length, o[:, -1:], g[:, -1:]  # [1, 1, H]
        drafts = [self._best(o)]  # [1, 1]
        for step in range(2, self.steps + 1):
            position = drafter.position(slots[-1:], step)  # [1]
            read = drafts[-1] if drafter.wiring.token_advance else tokens[None, -1:]
            g = drafter.feedback(o, g)
            o = drafter.block(drafter.embed(read), g, position, cache)
            drafts.append(self._best(o))
        cache.truncate(known)
        return torch.cat(drafts, dim=-1)[0]  # [k]

    def _best(self, o: torch.Tensor) -> torch.Tensor:
        return self._ids[self._drafter.logits(o).argmax(-1)]


@dataclass(frozen=True, slots=True)
class Mode:
    """The same prompts decoded in one mode; ``repeats[i][j]`` is prompt j in repeat i."""

    repeats: tuple[tuple[Decoded, ...], ...]

    @property
    def texts(self) -> tuple[Decoded, ...]:
        """The first repeat: what was said, and in how many passes. The others only add times."""
        return self.repeats[0]

    @property
    def length(self) -> Estimate:
        """Acceptance length: tokens per target pass, the bonus token counted; prompts cluster."""
        return ratio([text.emitted for text in self.texts], [text.rounds for text in self.texts])

    @property
    def rates(self) -> tuple[Estimate, ...]:
        """Of each draft step: rounds that accepted it, of the rounds that drafted it (joint)."""
        rounds = [text.rounds for text in self.texts]
        return tuple(
            proportion([sum(run > step for run in text.runs) for text in self.texts], rounds)
            for step in range(self.texts[0].steps)
        )

    @property
    def speeds(self) -> tuple[float, ...]:
        """Tokens per second of each repeat, prefill and first tokens left out."""
        return tuple(
            sum(text.emitted for text in texts) / sum(text.decode_seconds for text in texts)
            for texts in self.repeats
        )

    def figures(self) -> dict[str, Any]:
        """Plain data for JSON; the speed is the median over repeats."""
        length = self.length
        return {
            "acceptance_length": length.value,
            "interval": [length.low, length.high],
            "prompts": len(self.texts),
            "rounds": sum(text.rounds for text in self.texts),
            "emitted": sum(text.emitted for text in self.texts),
            "accepted": sum(text.accepted for text in self.texts),
            "drafted": sum(text.drafted for text in self.texts),
            "rates": [rate.value for rate in self.rates],
            "tokens_per_s": statistics.median(self.speeds),
        }


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two texts of one prompt part, and the gap of the top two logits there in each."""

    prompt: int
    position: int
    plain_gap: float | None
    speculative_gap: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Plain decoding and each drafter on the same prompts."""

    plain: Mode
    drafted: dict[str, Mode]

    def partings(self, name: str) -> list[Parting]:
        """The prompts on which a drafter's text is not the plain text, one entry each."""
        pairs = zip(self.plain.texts, self.drafted[name].texts, strict=True)
        found = [(index, parting(*pair), *pair) for index, pair in enumerate(pairs)]
        return [
            Parting(index, at, _at(plain.gaps, at), _at(other.gaps, at))
            for index, at, plain, other in found
            if at is not None
        ]

    def noise(self, name: str) -> float:
        """How far a wider pass moves a gap: the largest change where both texts still agree."""
        changes = [0.0]
        for plain, other in zip(self.plain.texts, self.drafted[name].texts, strict=True):
            same = parting(plain, other)
            pairs = zip(plain.gaps[:same], other.gaps[:same], strict=True)
            changes += [abs(a - b) for a, b in pairs]
        return max(changes)


def parting(plain: Decoded, other: Decoded) -> int | None:
    """The first new token on which two texts differ (or one has ended); None if they are equal."""
    if plain.tokens == other.tokens:
        return None
    pairs = zip(plain.tokens, other.tokens, strict=False)
    shorter = min(len(plain.tokens), len(other.tokens))
    return next((index for index, (a, b) in enumerate(pairs) if a != b), shorter)


def _at(gaps: Sequence[float], index: int) -> float | None:
    return gaps[index] if index < len(gaps) else None


def compare(
    target: Target,
    prompts: Sequence[Sequence[int]],
    drafters: Mapping[str, Drafter],
    steps: int,
    new: int,
    repeats: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Decode every prompt plainly and with each drafter, one mode after the other on each prompt.

    The mode that goes first changes from prompt to prompt, so that a slow moment of the machine
    does not fall on one mode.

    Raises:
        InputError: no prompts, an empty one, or a drafter that is not this target's.
    """
    _check(target, prompts, drafters)
    modes: list[Drafter | None] = [None, *drafters.values()]
    total = repeats * len(prompts) * len(modes)
    done: list[list[list[Decoded]]] = [[[] for _ in range(repeats)] for _ in modes]
    for turn in range(total):
        repeat, rest = divmod(turn, len(prompts) * len(modes))
        prompt, index = divmod(rest, len(modes))
        mode = (index + prompt) % len(modes)
        drafter = modes[mode]
        proposer = Chain(drafter, steps) if drafter else None
        done[mode][repeat].append(decode(target, prompts[prompt], new, proposer))
        progress(turn + 1, total)
    plain, *rest = (Mode(tuple(tuple(texts) for texts in mode)) for mode in done)
    return Comparison(plain, dict(zip(drafters, rest, strict=True)))


def _check(
    target: Target, prompts: Sequence[Sequence[int]], drafters: Mapping[str, Drafter]
) -> None:
    config = target.text_config
    if not prompts or not all(prompts):
        raise InputError("expected at least one prompt, each of at least one token; check the file")
    for drafter in drafters.values():
        shape = drafter.shape
        check_taps(drafter.wiring.taps, len(target.structure.layers))
        found = (config.vocab_size, config.hidden_size)
        if found != (shape.vocabulary, shape.target_hidden):
            raise InputError(
                f"{target.name}: the drafter expects a target of {shape.vocabulary} tokens and "
                f"hidden size {shape.target_hidden}, found {found[0]} and {found[1]}; "
                "give the target that it was trained for"
            )
