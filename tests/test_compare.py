"""Exact comparison: every capture fault planted in rows of a real model is named, health is not.

tests/data/rows holds rows of SmolLM2-135M as captured in float32, bfloat16 and float16, and what
attention and MLP of two layers add (make_rows.py). Faults are planted here with plain torch; the
errors are computed anew with numpy.
"""

import json
import weakref
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy
import pytest
import tiny_targets
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from produce_dumps import DUMPS, requests
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from draftprobe.cli import app
from draftprobe.diagnose.compare.findings import COMPARED
from draftprobe.diagnose.compare.floor import stored
from draftprobe.diagnose.compare.run import Asked, compare
from draftprobe.errors import InputError
from draftprobe.report.comparison import render
from draftprobe.states.capture import Item, Plan, capture
from draftprobe.states.dumps.own import own_dump
from draftprobe.states.dumps.record import Dump, Layout, Sequence, Slot
from draftprobe.states.record import open_states
from draftprobe.states.target import Target, find_structure, load_target

ROWS = Path(__file__).parent / "data" / "rows"
REFERENCE = ROWS / "float32.safetensors"
H, COUNT, T = 576, 3, 17
WANTED = (0, 3, 16)
SAFE = (0, 1, 2, 3, 16, 29, 30, "N")  # boundaries whose neighbours are in the file, too


@cache
def states(name):
    """Tokens and every boundary in float32, per sequence, of one capture."""
    opened = open_states(ROWS / f"{name}.safetensors")
    return [
        (one.tokens, {tap: h.float() for tap, h in one.h.items()})
        for one in opened.sequences(opened.boundaries)
    ]


@cache
def branches():
    """What a module adds, per sequence."""
    kept = load_file(ROWS / "branches.safetensors")
    return {name: rows.float().split(T) for name, rows in kept.items()}


@pytest.fixture(scope="module")
def reference():
    return open_states(REFERENCE)


def dump(planted, name="bfloat16", dtype=torch.bfloat16, sequences=range(COUNT), rows=T, last=()):
    """A dump of ``planted(h, sequence)``: slots [T, H] of what the states of a capture were."""
    made = []
    for index in sequences:
        tokens, h = states(name)[index]
        slots = tuple(slot.to(dtype)[:rows] for slot in planted(h, index))
        made.append(Sequence(tokens[:rows], None, slots, str(dtype).removeprefix("torch.")))
    count = len(made[0].slots)
    slots = [Slot("last" if n in last else "aux", None, "unsaid") for n in range(count)]
    return Dump(
        Path("served"), "plain", "plain tensors", Layout(tuple(slots), None),
        made[0].slots[0].shape[-1], made[0].dtype, tuple(len(one.tokens) for one in made), 0,
        lambda: iter(made),
    )  # fmt: skip


def taps(*boundaries):
    return lambda h, _: [h[tap] for tap in boundaries]


def each(change, boundaries=WANTED):
    """The same change to every slot."""
    return lambda h, _: [change(h[tap]) for tap in boundaries]


def one(slot, change, boundaries=WANTED):
    """A change to one slot."""
    return lambda h, _: [
        change(h[tap]) if number == slot else h[tap] for number, tap in enumerate(boundaries)
    ]


def late(h, by=1):
    """Row t holds row t - by; what is not there is zero."""
    moved = torch.zeros_like(h)
    if by > 0:
        moved[by:] = h[:-by]
    else:
        moved[:by] = h[-by:]
    return moved


def rms(h):
    return h / h.pow(2).mean(-1, keepdim=True).sqrt()


def orthogonal(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(H, H, generator=generator)).Q


def dropped(h, row=6):
    return torch.cat([h[:row], h[row + 1 :], h[-1:]])


def repeated(h, row=6):
    return torch.cat([h[: row + 1], h[row:-1]])


def permuted(h):
    return h[torch.randperm(len(h), generator=torch.Generator().manual_seed(1))]


def two_exchanged(h):
    order = list(range(len(h)))
    order[5], order[6] = 6, 5
    return h[order]


def emptied(h):
    return h.index_fill(0, torch.tensor([4, 5]), 0.0)


def fp8(h):
    scale = h.abs().amax(-1, keepdim=True) / 448
    return (h / scale).to(torch.float8_e4m3fn).float() * scale


def final_norm(h_all, h):
    """The final norm of any state; its weight is read off h[30] and h[N] row by row."""
    n = rms(h_all[30])
    weight = (h_all["N"] * n).sum(0) / n.pow(2).sum(0)
    return weight * rms(h)


def said(reference, served, wanted=WANTED, **asked):
    return compare(Asked(served, reference, wanted, **asked))


def ids(found):
    return [finding.id for finding in found.findings]


# Every fault

