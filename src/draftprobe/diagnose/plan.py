"""What a diagnosis will cost, said before it is spent: from headers alone, no tensor is read.

Per stage: bytes read, multiply-adds, memory, and seconds at the speed that this machine shows in a
short product. The estimate is for machines that do nothing else. Knows sizes, not values; how many
tuples a search will score depends on the text, so that number is a usual one, not a bound.

    A boundaries, S slots, H and T widths of drafter and target, W widths of keys and values, B
    multiply-adds of the layer's other matrices a token, V rows of the head that are scored (D in a
    replay), R slots attended to, N scored tokens, P pairs of tuple and token:

    projections     A R S (T H + H W)  +  A^2 R H S (S + 1) / 2
    search          P (B + V H)         P about 64 tuples (32 of a dear drafter) + 2 N tied ones
    witness         A S n T H           n at most 128 states; and where there are T tokens and T is
                                        small enough for the machine, 10 T^3 an eigenproblem
    replay          R S T H + N k (B + D H) for k steps, of the wanted and the served wiring
    wires           as many replays of a block of chains as wires have values

All 62^3 tuples by a loop of replays would cost 238,328 replays of one step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch

from draftprobe.diagnose.race import looks_of
from draftprobe.diagnose.sketch import TOKENS
from draftprobe.diagnose.windows import DEAR as DEAR_TOKEN
from draftprobe.diagnose.windows import Limits
from draftprobe.diagnose.witness import DEAR, eigenproblems
from draftprobe.dialects.trainers import parse
from draftprobe.drafter.checkpoint import Checkpoint
from draftprobe.drafter.layout import Layout, layout_of
from draftprobe.drafter.matrix import quick_dtype, speed
from draftprobe.drafter.model import RESIDENT
from draftprobe.drafter.shape import Shape, shape_of
from draftprobe.states.record import States

READ = 5e8
"""Bytes per second that a file is taken to be read with, the first time."""
_BASE = 4e8  # bytes that python, torch and the rest take
_WIRINGS = 60  # blocks of chains that a joint search replays, about
_CHAINS = 128  # chains in a block: 16 sequences of 8, or of 2 of a drafter that is dear


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: bytes read from files, multiply-adds, and seconds for both."""

    name: str
    read: int
    work: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What a diagnosis costs.

    Attributes:
        stages: in order.
        parameters: of the drafter, its embedding table not counted.
        boundaries, slots: candidates, and places for them; exhaustive: all tuples.
        tuples: that a search scores, about; tokens: on at most so many; attended: slots.
        dtype: that products are made in; mapped: bytes of weights that stay in their file.
        memory: most bytes at a time beside those.
        device: cpu or cuda; threads: of the CPU; speed: multiply-adds per second, by dtype.
    """

    stages: tuple[Stage, ...]
    parameters: int
    boundaries: int
    slots: int
    exhaustive: int
    tuples: int
    tokens: int
    attended: int
    dtype: str
    mapped: int
    memory: int
    device: str
    threads: int
    speed: dict[str, float]

    @property
    def seconds(self) -> float:
        """Of all stages."""
        return sum(stage.seconds for stage in self.stages)

    def lines(self) -> list[str]:
        """For a person."""
        head = (
            f"{self.parameters / 1e9:.2f} G parameters, {self.boundaries} boundaries in "
            f"{self.slots} slots: about {self.tuples:,} of {self.exhaustive:,} tuples on at most "
            f"{self.tokens:,} tokens"
        )
        rows = [
            f"{stage.name:12} {stage.read / 2**30:8.2f} GiB read {stage.work / 1e12:10.3f} T "
            f"multiply-adds {stage.seconds:8.0f} s"
            for stage in self.stages
        ]
        speeds = ", ".join(
            f"{value / 1e9:.0f} G a second in {n}" for n, value in self.speed.items()
        )
        total = (
            f"at least {self.seconds:.0f} s on {self.device} ({self.threads} threads, {speeds}), "
            f"{self.memory / 2**30:.1f} GiB of memory beside {self.mapped / 2**30:.1f} GiB of "
            "weights mapped from their file"
        )
        return [head, *rows, total]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"seconds": self.seconds}


def plan(
    checkpoint: Checkpoint,
    states: States,
    limits: Limits | None = None,
    steps: int = 5,
    device: str = "cpu",
    trainer: str | None = None,
) -> Plan:
    """The cost of `draftprobe diagnose` with these arguments.

    Args:
        checkpoint: the drafter's folder.
        states: of its target, every boundary a candidate.
        limits: text that the search may take.
        steps: per chain.
        device: where it will run.
        trainer: who trained it, where the folder does not tell.

    Raises:
        InputError: a folder that could not be loaded either.
    """
    limits, layout = limits or Limits(), layout_of(checkpoint)
    width = layout.shape(checkpoint, "fc.weight")[-1]
    slots = max(1, width // states.provenance.hidden_size)
    shape = shape_of(checkpoint, parse(checkpoint, layout, (0,) * slots, trainer), layout)
    return _Costs(checkpoint, layout, shape, states, limits, steps, device).plan()


@dataclass(frozen=True)
class _Costs:
    """The formulas of the module's head."""

    checkpoint: Checkpoint
    layout: Layout
    shape: Shape
    states: States
    limits: Limits
    steps: int
    device: str

    def plan(self) -> Plan:
        """Every stage."""
        shape, a, rows, tokens = self.shape, len(self.states.boundaries), self.rows, self.tokens
        fc, body, sources = (self.numbers(name) for name in ("fc.", "layers.", "source"))
        body -= sources
        head, tuples = shape.draft_vocabulary * shape.hidden, self.tuples
        some = min(shape.draft_vocabulary, self.limits.vocabulary) * shape.hidden
        dear = body + sources + head > DEAR_TOKEN
        pairs = looks_of(tokens)[0] // (1 + dear) * tuples + 2 * tokens * 2 * shape.taps
        state = rows * shape.target_hidden * 2
        step, quick = body + sources, self.quick
        parameters = fc + body + sources + head
        of_pairs = rows * shape.hidden * a**2 * shape.taps * (shape.taps + 1) // 2
        chains = (_CHAINS // 4 if dear else _CHAINS) * min(self.steps, 3)
        stages = (
            self.stage("load", 2 * parameters),
            self.stage("witness", a * state, self.witness()),
            self.stage(
                "projections",
                a * state,
                (quick, a * rows * (fc + shape.taps * sources // 2)),
                ("float32", of_pairs),
            ),
            self.stage("search", 0, (quick, pairs * body), ("float32", pairs * some)),
            self.stage(
                "wires",
                0,
                (quick, _WIRINGS * (rows * fc // 8 + chains * step)),
                ("float32", _WIRINGS * chains * head),
            ),
            self.stage(
                "replays",
                4 * shape.taps * state,
                (quick, 2 * (rows * fc + tokens * self.steps * step)),
                ("float32", 2 * tokens * self.steps * head),
            ),
        )
        large = parameters * 4 > RESIDENT
        kept = self.kept(sources)
        passing = 2**25 * 4 * 4 + 2048 * 4 * max(2 * shape.intermediate, shape.hidden * 8)
        own = 0 if large else parameters * 4
        return Plan(
            stages=stages,
            parameters=parameters,
            boundaries=a,
            slots=shape.taps,
            exhaustive=a**shape.taps,
            tuples=tuples,
            tokens=tokens,
            attended=rows,
            dtype=quick,
            mapped=2 * parameters if large else 0,
            memory=int(_BASE + kept + passing + own),
            device=self.device,
            threads=torch.get_num_threads(),
            speed={name: self.speed(name) for name in dict.fromkeys((quick, "float32"))},
        )

    @property
    def rows(self) -> int:
        """Slots attended to, of the sequences that are taken."""
        sizes = [min(n - 1, self.limits.context) for n in self.states.lengths]
        return sum(sorted(sizes)[-self.limits.sequences :])

    @property
    def tokens(self) -> int:
        """Scored tokens: those that count, as many as are allowed."""
        return min(int(self.states.mask.sum()), self.limits.tokens, self.rows)

    @property
    def tuples(self) -> int:
        """Two coarse ascents among eight boundaries a slot, then every boundary in every slot."""
        slots, a = self.shape.taps, len(self.states.boundaries)
        return min(a**slots, 2 * 2 * slots * min(a, 9) + 3 * slots * a // 2)

    @property
    def quick(self) -> str:
        """The dtype that products are made in."""
        info = self.checkpoint.info(self.layout.sources["fc.weight"].name)
        weight = torch.empty(
            0, dtype=torch.bfloat16 if info.dtype == "BF16" else torch.float32, device=self.device
        )
        large = self.numbers("fc.") * 4 > RESIDENT // 8
        dtype = quick_dtype(weight, torch.float32) if large else torch.float32
        return str(dtype).removeprefix("torch.")

    def speed(self, name: str) -> float:
        """Multiply-adds per second here."""
        return speed(getattr(torch, name), self.device)

    def numbers(self, part: str) -> int:
        """Numbers in the matrices whose inside names start so; ``source``: of keys and values."""
        sources = ("k_proj", "v_proj", "kv_a_proj_with_mqa")
        total = 0
        for name in self.layout.sources:
            shape = self.layout.shape(self.checkpoint, name)
            source = any(f".{kind}." in name for kind in sources)
            if len(shape) == 2 and (source if part == "source" else name.startswith(part)):
                total += prod(shape)
        return total

    def witness(self) -> tuple[str, int]:
        """Products with few states, or eigenproblems where there are enough tokens."""
        shape, a = self.shape, len(self.states.boundaries)
        every = sum(max(0, n - 5) for n in self.states.lengths)
        work = 10 * eigenproblems(a, shape.taps, shape.target_hidden, 8) * shape.target_hidden**3
        if every >= shape.target_hidden and (work <= DEAR or self.device != "cpu"):
            return "float32", work // 2
        return self.quick, a * min(every, TOKENS) * self.numbers("fc.")

    def kept(self, sources: int) -> int:
        """Bytes of projections, at most what is allowed."""
        shape, a = self.shape, len(self.states.boundaries) + 1
        size = 2 if self.quick == "bfloat16" else 4
        wide = sources // (2 * shape.hidden)
        row = a * shape.taps * wide * size + a**2 * 4 * shape.taps * (shape.taps + 1) // 2
        token = a * shape.taps * shape.hidden * size
        return min(self.limits.memory, self.rows * row + self.tokens * token)

    def stage(self, name: str, read: int, *work: tuple[str, int]) -> Stage:
        """One stage; ``work`` is multiply-adds and the dtype that they are made in."""
        seconds = read / READ + sum(n / self.speed(dtype) for dtype, n in work)
        return Stage(name, read, sum(n for _, n in work), seconds)