FAULTS = {  # name: planted, findings, what the slots are called
    "branch": (
        lambda h, _: [h[0], h[3] - h[2], h[16] - h[15]],
        ["W117"],
        [(0, "identity", 0), (3, "branch", 0), (16, "branch", 0)],
    ),
    "first branch": (
        lambda h, _: [h[1] - h[0], h[3], h[16]],
        ["W117", "W101"],
        [(1, "branch", 0), (3, "identity", 0), (16, "identity", 0)],
    ),
    "mlp alone": (
        lambda h, n: [h[0], h[3], branches()["mlp[15]"][n]],
        ["W117"],
        [(0, "identity", 0), (3, "identity", 0), (16, "part_of_branch", 0)],
    ),
    "attention alone": (
        lambda h, n: [h[0], h[3], branches()["attention[15]"][n]],
        ["W117"],
        [(0, "identity", 0), (3, "identity", 0), (16, "part_of_branch", 0)],
    ),
    "without the MLP": (
        lambda h, n: [h[0], h[3], h[15] + branches()["attention[15]"][n]],
        ["W117"],
        [(0, "identity", 0), (3, "identity", 0), (16, "part_of_layer", 0)],
    ),
    "normalised": (each(rms), ["W120"], [(tap, "normalised", 0) for tap in WANTED]),
    "final norm": (
        lambda h, _: [h[0], h[3], final_norm(h, h[16])],
        ["W120"],
        [(0, "identity", 0), (3, "identity", 0), (16, "final_norm", 0)],
    ),
    "another norm": (
        lambda h, _: [h[0], h[3], torch.linspace(0.1, 4, H) * rms(h[16])],
        ["W120"],
        [(0, "identity", 0), (3, "identity", 0), (16, "other_norm", 0)],
    ),
    "lengths": (
        lambda h, _: [h[0], h[3], h[16] * torch.linspace(0.2, 3, T)[:, None]],
        ["W120"],
        [(0, "identity", 0), (3, "identity", 0), (16, "token_scale", 0)],
    ),
    "one row late": (each(late), ["W115"], [(tap, "identity", 1) for tap in WANTED]),
    "one row early": (
        each(lambda h: late(h, -1)),
        ["W115"],
        [(tap, "identity", -1) for tap in WANTED],
    ),
    "one slot late": (
        one(2, late),
        ["W115"],
        [(0, "identity", 0), (3, "identity", 0), (16, "identity", 1)],
    ),
    "permuted": (each(permuted), ["E103"], [(tap, "rows", 0) for tap in WANTED]),
    "permuted, the noisiest": (
        each(permuted, (0, 3, "N")),
        ["W101", "E103"],
        [(tap, "rows", 0) for tap in (0, 3, "N")],
    ),
    "two exchanged": (each(two_exchanged), ["E103"], [(tap, "identity", 0) for tap in WANTED]),
    "dropped late": (
        each(lambda h: dropped(h, 12)),
        ["E103"],
        [(tap, "identity", 0) for tap in WANTED],
    ),
    "dropped early": (
        each(lambda h: dropped(h, 3)),
        ["E103"],
        [(tap, "identity", -1) for tap in WANTED],
    ),
    "repeated": (
        each(lambda h: repeated(h, 12)),
        ["E103"],
        [(tap, "identity", 0) for tap in WANTED],
    ),
    "some rows zero": (each(emptied), ["E103"], [(tap, "identity", 0) for tap in WANTED]),
    "all zero": (
        one(1, torch.zeros_like),
        ["W118"],
        [(0, "identity", 0), (None, "zero", 0), (16, "identity", 0)],
    ),
    "constant": (
        lambda h, _: [h[0], states("float32")[0][1][3][4].expand(T, H), h[16]],
        ["W118"],
        [(0, "identity", 0), (None, "constant", 0), (16, "identity", 0)],
    ),
    "scaled embedding": (
        one(0, lambda h: h * H**0.5),
        ["W316"],
        [(0, "scaled", 0), (3, "identity", 0), (16, "identity", 0)],
    ),
    "halved": (each(lambda h: h / 2), ["W316"], [(tap, "scaled", 0) for tap in WANTED]),
    "rotated": (
        each(lambda h: h @ orthogonal()),
        ["W503"],
        [(tap, "rotated", 0) for tap in WANTED],
    ),
    "channels permuted": (
        each(lambda h: h.roll(5, dims=-1)),
        ["W503"],
        [(tap, "rotated", 0) for tap in WANTED],
    ),
    "fp8": (each(fp8), ["W504"], [(tap, "identity", 0) for tap in WANTED]),
    "fp8, e5m2": (
        each(lambda h: h.to(torch.float8_e5m2).float(), (1, 3, 16)),
        ["W101", "W504"],
        [(tap, "identity", 0) for tap in (1, 3, 16)],
    ),
    "not finite": (
        one(2, lambda h: h.index_fill(0, torch.tensor([0]), torch.inf)),
        ["W505"],
        [(tap, "identity", 0) for tap in WANTED],
    ),
    "swapped": (
        taps(3, 0, 16),
        ["W102"],
        [(tap, "identity", 0) for tap in (3, 0, 16)],
    ),
    "one slot on": (
        taps(3, 16, 29),
        ["W103"],
        [(tap, "identity", 0) for tap in (3, 16, 29)],
    ),
    "one layer on": (
        taps(1, 4, 17),
        ["W104"],
        [(tap, "identity", 0) for tap in (1, 4, 17)],
    ),
    "another layer": (
        taps(0, 3, 30),
        ["W101"],
        [(tap, "identity", 0) for tap in (0, 3, 30)],
    ),
    "another buffer": (
        one(1, lambda h: torch.randn(h.shape, generator=torch.Generator().manual_seed(2))),
        ["W119"],
        [(0, "identity", 0), (None, "unknown", 0), (16, "identity", 0)],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_named_and_no_other(reference, name):
    planted, expected, slots = FAULTS[name]
    found = said(reference, dump(planted))
    assert ids(found) == expected, found.findings
    assert [(one.boundary, one.treatment, one.shift) for one in found.slots] == slots
    assert found.outcome == "findings"


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"fp8", "fp8, e5m2", "not finite"}))
def test_every_fault_is_named_in_a_float32_dump(reference, name):
    planted, expected, _ = FAULTS[name]
    found = said(reference, dump(planted, "float16", torch.float32))
    assert ids(found) == expected, found.findings


def test_every_id_has_a_fault():
    named = {identifier for _, expected, _ in FAULTS.values() for identifier in expected}
    assert set(COMPARED) - named == {"S107"}  # the width: a test of its own


@pytest.mark.parametrize(("served", "wanted"), [("N", 30), (30, "N")])
def test_the_final_norm_on_the_last_tap(reference, served, wanted):
    found = said(reference, dump(taps(0, 3, served)), (0, 3, wanted))
    assert ids(found) == ["W116"]
    assert found.findings[0].served == f"slot 2: h[{served}]"
    assert found.findings[0].wanted == f"slot 2: h[{wanted}]"


def test_where_rows_went_is_told(reference):
    def planted(h, sequence):
        return [h[0], h[3], dropped(h[16], 12) if sequence == 1 else h[16]]

    (finding,) = said(reference, dump(planted)).findings
    assert finding.id == "E103"
    assert "slot 2 has of 51 rows 1 rows dropped (first: sequence 1, row 12)" in finding.evidence
    assert "1 rows repeated (first: sequence 1, row 16)" in finding.evidence


def test_all_rows_late_by_many(reference):
    found = said(reference, dump(each(lambda h: late(h, 5))))
    assert ids(found) == ["W115", "E103"]  # E103: five rows of zeros in each sequence
    assert "15 rows of zeros" in found.findings[1].evidence
    assert "late in 3 of its sequences by 5 rows" in found.findings[0].evidence


def test_one_sequence_late_among_others(reference):
    def planted(h, sequence):
        return [h[0], late(h[3]) if sequence == 2 else h[3], h[16]]

    (finding,) = [f for f in said(reference, dump(planted)).findings if f.id == "W115"]
    assert "late in 1 of its sequences by 1 row" in finding.evidence
    assert "sequence 2" in finding.evidence


def test_rows_of_another_request(reference):
    """Two requests of one batch have each other's states, in a part of their rows or all."""

    def planted(h, sequence):
        other = states("bfloat16")[1 - sequence if sequence < 2 else 2][1]
        mixed = h[16].clone()
        mixed[4:8] = other[16][4:8]
        return [h[0], h[3], mixed]

    (finding,) = said(reference, dump(planted)).findings
    assert finding.id == "E103"
    assert "slot 2 has of 51 rows 8 rows of other sequences (first: sequence 0, row 4)" in (
        finding.evidence
    )

    def exchanged(h, sequence):
        other = states("bfloat16")[(sequence + 1) % COUNT][1]
        return [h[0], h[3], other[16]]

    found = said(reference, dump(exchanged))
    assert ids(found) == ["E103"]
    assert found.slots[2].boundary == 16
    assert "rows of other sequences" in found.findings[0].evidence


@pytest.mark.parametrize(("first", "count"), [(0, 12), (6, 11)])
def test_rows_that_are_not_there(reference, tmp_path, first, count):
    """A cached prefix has no states, or the end was cut: fewer rows than tokens."""
    folder = tmp_path / "cut"
    folder.mkdir()
    for number, (tokens, h) in enumerate(states("bfloat16")):
        rows = torch.cat([h[tap][first : first + count] for tap in WANTED], dim=-1).bfloat16()
        save_file({"hidden_states": rows, "input_ids": tokens}, folder / f"{number}.safetensors")
    code, out = run(folder, "--states", REFERENCE, "--wanted", "0,3,16", "--json")
    told = json.loads(out)
    assert code == 1
    named = [finding["id"] for finding in told["findings"]]
    assert named == (["W115", "E103"] if first else ["E103"])
    assert f"{COUNT * (T - count)} rows missing" in told["findings"][-1]["evidence"]
    assert [slot["boundary"] for slot in told["slots"]] == list(WANTED)


# The errors


def by_numpy(served, boundary, shift=0, scale=1.0):
    """Median and largest error of rows that are not first, and the first rows' median."""
    rest, first = [], []
    for sequence, (_, h) in zip(served.stream(), states("float32"), strict=True):
        x, y = sequence.slots[0].double().numpy(), scale * h[boundary].double().numpy()
        x, y = x[shift:], y[: len(y) - shift]
        error = numpy.sqrt(((x - y) ** 2).sum(-1)) / numpy.sqrt((y**2).sum(-1))
        first.append(error[0])
        rest += list(error[1:])
    rest = sorted(rest)
    return rest[(len(rest) - 1) // 2], rest[-1], sorted(first)[(len(first) - 1) // 2]


@pytest.mark.parametrize("boundary", SAFE)
@pytest.mark.parametrize(
    ("change", "shift", "scale"),
    [(lambda h: h, 0, 1.0), (late, 1, 1.0), (lambda h: 24 * h, 0, 24.0)],
    ids=["as it is", "late", "scaled"],
)
def test_errors_are_those_of_a_count_by_hand(reference, boundary, change, shift, scale):
    served = dump(each(change, (boundary,)))
    (slot,) = said(reference, served, None).slots
    factor = 1.0 if slot.scale is None else slot.scale
    assert factor == pytest.approx(scale, rel=1e-2)
    assert (slot.boundary, slot.shift) == (boundary, shift)
    expected = by_numpy(served, boundary, shift, factor)
    assert (slot.median, slot.largest, slot.first) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("boundary", SAFE)
def test_runner_up_is_the_next_boundary_by_median(reference, boundary):
    served = dump(taps(boundary))
    (slot,) = said(reference, served, None).slots
    medians = {}
    for tap in reference.boundaries:
        errors = [
            (one.slots[0].double() - h[tap].double()).norm(dim=-1) / h[tap].double().norm(dim=-1)
            for one, (_, h) in zip(served.stream(), states("float32"), strict=True)
        ]
        medians[tap] = float(torch.cat([error[1:] for error in errors]).median())
    best, second = sorted(medians, key=lambda tap: medians[tap])[:2]
    assert best == boundary
    assert slot.runner_up.boundary == second
    assert slot.runner_up.median == pytest.approx(medians[second], rel=1e-4)


def test_the_factor_of_a_scaled_embedding(reference):
    served = dump(one(0, lambda h: 24 * h))
    slot = said(reference, served).slots[0]
    assert slot.scale == pytest.approx(24, rel=1e-3)


# Two at once

PAIRED = {  # changes to one slot's rows or values, and the finding of each
    "late": (late, "W115"),
    "scaled": (lambda h: 24 * h, "W316"),
    "normalised": (rms, "W120"),
    "rotated": (lambda h: h @ orthogonal(), "W503"),
    "zero": (torch.zeros_like, "W118"),
    "permuted": (permuted, "E103"),
    "fp8": (fp8, "W504"),
}


@pytest.mark.parametrize("name", PAIRED)
def test_a_fault_and_swapped_slots(reference, name):
    change, identifier = PAIRED[name]
    if name == "zero":  # two slots are left, and they are swapped
        found = said(reference, dump(lambda h, _: [h[3], h[0], change(h[16])]))
        assert set(ids(found)) == {identifier, "W101"}
    else:
        found = said(reference, dump(each(change, (16, 3, 0))))
        assert set(ids(found)) == {identifier, "W102"}
        assert [slot.boundary for slot in found.slots] == [16, 3, 0]


@pytest.mark.parametrize(("first", "second"), list(combinations(PAIRED, 2)))
def test_two_faults_in_two_slots(reference, first, second):
    (one_way, a), (another, b) = PAIRED[first], PAIRED[second]
    found = said(reference, dump(lambda h, _: [one_way(h[0]), another(h[3]), h[16]]))
    assert set(ids(found)) == {a, b}


@pytest.mark.parametrize("name", ["scaled", "normalised", "rotated"])
def test_a_fault_one_row_late(reference, name):
    change, identifier = PAIRED[name]
    found = said(reference, dump(each(lambda h: late(change(h)))))
    assert set(ids(found)) == {identifier, "W115"}
    assert [slot.shift for slot in found.slots] == [1, 1, 1]


def test_rows_of_a_normalised_slot_are_followed(reference):
    planted = one(2, lambda h: two_exchanged(rms(h)))
    assert ids(said(reference, dump(planted))) == ["W120", "E103"]
    found = said(reference, dump(one(2, lambda h: h @ orthogonal())))
    assert any(entry.what == "the rows of slot 2 one by one" for entry in found.not_evaluated)


def test_the_branch_alone_and_late(reference):
    found = said(reference, dump(lambda h, _: [h[0], h[3], late(h[16] - h[15])]))
    assert ids(found) == ["W117", "W115"]


# Health

TWINS = {
    "float32": ("float32", torch.float32),
    "bfloat16": ("bfloat16", torch.bfloat16),
    "float16": ("float16", torch.float16),
    "bfloat16 in float32": ("bfloat16", torch.float32),
    "float16 in float32": ("float16", torch.float32),
    "float32 in bfloat16": ("float32", torch.bfloat16),
    "float32 in float16": ("float32", torch.float16),
    "bfloat16 computed, kept in float16": ("bfloat16", torch.float16),
}


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    twin=st.sampled_from(sorted(TWINS)),
    slots=st.lists(st.sampled_from(SAFE), min_size=1, max_size=4, unique=True),
    sequences=st.permutations(range(COUNT)),
    count=st.integers(1, COUNT),
    rows=st.integers(12, T),
    noise=st.floats(0, 1e-3),
    seed=st.integers(0, 2**31),
)
def test_a_healthy_dump_is_accused_of_nothing(
    reference, twin, slots, sequences, count, rows, noise, seed
):
    name, dtype = TWINS[twin]
    generator = torch.Generator().manual_seed(seed)

    def planted(h, _):
        clean = [h[tap] for tap in slots]
        return [
            x + noise * x.norm(dim=-1, keepdim=True) / H**0.5
            * torch.randn(x.shape, generator=generator)
            for x in clean
        ]  # fmt: skip

    served = dump(planted, name, dtype, sequences[:count], rows)
    for wanted in (tuple(slots), None):
        found = said(reference, served, wanted)
        assert found.findings == ()
        assert found.outcome == "same"
        assert [slot.boundary for slot in found.slots] == slots


@pytest.mark.parametrize("experts", [1, 3])
def test_odd_rows_are_told_and_accused_of_nothing(reference, experts):
    """An expert chosen otherwise by rounding: some rows err by half, and are no other row."""
    generator = torch.Generator().manual_seed(0)

    def planted(h, _):
        x = h[16].clone()
        step = torch.randn(experts, H, generator=generator)
        x[3 : 3 + experts] += 0.5 * x[3 : 3 + experts].norm(dim=-1, keepdim=True) * step / H**0.5
        return [h[0], h[3], x]

    found = said(reference, dump(planted))
    assert found.outcome == "same"
    assert found.slots[2].odd == COUNT * experts
    assert any(f"{COUNT * experts} of 51 rows" in entry.what for entry in found.not_evaluated)


def test_a_quantised_target_is_called_imprecise_and_no_other_layer(reference):
    generator = torch.Generator().manual_seed(0)

    def noisy(h):
        share = 0.12 * h.norm(dim=-1, keepdim=True) / H**0.5
        return h + share * torch.randn(h.shape, generator=generator)

    found = said(reference, dump(each(noisy)))
    assert ids(found) == ["W504"]
    assert [slot.boundary for slot in found.slots] == list(WANTED)
    assert [slot.median for slot in found.slots] == pytest.approx([0.12] * 3, abs=0.01)
    neighbours = said(reference, dump(each(noisy)), (0, 3, 17))
    assert neighbours.undecided == (2,)
    assert "slot 2" not in neighbours.findings[0].evidence
    assert set(ids(said(reference, dump(each(noisy, (3, 16, 29)))))) == {"W103", "W504"}


@pytest.fixture(
    scope="module", params=["llama", "gpt_oss", "gemma3_text", "kimi_k25", "qwen3_next"]
)
def family(request, tmp_path_factory):
    """Captures of one tiny target of a family, in three dtypes: {dtype: path}."""
    folder = tmp_path_factory.mktemp(request.param)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(tiny_targets.VOCABULARY, (3, 24), generator=generator).tolist()
    items = [Item(tuple(tokens), (True,) * 24) for tokens in ids]
    paths = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = tiny_targets.build(request.param).to(dtype)
        target = Target(model, None, find_structure(model), request.param)
        paths[dtype] = folder / f"{dtype}.safetensors"
        capture(target, items, Plan(target.structure.boundaries(), "float32", 2, 0), paths[dtype])
    return paths


def test_other_families_are_healthy_in_every_dtype(family):
    """Experts, sinks, linear attention: some rows of an expert chosen otherwise err by 1."""
    reference = open_states(family[torch.float32])
    for path in family.values():
        found = compare(Asked(own_dump(path), reference))
        assert found.findings == ()
        assert found.outcome == "same"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_families_and_their_faults(family, dtype):
    """The founding case, the residual missing (as SGLang's Gemma-3), an embedding not scaled."""
    reference = open_states(family[torch.float32])
    opened = open_states(family[dtype])
    held = [
        (one.tokens, {tap: h.float() for tap, h in one.h.items()})
        for one in opened.sequences(opened.boundaries)
    ]

    def served(planted):
        made = [Sequence(tokens, None, tuple(planted(h)), "float32") for tokens, h in held]
        slots = tuple(Slot("aux", None, "unsaid") for _ in made[0].slots)
        width, lengths = made[0].slots[0].shape[-1], tuple(len(one.tokens) for one in made)
        layout = Layout(slots, None)
        return Dump(
            Path("served"), "plain", "", layout, width, "float32", lengths, 0, lambda: iter(made)
        )

    trained = served(lambda h: [h[0], h[1], h[2], h[4]])
    plus_one = served(lambda h: [h[1], h[2], h[3]])
    assert ids(compare(Asked(plus_one, reference, None, trained))) == ["W103"]
    branch = served(lambda h: [h[0], h[2] - h[1], h[3] - h[2]])
    assert ids(said(reference, branch, (0, 2, 3))) == ["W117"]
    unscaled = served(lambda h: [h[0] / 32**0.5, h[1], h[2]])
    assert ids(said(reference, unscaled, (0, 1, 2))) == ["W316"]
    norm = served(lambda h: [h[0], h[1], h["N"]])
    assert ids(said(reference, norm, (0, 1, 4))) == ["W116"]
    shifted = served(lambda h: [late(h[2]), late(h[1]), late(h[0])])
    assert ids(said(reference, shifted, (0, 1, 2))) == ["W102", "W115"]


@pytest.mark.parametrize(("noise", "identifier"), [(0.05, "W504"), (0.0, "W316")])
def test_a_factor_is_named_only_where_it_explains_most(reference, noise, identifier):
    generator = torch.Generator().manual_seed(0)

    def planted(h):
        share = noise * h.norm(dim=-1, keepdim=True) / H**0.5
        return 1.1 * h + share * torch.randn(h.shape, generator=generator)

    assert ids(said(reference, dump(each(planted)))) == [identifier]


# What is not known


@pytest.mark.parametrize("rows", [2, 5, 8])
def test_few_rows_decide_nothing(reference, rows):
    found = said(reference, dump(taps(3, 16, 29), sequences=[0], rows=rows))
    assert found.outcome == "undecided"
    assert found.undecided == (0, 1, 2)
    assert found.findings == ()


@pytest.mark.parametrize("rows", [2, 3])
def test_many_sequences_of_a_few_rows(reference, rows):
    """First rows do not count, and a row that comes late has none before it."""
    many = [index for _ in range(12) for index in range(COUNT)]
    assert said(reference, dump(taps(*WANTED), sequences=many, rows=rows)).outcome == "same"
    strange = one(2, lambda h: torch.randn(h.shape, generator=torch.Generator().manual_seed(3)))
    found = said(reference, dump(strange, sequences=many, rows=rows))
    assert found.slots[2].boundary is None


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.integers(2, T),
    slots=st.lists(
        st.sampled_from(["noise", "zero", "one", "huge", "infinite", "nan", "tiny", "state"]),
        min_size=1, max_size=3,
    ),
    held=st.sets(st.sampled_from((0, 1, 2, 16, 30, "N")), min_size=1),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_whatever_a_dump_holds_there_is_an_answer(reference, rows, slots, held, seed):
    generator = torch.Generator().manual_seed(seed)

    def planted(h, _):
        made = {
            "noise": torch.randn(T, H, generator=generator), "zero": torch.zeros(T, H),
            "one": torch.ones(T, H), "huge": h[3] * 1e30, "infinite": torch.full((T, H), torch.inf),
            "nan": h[3].masked_fill(torch.rand(T, H, generator=generator) < 0.01, torch.nan),
            "tiny": h[3] * 1e-30, "state": h[3],
        }  # fmt: skip
        return [made[name] for name in slots]

    some = tuple(tap for tap in reference.boundaries if tap in held)
    found = said(sparse(reference, some), dump(planted, dtype=torch.float32, rows=rows), None)
    json.dumps(found.to_json(), allow_nan=False)
    assert list(render(found))


def test_few_rows_are_no_basis_and_no_weighted_norm(reference):
    planted = one(2, lambda h: h @ orthogonal())
    found = said(reference, dump(planted, sequences=[0]))
    assert found.undecided == (2,)


def sparse(reference, boundaries):
    return replace(reference, boundaries=boundaries)


@pytest.mark.parametrize("served", [2, 3, 16, 29])
def test_a_boundary_that_the_reference_lacks_is_not_called_another(reference, served):
    some = tuple(tap for tap in reference.boundaries if tap != served)
    found = said(sparse(reference, some), dump(taps(0, served)), None)
    assert found.findings == ()
    assert found.slots[1].boundary is None
    assert any(entry.what.startswith("boundaries h[") for entry in found.not_evaluated)


@pytest.mark.parametrize("wanted", [0, 2, 16, "N"])
@pytest.mark.parametrize("served", [0, 2, 4, 16, 17, 30, "N"])
def test_without_the_wanted_boundary_nothing_is_accused(reference, wanted, served):
    some = tuple(tap for tap in reference.boundaries if tap != wanted)
    found = said(sparse(reference, some), dump(taps(3, served)), (3, wanted))
    assert found.undecided == (1,)
    # h[30] is all there to be recognised, and no state before the final norm is the one after it
    assert ids(found) == (["W116"] if (served, wanted) == (30, "N") else [])


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    served=st.lists(st.sampled_from((*SAFE, 4, 15, 17, 28)), min_size=1, max_size=3),
    held=st.sets(st.sampled_from((*SAFE, 4, 15, 17, 28)), min_size=1),
    twin=st.sampled_from(sorted(TWINS)),
    wanted=st.booleans(),
)
def test_a_healthy_dump_is_not_accused_by_a_reference_that_lacks_much(
    reference, served, held, twin, wanted
):
    some = tuple(tap for tap in reference.boundaries if tap in held)
    name, dtype = TWINS[twin]
    made = dump(taps(*served), name, dtype)
    found = said(sparse(reference, some), made, tuple(served) if wanted else None)
    assert found.findings == ()
    for tap, slot in zip(served, found.slots, strict=True):
        assert slot.boundary in (tap, None)


@pytest.mark.parametrize("stretch", [2, 5])
def test_rows_of_one_kind_of_fault_are_counted(reference, stretch):
    """A chunk that is not there: the rows after it come early, by as many as are missing."""

    def planted(h, _):
        return [torch.cat([x[:5], x[5 + stretch :], x[-1:].expand(stretch, H)]) for x in
                (h[0], h[3], h[16])]  # fmt: skip

    (finding,) = said(reference, dump(planted)).findings
    assert finding.id == "E103"
    assert f"has of 51 rows {COUNT * stretch:,} rows dropped" in finding.evidence


def test_a_reference_of_the_wanted_boundaries_alone_is_enough_for_health(reference):
    found = said(sparse(reference, WANTED), dump(taps(*WANTED)))
    assert found.outcome == "same"


def test_boundaries_that_are_equal_are_told_as_tied(reference, tmp_path):
    tensors = load_file(REFERENCE)
    tensors["h[2]"] = tensors["h[3]"].clone()
    from safetensors import safe_open

    with safe_open(REFERENCE, "pt") as file:
        save_file(tensors, tmp_path / "tied.safetensors", metadata=file.metadata())
    tied = open_states(tmp_path / "tied.safetensors")
    found = said(tied, dump(taps(0, 3, 16)), None)
    assert found.outcome == "undecided"
    assert set(found.slots[1].tied) == {2, 3}
    assert said(tied, dump(taps(0, 3, 16))).outcome == "same"  # the wanted one is among them


# Tokens


def test_sequences_are_matched_by_their_tokens(reference):
    assert said(reference, dump(taps(*WANTED), sequences=[2, 0], rows=12)).outcome == "same"


def test_sequences_that_the_reference_lacks_are_told(reference):
    served = dump(taps(*WANTED))
    strange = [
        replace(one, tokens=one.tokens + 1) if number == 1 else one
        for number, one in enumerate(served.stream())
    ]
    found = said(reference, replace(served, stream=lambda: iter(strange)))
    assert found.outcome == "same"
    assert found.provenance["served"]["unmatched"] == [1]
    assert any("1 sequences of the served dump" in entry.what for entry in found.not_evaluated)
    nothing = [replace(one, tokens=one.tokens + 1) for one in served.stream()]
    with pytest.raises(InputError, match="same tokens"):
        said(reference, replace(served, stream=lambda: iter(nothing)))


def test_states_of_other_tokens_behind_a_common_beginning_are_left_out(reference):
    served = dump(taps(*WANTED))
    parted = []
    for one_ in served.stream():
        tokens = one_.tokens.clone()
        tokens[14:] += 1
        slots = tuple(slot.clone() for slot in one_.slots)
        for slot in slots:
            slot[14:] = 1.0
        parted.append(replace(one_, tokens=tokens, slots=slots))
    found = said(reference, replace(served, stream=lambda: iter(parted)))
    assert found.outcome == "same"
    assert found.provenance["served"]["compared_rows"] == 3 * 14


def test_one_sequence_is_in_memory_at_a_time(reference):
    alive: list[weakref.ref] = []

    def stream():
        for index in list(range(COUNT)) * 20:
            tokens, h = states("bfloat16")[index]
            one_ = Sequence(
                tokens[:T], None, tuple(h[tap].bfloat16() for tap in WANTED), "bfloat16"
            )
            assert sum(ref() is not None for ref in alive) <= len(WANTED)
            alive.clear()
            alive.extend(weakref.ref(slot) for slot in one_.slots)
            yield one_
            del one_

    served = replace(dump(taps(*WANTED)), stream=stream, lengths=(T,) * 60)
    found = said(reference, served, limit=64)
    assert found.outcome == "same"
    assert found.provenance["served"]["compared_rows"] == 60 * T


# A producer's own files


def test_dumps_that_vllm_and_others_wrote(tmp_path):
    """Random weights and 32 channels: what was captured through each stack is what it says."""
    target = load_target(DUMPS / "tiny_target")
    items = [Item(tuple(t.tolist()), tuple(bool(m) for m in mask)) for t, mask in requests()]
    path = tmp_path / "states.safetensors"
    capture(target, items, Plan(target.structure.boundaries(), "float32", 2, 0), path)
    for name, boundaries in (
        ("vllm", "0,2,3,4"), ("speculators", "0,2,3,4"), ("fp8", "0,2,3,4"),
        ("specforge", "1,2,3,N"), ("modelopt", "1,2,3,N"), ("sglang.jsonl", "1,2,3"),
    ):  # fmt: skip
        code, out = run(DUMPS / name, "--states", path, "--wanted", boundaries)
        assert (code, out.split()[0]) == (0, "SAME"), (name, out)
    code, out = run(DUMPS / "vllm", "--states", path, "--wanted", "2,3,4,N", "--json")
    assert (code, json.loads(out)["first_differing"]) == (1, "W103")


# Trained on this, served that


def test_the_founding_case(reference):
    trained = dump(taps(0, 3, 16, 30))
    found = compare(Asked(dump(taps(3, 16, 29)), reference, None, trained))
    assert ids(found) == ["W103"]
    assert found.findings[0].served == "slot 0: h[3]; slot 1: h[16]; slot 2: h[29]"
    assert found.findings[0].wanted == "slot 0: h[0]; slot 1: h[3]; slot 2: h[16]"
    assert [slot.boundary for slot in found.trained] == [0, 3, 16, 30]


@pytest.mark.parametrize("name", ["late", "scaled", "normalised", "rotated"])
def test_what_training_had_as_well_is_no_fault(reference, name):
    change, identifier = PAIRED[name]
    same = dump(each(change))
    assert compare(Asked(same, reference, None, same)).outcome == "same"
    plain = dump(taps(*WANTED))
    assert ids(compare(Asked(plain, reference, None, same))) == [identifier]
    assert ids(compare(Asked(same, reference, None, plain))) == [identifier]


def test_training_that_cannot_be_told_decides_nothing(reference):
    thin = dump(taps(*WANTED), sequences=[0], rows=4)
    found = compare(Asked(dump(taps(*WANTED)), reference, None, thin))
    assert found.outcome == "undecided"


# Floors


def test_the_floor_by_dtype_and_measured(reference):
    twin = open_states(ROWS / "bfloat16.safetensors")
    by_dtype = said(reference, dump(taps(*WANTED)))
    assert [slot.floor for slot in by_dtype.slots] == [8 * 2**-8] * 3
    measured = said(reference, dump(taps(*WANTED)), noise=twin)
    for slot in measured.slots:
        assert slot.floor == pytest.approx(3 * slot.median, rel=1e-2)
    assert measured.outcome == "same"
    coarse = said(reference, dump(each(lambda h: h * (1 + 0.05 * torch.sign(h)))), noise=twin)
    assert ids(coarse) == ["W504"]
    assert [slot.median for slot in coarse.slots] == pytest.approx([0.05] * 3, rel=0.1)


def test_a_precision_that_is_asked_for(reference):
    served = dump(taps(*WANTED), dtype=torch.float32)
    assert said(reference, served).outcome == "same"
    (finding,) = said(reference, served, precision="float16").findings
    assert finding.id == "W504"
    assert finding.served == "slot 2: h[16]"  # errs by 0.011, float16 explains 0.0078
    with pytest.raises(InputError, match="--precision"):
        said(reference, served, precision="int4")


@pytest.mark.parametrize(
    ("dtype", "kept", "expected"),
    [
        (torch.bfloat16, torch.float32, "bfloat16"),
        (torch.float16, torch.float32, "float16"),
        (torch.float32, torch.float32, "float32"),
        (torch.bfloat16, torch.bfloat16, "bfloat16"),
    ],
)
def test_storage_is_told_by_the_values(dtype, kept, expected):
    rows = torch.randn(20, H, generator=torch.Generator().manual_seed(0))
    assert stored(rows.to(dtype).to(kept), str(kept).removeprefix("torch.")) == expected
    assert stored(fp8(rows), "float32") == "float8_e4m3fn"
    assert stored(rows.to(torch.float8_e5m2).float() * 0.3, "float32") == "float8_e5m2"


# The command


def run(*arguments):
    done = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    if isinstance(done.exception, InputError):
        return 2, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout


def write(path, served):
    path.mkdir()
    for number, one_ in enumerate(served.stream()):
        rows = torch.cat(one_.slots, dim=-1).contiguous()
        save_file(
            {"hidden_states": rows, "input_ids": one_.tokens.contiguous()},
            path / f"{number}.safetensors",
        )
    return path


def test_the_command_and_its_json(tmp_path):
    good = write(tmp_path / "good", dump(taps(*WANTED)))
    bad = write(tmp_path / "bad", dump(each(late, (3, 0, 16))))
    thin = write(tmp_path / "thin", dump(taps(*WANTED), sequences=[0], rows=4))
    code, out = run(good, "--states", REFERENCE, "--wanted", "0,3,16")
    assert (code, out.split()[0]) == (0, "SAME")
    assert run(thin, "--states", REFERENCE)[0] == 3
    code, out = run(bad, "--states", REFERENCE, "--wanted", "0,3,16", "--json")
    told = json.loads(out)
    assert code == 1
    assert told["outcome"] == "findings"
    assert told["first_differing"] == "W102"
    assert [finding["id"] for finding in told["findings"]] == ["W102", "W115"]
    assert set(told) >= {"schema_version", "slots", "findings", "not_evaluated", "provenance"}
    for number, slot in enumerate(told["slots"]):
        assert slot["slot"] == number
        assert slot["shift"] == 1
        assert set(slot["error"]) == {"median", "max", "first"}
        assert slot["error"]["median"] < slot["floor"] < slot["runner_up"]["median"]
    code, out = run(bad, "--states", REFERENCE, "--trained", good)
    assert code == 1
    assert out.startswith("DIFFERS")
    assert "trained 0" in out
    assert max(map(len, out.splitlines())) <= max(100, len(str(bad)) + 120)


def test_a_states_file_is_a_dump_too_and_its_header_is_what_is_wanted():
    twin = ROWS / "bfloat16.safetensors"
    code, out = run(twin, "--states", REFERENCE)
    assert (code, out.split()[0]) == (0, "SAME")


def test_bad_input(tmp_path):
    good = write(tmp_path / "good", dump(taps(*WANTED)))
    assert run(good, "--states", tmp_path / "none")[0] == 2
    assert run(tmp_path / "none", "--states", REFERENCE)[0] == 2
    code, told = run(good, "--states", REFERENCE, "--wanted", "0,3")
    assert code == 2
    assert "expected 3 boundaries" in told
    assert run(good, "--states", REFERENCE, "--wanted", "0,3,99")[0] == 2
    assert run(good, "--states", REFERENCE, "--noise", good / "0.safetensors")[0] == 2


def test_another_width(tmp_path):
    narrow = write(tmp_path / "narrow", dump(lambda h, _: [h[0], h[3][:, :500]]))
    code, out = run(narrow, "--states", REFERENCE, "--json")
    (finding,) = json.loads(out)["findings"]
    assert code == 1
    assert finding["id"] == "S107"
    assert "1076" in finding["evidence"]
    assert run(narrow, "--states", REFERENCE)[0] == 1
    good = write(tmp_path / "good", dump(taps(*WANTED)))
    assert json.loads(run(good, "--states", REFERENCE, "--trained", narrow, "--json")[1])[
        "first_differing"
    ] == "S107"  # fmt: skip


def test_the_terminal_tells_findings_slots_and_what_was_not_run(reference):
    found = said(reference, dump(taps(3, 16, 29)))
    lines = list(render(found))
    assert lines[0].startswith("DIFFERS  first differing wire: taps (W103)")
    assert max(map(len, lines)) <= 100
    text = " ".join(" ".join(lines).split())
    assert "slot 2 h[29]: is h[29] as it is" in text
    assert f"{found.slots[2].median:.1e} (median)" in text
    assert "not run" in text
