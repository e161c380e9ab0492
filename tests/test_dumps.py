"""Dumps of hidden states: what each is read as, what its slots are, and what replay makes of them.

The files under tests/data/dumps were written by the producers where they install; its README says
which. Expected values come from the producers' own readers, from safetensors and torch directly,
from states captured with transformers, and from counts by hand.
"""

import gzip
import io
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
import tiny
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from produce_dumps import DUMPS, PROMPTS, requests
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from draftprobe.cli import app
from draftprobe.dialects.ids import KEY
from draftprobe.errors import InputError
from draftprobe.measure.replay import observe
from draftprobe.report.dump import names
from draftprobe.states.capture import Item, Plan, capture
from draftprobe.states.dumps import FORMATS, Options, arrow, open_dump
from draftprobe.states.dumps.identify import identify, name_by, relative_error
from draftprobe.states.dumps.record import Slot, name_slots, settle
from draftprobe.states.dumps.write import counted, facts_from, facts_of, write_states
from draftprobe.states.prompts import read_tokens
from draftprobe.states.record import open_states
from draftprobe.states.target import load_target

TARGET = DUMPS / "tiny_target"
COMMAND = [sys.executable, "-c", "from draftprobe.cli import main; main()", "states"]
HELD = {  # format -> path, boundaries of all slots, how far rounding may take a state
    "vllm": ("vllm", (0, 2, 3, 4), 1e-5),
    "speculators": ("speculators", (0, 2, 3, 4), 1e-5),
    "fp8": ("fp8", (0, 2, 3, 4), 0.05),
    "specforge": ("specforge", (1, 2, 3, "N"), 2.0**-8),
    "modelopt": ("modelopt", (1, 2, 3, "N"), 1e-5),
    "sglang": ("sglang.jsonl", (1, 2, 3), 1e-5),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """States of the same tokens, captured with transformers by our own hooks."""
    path = tmp_path_factory.mktemp("reference") / "states.safetensors"
    target = load_target(TARGET)
    items = [Item(tuple(t.tolist()), tuple(bool(m) for m in mask)) for t, mask in requests()]
    capture(target, items, Plan(target.structure.boundaries(), "float32", 2, 0), path)
    return open_states(path)


def opened(name, **options):
    if name == "speculators":
        need_arrow()
    return open_dump(DUMPS / HELD[name][0], Options(**{"hidden": 32} | options))


def need_arrow():
    pytest.importorskip("pyarrow", reason="the dataset of speculators needs pyarrow")


def run(*arguments):
    """Exit code, stdout and stderr; an InputError is what the command's frame makes of it."""
    done = CliRunner().invoke(app, ["states", *map(str, arguments)])
    if isinstance(done.exception, InputError):
        return 2, done.stdout, f"error: {done.exception}"
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def refused(*arguments, because):
    code, out, error = run(*arguments)
    assert (code, out) == (2, ""), error
    assert error.startswith("error: ")
    assert because in error
    assert "Traceback" not in error


# What is read


@pytest.mark.parametrize("name", HELD)
def test_every_slot_is_the_state_that_transformers_had(name, reference):
    _, boundaries, bound = HELD[name]
    seen = 0
    for one in opened(name).stream():
        number = next(
            i for i, (tokens, _) in enumerate(requests()) if torch.equal(tokens, one.tokens)
        )
        recorded = reference.sequence(number, boundaries)
        for slot, boundary in zip(one.slots, boundaries, strict=True):
            n = len(one.tokens) - 1
            assert relative_error(slot[:n].float(), recorded.h[boundary]).max() < bound
        seen += 1
    assert seen == 3


@pytest.mark.parametrize("name", ["vllm", "speculators", "fp8", "specforge", "modelopt", "sglang"])
def test_format_is_recognised_by_content(name):
    assert opened(name).format == ("speculators" if name == "fp8" else name)


def test_what_the_formats_say_of_their_slots():
    said = {name: [slot.boundary for slot in opened(name).slots] for name in HELD}
    assert said == {
        "vllm": [None] * 4,
        "speculators": [None, None, None, "L"],
        "fp8": [None, None, None, "L"],
        "specforge": [None, None, None, "N"],
        "modelopt": [None] * 4,
        "sglang": [None] * 3,
    }


def test_speculators_own_dataset_reads_the_same():
    data = pytest.importorskip("speculators.train.data", reason="speculators is not installed")
    folder = DUMPS / "speculators"
    rows = data.ArrowDataset(128, folder, on_missing="raise", hidden_states_dtype=torch.float32)
    ours = list(opened("speculators").stream())
    assert len(rows) == len(ours) == 3
    for number, one in enumerate(ours):
        row = rows[number]
        assert torch.equal(row["input_ids"], one.tokens)
        assert torch.equal(row["loss_mask"].bool(), one.mask)
        assert torch.equal(row["hidden_states"], torch.cat(one.slots[:-1], dim=-1))
        assert torch.equal(row["verifier_last_hidden_states"], one.slots[-1])


def test_fp8_is_scaled_as_hs_connectors_does():
    fp8 = pytest.importorskip("hs_connectors.fp8_utils", reason="hs_connectors is not installed")
    for number, one in enumerate(opened("fp8").stream()):
        file = load_file(DUMPS / "fp8" / f"hs_{number}.safetensors")
        states = fp8.dequantize_fp8_tensor(
            file["hidden_states"], file[fp8.SCALES_KEY], torch.float32
        )
        assert torch.equal(torch.stack(one.slots, dim=1), states)
        assert one.dtype == "float8_e4m3fn"


def peer(monkeypatch, module, wheel):
    """A module of a wheel that does not install beside torch here, but whose code needs no more.

    ``DRAFTPROBE_PEERS`` lists unpacked wheels: specforge 0.2.0, nvidia_modelopt 0.47.0 (omegaconf).
    """
    for folder in filter(None, os.environ.get("DRAFTPROBE_PEERS", "").split(os.pathsep)):
        monkeypatch.syspath_prepend(folder)
    return pytest.importorskip(module, reason=f"{wheel} is not here: name it in DRAFTPROBE_PEERS")


def test_specforge_own_reader_takes_the_same_files(monkeypatch):
    data = peer(monkeypatch, "specforge.algorithms.eagle3.data", "specforge 0.2.0")
    store = peer(monkeypatch, "specforge.runtime.data_plane.feature_store", "specforge 0.2.0")
    reader = peer(monkeypatch, "specforge.runtime.data_plane.offline_reader", "specforge 0.2.0")
    files = reader.list_feature_files(str(DUMPS / "specforge"))
    assert len(files) == 3  # the gzipped one, too
    for file, one in zip(files, opened("specforge").stream(), strict=True):
        sample = data.normalize_offline_sample(store.load_feature_file(file), 128)
        assert torch.equal(sample["input_ids"][0], one.tokens)
        assert torch.equal(sample["hidden_state"][0], torch.cat(one.slots[:-1], dim=-1))
        assert torch.equal(sample["target"][0], one.slots[-1])
        assert torch.equal(sample["loss_mask"][0, :-1].bool(), one.mask[:-1])


def test_files_of_specforge_own_store(monkeypatch, tmp_path):
    """The wheel's writer of .ckpt files; the script that fills it needs SGLang on a GPU."""
    store = peer(monkeypatch, "specforge.runtime.data_plane.feature_store", "specforge 0.2.0")
    source = DUMPS / "specforge/rows_0-5000/data_0.ckpt"
    held = torch.load(source, weights_only=True)
    store.LocalFeatureStore(dump_dir=str(tmp_path)).put(held, sample_id="a", metadata={})
    (wanted,), (one,) = (list(open_dump(path).stream()) for path in (source, tmp_path))
    assert torch.equal(one.tokens, wanted.tokens)
    assert all(torch.equal(a, b) for a, b in zip(one.slots, wanted.slots, strict=True))


def test_modelopt_own_dataset_reads_the_same(monkeypatch):
    utils = peer(monkeypatch, "modelopt.torch.speculative.eagle.utils", "nvidia_modelopt 0.47.0")
    files = sorted((DUMPS / "modelopt").glob("*.pt"))
    rows = utils.OfflineSupervisedDataset([str(file) for file in files], answer_only_loss=True)
    for number, one in enumerate(opened("modelopt").stream()):
        row = rows[number]
        assert torch.equal(row["input_ids"], one.tokens)
        assert torch.equal(row["loss_mask"].bool(), one.mask)
        assert torch.equal(row["aux_hidden_states"], torch.cat(one.slots[:-1], dim=-1))
        assert torch.equal(row["base_model_hidden_states"], one.slots[-1])
        assert row["base_hidden_prenorm"] is False


def test_sglang_rows_are_chunks_then_tokens_and_the_mask_is_the_answer():
    for (tokens, mask), one in zip(requests(), opened("sglang").stream(), strict=True):
        assert torch.equal(one.tokens, tokens)
        assert torch.equal(one.mask, mask.bool())
        assert one.rows == len(tokens) - 1


def test_gzip_reads_as_the_plain_file(tmp_path):
    packed = DUMPS / "specforge/rows_0-5000/data_2.ckpt.gz"
    (tmp_path / "data_2.ckpt").write_bytes(gzip.decompress(packed.read_bytes()))
    (one,), (other,) = (list(open_dump(p).stream()) for p in (packed, tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(one.slots, other.slots, strict=True))


def test_files_are_in_natural_order(tmp_path):
    for number in (10, 9, 2):
        tokens = torch.tensor([number, 1, 2])
        save_file(
            {"hidden_states": torch.ones(3, 2, 4), "token_ids": tokens},
            tmp_path / f"hs_{number}.safetensors",
        )
    assert [int(one.tokens[0]) for one in open_dump(tmp_path).stream()] == [2, 9, 10]


def test_older_lists_of_speculators(tmp_path):
    states = [torch.full((5, 4), float(i)) for i in range(4)]
    data = {"input_ids": torch.arange(5), "loss_mask": torch.ones(5), "hidden_states": states}
    torch.save(data, tmp_path / "data_0.pt")
    dump = open_dump(tmp_path)
    assert dump.format == "speculators-list"
    assert [slot.role for slot in dump.slots] == ["aux", "aux", "aux", "last"]
    (one,) = dump.stream()
    assert [float(slot[0, 0]) for slot in one.slots] == [0, 1, 2, 3]


def test_modelopt_prenorm_flag_and_trtllm_list(tmp_path):
    data = {
        "input_ids": torch.arange(5),
        "hidden_state": torch.ones(5, 4),
        "aux_hidden_states": torch.ones(5, 12),
        "id": 3,
    }
    torch.save([data], tmp_path / "dp_0_1.pt")
    dump = open_dump(tmp_path / "dp_0_1.pt")
    assert (dump.format, dump.masked) == ("modelopt", 0)
    assert dump.slots[-1].boundary is None
    flagged = data | {"hidden_states_prenorm": True}
    torch.save(flagged, tmp_path / "flag.pt")
    assert open_dump(tmp_path / "flag.pt").slots[-1].boundary == "L"


def test_plain_tensors_with_ids_in_another_file():
    folder = DUMPS / "plain"
    tensors = load_file(folder / "two.safetensors")
    for path, options in (
        (folder / "two.safetensors", Options(hidden=32)),
        (folder / "two.npy", Options(hidden=32, tokens=folder / "two.tokens.npy")),
    ):
        (one,) = open_dump(path, options).stream()
        assert torch.equal(torch.cat(one.slots, dim=-1), tensors["states"])
        assert torch.equal(one.tokens, tensors["tokens"])


def test_ids_lie_beside_an_array(tmp_path):
    """The files of the repository: 17 tokens in two.tokens.npy; and a folder of such pairs."""
    reference = load_file(DUMPS / "plain/two.safetensors")
    names = [name for name, value in reference.items() if value.is_floating_point()]
    (states,) = (reference[name] for name in names)
    for number in (0, 1, 10):
        shutil.copy(DUMPS / "plain/two.npy", tmp_path / f"{number}.npy")
        shutil.copy(DUMPS / "plain/two.tokens.npy", tmp_path / f"{number}.tokens.npy")
    for path, count in ((DUMPS / "plain/two.npy", 1), (tmp_path, 3)):
        dump = open_dump(path, Options(hidden=32))
        assert (len(dump), dump.lengths[0]) == (count, 17)
        assert not any("left out" in note for note in dump.layout.notes)
        for one in dump.stream():
            assert torch.equal(torch.cat(one.slots, -1), states)


def test_a_list_of_dictionaries_is_as_many_sequences(tmp_path):
    torch.manual_seed(0)
    made = [{"input_ids": torch.arange(n), "hidden_states": torch.randn(n, 6)} for n in (5, 3, 9)]
    torch.save(made, tmp_path / "x.pt")
    dump = open_dump(tmp_path / "x.pt", Options(hidden=2))
    assert (dump.lengths, len(dump.slots)) == ((5, 3, 9), 3)
    for one, wanted in zip(dump.stream(), made, strict=True):
        assert torch.equal(torch.cat(one.slots, -1), wanted["hidden_states"])
        assert torch.equal(one.tokens, wanted["input_ids"])
    torch.save([*made, {"input_ids": torch.arange(4)}], tmp_path / "x.pt")
    assert len(open_dump(tmp_path / "x.pt", Options(hidden=2))) == 3


@pytest.mark.parametrize("turn", [
    lambda h: h, lambda h: h.transpose(0, 1), lambda h: h.transpose(0, 1)[:, None],
    lambda h: tuple(h.unbind(1)), lambda h: [slot[None] for slot in h.unbind(1)],
])  # fmt: skip
def test_the_axis_of_the_tokens_is_found(tmp_path, turn):
    """[T, n, H], [n, T, H], [n, 1, T, H], and transformers' own tuples of [T, H] or [1, T, H]."""
    states = torch.randn(9, 3, 2)
    torch.save({"input_ids": torch.arange(9), "hidden_states": turn(states)}, tmp_path / "x.pt")
    (one,) = open_dump(tmp_path / "x.pt", Options(hidden=2)).stream()
    assert torch.equal(torch.stack(one.slots, 1), states)


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 3, 2), (3, 4, 2)])
def test_an_axis_that_may_be_either_is_asked_for(tmp_path, shape):
    made = {"input_ids": torch.arange(4), "hidden_states": torch.randn(shape)}
    torch.save(made, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", because="either axis of states")


def test_plain_entries_named_in_their_order(tmp_path):
    data = {name: torch.full((3, 4), float(i)) for i, name in enumerate("abc")}
    torch.save(data | {"ids": torch.arange(3), "keep": torch.tensor([0, 1, 1])}, tmp_path / "x.pt")
    options = Options(states_key=("c", "a"), tokens_key="ids", mask_key="keep")
    (one,) = open_dump(tmp_path / "x.pt", options).stream()
    assert [float(slot[0, 0]) for slot in one.slots] == [2, 0]
    assert one.mask.tolist() == [False, True, True]
    with pytest.raises(InputError, match="--states-key"):
        open_dump(tmp_path / "x.pt", Options(tokens_key="ids"))


def test_our_own_states_are_a_dump_too(reference, tmp_path):
    dump = open_dump(reference.path)
    assert dump.format == "draftprobe"
    assert [slot.boundary for slot in dump.slots] == [0, 1, 2, 3, 4, "N"]
    assert dump.lengths == reference.lengths
    bare = tmp_path / "named-otherwise"
    bare.write_bytes(reference.path.read_bytes())
    assert open_dump(bare).format == "draftprobe"
    with pytest.raises(InputError, match="is a states file already"):
        write_states(dump, tmp_path / "x", facts_of(TARGET), "marked", None)


# Which boundary is which


@pytest.mark.parametrize("name", HELD)
def test_unnamed_slots_are_identified(name, reference):
    dump = settle(opened(name), 4)
    named = name_by(dump, identify(dump, reference))
    assert tuple(slot.boundary for slot in named.slots) == HELD[name][1]


class _Made:
    """A dump of one sequence, made of tensors."""

    @staticmethod
    def dump(tmp_path, states, dtype=torch.float32):
        tokens = torch.arange(len(states))
        save_file(
            {"hidden_states": states.to(dtype).contiguous(), "token_ids": tokens},
            tmp_path / "request.safetensors",
        )
        return open_dump(tmp_path / "request.safetensors")

    @staticmethod
    def reference(tmp_path, h):
        """States by boundary, [n - 1, 2] each."""
        n = len(next(iter(h.values()))) + 1
        path = tmp_path / "reference.safetensors"
        facts = {
            "source": "dataset", "model": "made", "model_type": "llama", "config_digest": "",
            "layers": 4, "hidden_size": 2, "vocab_size": 300, "dtype": "float32",
            "compute": "float32", "batch": 1, "template": None, "kinds": [""], "versions": {},
            "format": "draftprobe-states", "version": 1,
        }  # fmt: skip
        tensors = {f"h[{tap}]": state for tap, state in h.items()} | {
            "tokens": torch.arange(n, dtype=torch.int32),
            "loss_mask": torch.ones(n, dtype=torch.uint8),
            "lengths": torch.tensor([n], dtype=torch.int32),
        }
        save_file(tensors, path, metadata={"draftprobe": json.dumps(facts)})
        return open_states(path)


def test_errors_counted_by_hand(tmp_path):
    h1 = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]])
    h2 = torch.tensor([[6.0, 8.0], [0.0, 4.0], [0.0, 1.0]])
    x = h1 + torch.tensor([[0.0, 5.0], [1.0, 0.0], [0.0, 0.0]])
    slot = torch.cat([x, torch.zeros(1, 2)])[:, None]
    (match,) = identify(_Made.dump(tmp_path, slot), _Made.reference(tmp_path, {1: h1, 2: h2}))
    # but for the first token, against h[1]: 1/2, 0/1; against h[2]: |(1, -2)|/4, |(1, -1)|/1
    first, second = match.errors
    assert (first.boundary, first.median, first.largest) == (1, 0.5, 0.5)
    assert second.boundary == 2
    assert second.median == pytest.approx(2**0.5)
    assert second.largest == pytest.approx(2**0.5)
    assert (match.tokens, match.boundary) == (2, None)


def test_the_first_token_does_not_decide(tmp_path):
    """Pooled over tokens, h[2] would be nearer by far; token by token it is h[1] but for one."""
    torch.manual_seed(0)
    h1 = torch.randn(40, 2)
    h2 = h1 + 0.5 * torch.randn(40, 2)
    h1[0] = torch.tensor([3000.0, 0.0])
    h2[0] = torch.tensor([2900.0, 0.0])
    x = h1.clone()
    x[0] = h2[0]
    assert (x - h2).norm() / h2.norm() < (x - h1).norm() / h1.norm()
    slot = torch.cat([x, torch.zeros(1, 2)])[:, None]
    (match,) = identify(_Made.dump(tmp_path, slot), _Made.reference(tmp_path, {1: h1, 2: h2}))
    assert match.boundary == 1
    assert match.errors[0].largest == 0


@pytest.mark.parametrize(("tokens", "wanted"), [(2, None), (8, None), (9, 1)])
def test_few_tokens_name_nothing(tmp_path, tokens, wanted):
    """Eight are needed beside the first, which is the same at every boundary of many models."""
    torch.manual_seed(0)
    h1 = torch.randn(tokens, 2)
    h2 = h1 + torch.randn(tokens, 2)
    slot = torch.cat([h1, torch.zeros(1, 2)])[:, None]
    (match,) = identify(_Made.dump(tmp_path, slot), _Made.reference(tmp_path, {1: h1, 2: h2}))
    assert match.boundary == wanted
    assert ("8 are needed" in str(match)) == (wanted is None)


@pytest.mark.parametrize(("dtype", "good"), [("float8_e4m3fn", 0.05), ("float8_e5m2", 0.1)])
def test_eight_bits_excuse_no_neighbour(tmp_path, dtype, good):
    """Storage rounds once; 0.24 and 0.36 are what neighbours of a 30-layer model differ by."""
    torch.manual_seed(2)
    h2 = torch.randn(200, 2)

    def off(size):
        step = torch.randn(200, 2)
        return h2 + size * h2.norm(dim=-1, keepdim=True) * step / step.norm(dim=-1, keepdim=True)

    for size, wanted in ((good, 2), (0.24, None), (0.36, None)):
        slot = torch.cat([off(size), torch.zeros(1, 2)])[:, None]
        dump = replace(_Made.dump(tmp_path, slot), dtype=dtype)
        made = _Made.reference(tmp_path, {1: off(2.0), 2: h2, 3: off(2.0)})
        assert [m.boundary for m in identify(dump, made)] == [wanted], size


def test_without_neighbours_in_the_reference_less_is_excused(tmp_path):
    """h[3] alone cannot tell that the slot is h[4], 0.015 away; stored bfloat16 is told."""
    torch.manual_seed(3)
    h3 = torch.randn(200, 2)
    step = torch.randn(200, 2)
    h4 = h3 + 0.015 * h3.norm(dim=-1, keepdim=True) * step / step.norm(dim=-1, keepdim=True)
    for state, held, wanted in (
        (h4, {3: h3}, None), (h3, {3: h3}, 3), (h4, {3: h3, 4: h4}, 4), (h4, {2: -h3, 3: h3}, None),
    ):  # fmt: skip
        slot = torch.cat([state, torch.zeros(1, 2)])[:, None]
        dump = _Made.dump(tmp_path, slot, torch.bfloat16)
        assert [m.boundary for m in identify(dump, _Made.reference(tmp_path, held))] == [wanted]


@pytest.mark.parametrize(
    ("dtype", "noise", "apart", "wanted"),
    [
        (torch.float32, 1e-6, 0.2, 3),  # another program's order of sums
        (torch.float32, 1e-3, 0.2, None),  # more than float32 explains
        (torch.bfloat16, 1e-2, 0.2, 3),  # computed in bfloat16
        (torch.bfloat16, 1e-2, 0.02, None),  # the neighbour is as near
        (torch.bfloat16, 0.1, 0.9, None),  # another target, or a part of the residual only
    ],
)
def test_unknown_stays_unknown(tmp_path, dtype, noise, apart, wanted):
    torch.manual_seed(1)
    h3 = torch.randn(200, 2)

    def moved(size):
        step = torch.randn(200, 2)
        return h3 + size * h3.norm(dim=-1, keepdim=True) * step / step.norm(dim=-1, keepdim=True)

    slot = torch.cat([moved(noise), torch.zeros(1, 2)])[:, None]
    made = _Made.reference(tmp_path, {2: moved(apart), 3: h3, 4: moved(apart)})
    (match,) = identify(_Made.dump(tmp_path, slot, dtype), made)
    assert match.boundary == wanted
    assert match.errors[0].boundary == 3 or noise > apart / 2
    if wanted is None:
        assert "no boundary matches" in str(match)


def test_same_states_twice_are_no_match(tmp_path):
    torch.manual_seed(0)
    h = torch.randn(10, 2)
    slot = torch.cat([h, torch.zeros(1, 2)])[:, None]
    (match,) = identify(_Made.dump(tmp_path, slot), _Made.reference(tmp_path, {1: h, 2: h.clone()}))
    assert match.boundary is None


def test_the_comparison_outweighs_a_format_but_not_in_silence(reference, tmp_path):
    """A dump in speculators' layout whose last slot is h[N], as transformers' tuples give it."""
    states = torch.stack([*reference.sequence(0, [0, 2, "N"]).h.values()], dim=1)
    states = torch.cat([states, states[-1:]])
    tokens = reference.sequence(0, [0]).tokens
    save_file({"hidden_states": states, "token_ids": tokens}, tmp_path / "hs_0.safetensors")
    dump = settle(open_dump(tmp_path), 4)
    assert dump.slots[-1].boundary == 4
    named = name_by(dump, identify(dump, reference))
    assert [slot.boundary for slot in named.slots] == [0, 2, "N"]
    assert "NOT h[4]" in named.slots[-1].how
    given = name_slots(dump, (0, 3, 4))
    with pytest.raises(InputError, match=r"expected h\[3\] as --boundaries says, found h\[2\]"):
        name_by(given, identify(given, reference))


def test_boundaries_can_be_given_with_or_without_the_last(tmp_path):
    dump = opened("specforge")
    assert [s.boundary for s in name_slots(dump, (1, 2, 3)).slots] == [1, 2, 3, "N"]
    assert [s.boundary for s in name_slots(dump, (1, 2, 3, 4)).slots] == [1, 2, 3, 4]
    with pytest.raises(InputError, match="expected 4 boundaries, one per slot, or 3"):
        name_slots(dump, (1, 2))
    with pytest.raises(InputError, match=r"h\[5\] .* does not exist"):
        settle(name_slots(dump, (1, 2, 5)), 4)


# The founding case


def test_the_founding_dump_is_read_and_named(reference):
    code, out, error = run(DUMPS / "founding.pt", "--reference", reference.path)
    assert code == 0, error
    assert (
        "a trainer feeds fc with the first 3 of 4 states, h[0], h[1], h[3], and takes the last, "
        "h[N], the final state after the final norm" in out
    )


def test_the_founding_dump_with_the_state_before_the_norm(reference, tmp_path):
    """The same dump, but for the last state: h[L] and h[N] are told apart."""
    data = torch.load(DUMPS / "founding.pt", weights_only=True)
    states = data["hidden_states"].clone()
    states[:-1, -1] = reference.sequence(0, [4]).h[4]
    torch.save(data | {"hidden_states": states}, tmp_path / "x.pt")
    _, out, _ = run(tmp_path / "x.pt", "--reference", reference.path)
    assert "the last, h[4], the final state before the final norm" in out


# From a dump to replay


@pytest.mark.parametrize("name", HELD)
def test_replay_gives_the_figures_of_our_own_states(name, reference, tmp_path, monkeypatch):
    """The same tokens captured with transformers give the same drafts and likelihoods."""
    _, boundaries, bound = HELD[name]
    shape = replace(tiny.SHAPE, hidden=32, target_hidden=32, vocabulary=64)
    monkeypatch.setattr(tiny, "SHAPE", shape)
    dump = settle(opened(name), 4)
    named = name_by(dump, identify(dump, reference))
    out = tmp_path / "states.safetensors"
    count = "marked" if dump.masked else "all"
    write_states(named, out, facts_of(TARGET), count, None)
    states = open_states(out)
    made = tiny.drafter(taps=boundaries[:3])
    order = [
        next(i for i in range(3) if torch.equal(one.tokens, reference.sequence(i, [0]).tokens))
        for one in states.sequences([])
    ]
    ours = _ordered(reference, order, boundaries[:3], count, tmp_path)
    mine, theirs = (observe(made, s, 3) for s in (ours, states))
    assert torch.equal(mine.slot, theirs.slot)
    assert torch.equal(mine.valid, theirs.valid)
    valid = mine.valid & mine.inside
    assert valid.sum() >= (60 if count == "marked" else 100) * 0.3
    apart = (mine.log_likelihood - theirs.log_likelihood)[valid].abs()
    if bound < 1e-4:
        assert apart.max() < 1e-4
        assert torch.equal(mine.correct, theirs.correct)
    else:
        assert apart.median() < 10 * bound
        assert (mine.correct != theirs.correct)[valid].float().mean() < 0.1


def _ordered(reference, order, taps, count, tmp_path):
    """The reference's sequences in the dump's order, masked alike."""
    parts = [reference.sequence(i, taps) for i in order]
    tensors = {f"h[{tap}]": torch.cat([one.h[tap] for one in parts]) for tap in taps}
    masks = [one.mask if count == "marked" else torch.ones_like(one.mask) for one in parts]
    tensors |= {
        "tokens": torch.cat([one.tokens for one in parts]).int(),
        "loss_mask": torch.cat(masks).to(torch.uint8),
        "lengths": torch.tensor([len(one.tokens) for one in parts], dtype=torch.int32),
    }
    from safetensors import safe_open

    with safe_open(reference.path, "pt") as file:
        metadata = file.metadata()
    path = tmp_path / "ordered.safetensors"
    save_file(tensors, path, metadata=metadata)
    return open_states(path)


def test_masks_by_hand():
    """Tokens 3..5 are the answer. Marked: these count. SpecForge counts slot t where x_t is marked,
    and it predicts x_{t+2}: 5, 6, 7. speculators and ModelOpt where x_{t+1} is: 4, 5, 6."""
    mask = torch.tensor([0, 0, 0, 1, 1, 1, 0, 0]).bool()
    one = next(opened("specforge").stream())
    one = replace(one, tokens=torch.arange(8), mask=mask)

    def counts(count, lag):
        return counted(one, count, lag, "here").nonzero().flatten().tolist()

    assert counts("marked", 2) == [3, 4, 5]
    assert counts("trained", opened("specforge").layout.lag) == [5, 6, 7]
    assert counts("trained", opened("speculators").layout.lag) == [4, 5, 6]
    assert counts("trained", opened("modelopt").layout.lag) == [4, 5, 6]
    assert counts("all", None) == list(range(8))
    with pytest.raises(InputError, match="no trainer"):
        counts("trained", opened("vllm").layout.lag)


def test_trained_mask_is_what_speculators_counts():
    """shift_batch pairs slot t, which predicts x_{t+2}, with mask[t + 1]."""
    data = pytest.importorskip("speculators.models.eagle3.data", reason="speculators is missing")
    for one in opened("speculators").stream():
        batch = {
            "input_ids": one.tokens, "hidden_states": one.slots[0], "loss_mask": one.mask,
            "verifier_last_hidden_states": one.slots[-1],
            "lengths": torch.tensor([len(one.tokens)]),
            "position_ids": torch.arange(len(one.tokens)),
        }  # fmt: skip
        shifted = data.shift_batch(batch)
        slots = shifted["loss_mask"].nonzero().flatten()
        wanted = [t + 2 for t in slots.tolist() if t + 2 < len(one.tokens)]
        ours = counted(one, "trained", opened("speculators").layout.lag, "here")
        assert ours.nonzero().flatten().tolist() == wanted


def test_written_states_say_where_they_come_from(tmp_path):
    out = tmp_path / "states.safetensors"
    code, text, error = run(
        DUMPS / "specforge", "--boundaries", "1,2,3", "--target", TARGET, "--out", out
    )
    assert code == 0, error
    assert "wrote" in text
    states = open_states(out)
    p = states.provenance
    assert states.boundaries == (1, 2, 3, "N")
    assert (p.source, p.layers, p.hidden_size, p.vocab_size) == ("dataset", 4, 32, 64)
    assert (p.model_type, p.dtype, p.compute) == ("llama", "bfloat16", "unknown")
    assert "SpecForge" in p.versions["dump"]
    assert int(states.mask.sum()) == sum(int(mask.sum()) for _, mask in requests())
    assert sorted(tmp_path.iterdir()) == [out]
    refused(
        DUMPS / "specforge", "--boundaries", "1,2,3", "--target", TARGET, "--out", out,
        because="not overwritten",
    )  # fmt: skip


def test_the_references_mask_is_taken(reference, tmp_path):
    """vLLM's files hold the same three texts as the reference, without their masks."""
    out = tmp_path / "out.safetensors"
    code, told, error = run(
        DUMPS / "vllm", "--reference", reference.path, "--out", out, "--compute", "float32"
    )
    assert code == 0, error
    assert "mask: 3 of 3 sequences have one" in told
    written = open_states(out)
    for one in written.sequences([0]):
        (mask,) = (m for tokens, m in requests() if torch.equal(tokens, one.tokens))
        assert torch.equal(one.mask, mask.bool())
    assert written.provenance.compute == "float32"
    short = tmp_path / "short.safetensors"  # a reference of the prompts alone masks nothing
    target = load_target(TARGET)
    items = [Item(tuple(t.tolist()[:12]), (True,) * 12) for t, _ in requests()]
    capture(target, items, Plan(target.structure.boundaries(), "float32", 2, 0), short)
    code, told, _ = run(DUMPS / "vllm", "--reference", short)
    assert "mask: 0 of 3 sequences have one" in told


def test_ids_go_out_and_come_back_as_a_reference(reference, tmp_path):
    """The way that the command itself names: ids out, states of them captured, slots named."""
    out = tmp_path / "t.jsonl"
    code, told, error = run(DUMPS / "specforge", "--tokens-out", out)
    assert code == 0, error
    assert "draftprobe capture TARGET --tokens" in told
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    wanted = [(tokens.tolist(), mask.int().tolist()) for tokens, mask in requests()]
    assert [(line["input_ids"], line["loss_mask"]) for line in lines] == wanted
    refused(DUMPS / "specforge", "--tokens-out", out, because="is not overwritten")
    items = read_tokens(out, 100)
    target = load_target(TARGET)
    made = tmp_path / "r.safetensors"
    capture(target, items, Plan(target.structure.boundaries(), "float32", 2, 0), made)
    _, told, _ = run(DUMPS / "specforge", "--reference", made)
    assert "h[1]: compared with the reference" in told
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_is_missing_is_told_at_once(tmp_path):
    code, told, _ = run(DUMPS / "vllm")
    assert code == 0
    for word in ("boundaries of 4 slots", "--target with", "--mask all"):
        assert f"missing: {word}" in told or word in told
    last = told.splitlines()[-1]
    assert last == (
        f"next: draftprobe states {DUMPS / 'vllm'} --boundaries K0,K1,K2,K3 --target TARGET "
        "--mask all --out s.safetensors"
    )
    words = last.removeprefix("next: draftprobe states ").replace("K0,K1,K2,K3", "0,2,3,4")
    words = words.replace("TARGET", str(TARGET)).replace("s.safetensors", str(tmp_path / "s"))
    code, told, error = run(*words.split())
    assert code == 0, error
    assert "accuracy is lower than on answers alone" in told
    assert told.splitlines()[-1] == f"next: draftprobe replay DRAFTER --states {tmp_path / 's'}"
    out = tmp_path / "no"
    code, _, error = run(DUMPS / "vllm", "--out", out)
    assert code == 2
    assert all(word in error for word in ("--boundaries", "--target", "--mask all"))


def test_an_engine_that_would_feed_others_comes_first(reference, tmp_path):
    """The slots are h[1], h[2], h[3] by comparison; the config has vLLM feed h[0], h[1], h[3]."""
    config = {"architectures": ["LlamaForCausalLMEagle3"], KEY: [0, 1, 3]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = [DUMPS / "specforge", "--reference", reference.path, "--target", TARGET,
             "--draft", tmp_path, "--engine", "vllm"]  # fmt: skip
    code, told, _ = run(*words)
    assert code == 1
    first = told.splitlines()[0]
    assert first.startswith("MISMATCH: the dump holds h[1], h[2], h[3]; h[0], h[1], h[3] would be")
    code, told, _ = run(*words, "--json")
    assert (code, json.loads(told)["mismatch"]["served"]) == (1, [0, 1, 3])
    (tmp_path / "config.json").write_text(json.dumps(config | {KEY: [1, 2, 3]}))
    code, told, _ = run(*words)
    assert (code, "MISMATCH" in told) == (0, False)


def test_many_slots_are_one_line(reference):
    _, told, _ = run(reference.path)
    assert "slots 0-5  h[0]..h[4], h[N]: the states file's header" in told
    assert not any(line.startswith("missing") for line in told.splitlines())
    assert names(["h[0]", "h[1]", "h[3]", "unknown", "unknown"]) == "h[0], h[1], h[3], unknown"


def test_output_ids_are_one_lower():
    code, out, error = run(DUMPS / "specforge", "--output-ids", "-1,1,2", "--json")
    assert code == 0, error
    told = json.loads(out)
    assert [slot["boundary"] for slot in told["slots"]] == [0, 2, 3, "N"]
    assert (told["format"], told["sequences"], told["tokens"]) == ("specforge", 3, 59)
    assert told["tokens"] == sum(PROMPTS) + 3 * 11


def test_what_is_not_known_is_asked_for(tmp_path, reference):
    out = tmp_path / "out.safetensors"
    refused(DUMPS / "specforge", "--out", out, because="--target")
    refused(DUMPS / "specforge", "--out", out, "--target", TARGET, because="--boundaries")
    refused(
        DUMPS / "vllm", "--out", out, "--target", TARGET, "--boundaries", "0,2,3,4",
        because="--mask all",
    )  # fmt: skip
    refused(DUMPS / "sglang.jsonl", because="--target")
    alone = shutil.copy(DUMPS / "plain/two.npy", tmp_path / "alone.npy")
    refused(alone, "--target", TARGET, because="alone.tokens.npy")
    refused(DUMPS / "plain/two.safetensors", because="--target")
    refused(DUMPS / "vllm", "--format", "nonsense", because=", ".join(FORMATS))
    refused(DUMPS / "vllm", "--format", "modelopt", because="a dump of format modelopt")
    assert [path.name for path in tmp_path.iterdir()] == ["alone.npy"]


def test_an_unknown_last_state_is_left_out(tmp_path):
    dump = name_slots(opened("modelopt"), (1, 2, 3))
    taps = write_states(dump, tmp_path / "x.safetensors", facts_of(TARGET), "marked", None)
    assert taps == (1, 2, 3)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=4),
    taps=st.lists(st.sampled_from([0, 1, 2, 3, 4, "N"]), min_size=1, max_size=5, unique=True),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    wide=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_property_states_survive_bit_for_bit(tmp_path_factory, lengths, taps, dtype, wide, seed):
    """Any slots, sizes and dtypes in plain tensors: as states they are the same numbers."""
    folder = tmp_path_factory.mktemp("property")
    generator = torch.Generator().manual_seed(seed)
    texts = []
    for number, n in enumerate(lengths):
        h = torch.randn(n, len(taps), 32, generator=generator).to(dtype)
        tokens = torch.randint(64, (n,), generator=generator)
        mask = torch.randint(2, (n,), generator=generator)
        texts.append((h, tokens, mask))
        states = h.flatten(1) if wide else h
        held = {"x": states.contiguous(), "tokens": tokens, "mask": mask}
        save_file(held, folder / f"text{number}.safetensors")
    if not wide and len(taps) > 1 and {len(taps), len(taps) + 1} & set(lengths):
        with pytest.raises(InputError, match="either axis"):
            open_dump(folder, Options(hidden=32))
        return
    dump = name_slots(open_dump(folder, Options(hidden=32)), tuple(taps))
    out = folder / "states"
    write_states(dump, out, facts_of(TARGET), "marked", None)
    states = open_states(out)
    assert len(states) == len(texts)
    for one, (h, tokens, mask) in zip(states.sequences(taps), texts, strict=True):
        assert torch.equal(one.tokens, tokens)
        assert torch.equal(one.mask, mask.bool())
        for slot, tap in enumerate(taps):
            assert one.h[tap].dtype == dtype
            assert torch.equal(one.h[tap], h[:-1, slot])


def test_boundaries_from_what_an_engine_feeds_a_drafter(tmp_path):
    """Ids at the top level: vLLM reads them as boundaries (measured in the engine)."""
    (tmp_path / "config.json").write_text(
        json.dumps({"eagle_aux_hidden_state_layer_ids": [0, 2, 3], "draft_vocab_size": 8})
    )
    code, out, error = run(
        DUMPS / "specforge", "--draft", tmp_path, "--engine", "vllm", "--target", TARGET, "--json"
    )
    assert code == 0, error
    slots = json.loads(out)["slots"]
    assert [slot["boundary"] for slot in slots] == [0, 2, 3, "N"]
    assert "vllm@0.32.0's reading" in slots[0]["how"]
    refused(DUMPS / "specforge", "--engine", "vllm", because="give all three")


def test_slots_of_several_dtypes_become_float32(tmp_path):
    data = {"input_ids": torch.arange(3), "hidden_states": torch.ones(3, 4),
            "aux_hidden_states": torch.ones(3, 12).bfloat16()}  # fmt: skip
    torch.save(data, tmp_path / "a.pt")
    assert open_dump(tmp_path).dtype == "float32"


# Malformed, hostile, large


def hs(folder, name="hs_0.safetensors", n=4, **changes):
    tensors = {"hidden_states": torch.ones(n, 3, 8), "token_ids": torch.arange(n)} | changes
    tensors = {key: value for key, value in tensors.items() if value is not None}
    save_file(tensors, folder / name)


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"token_ids": torch.arange(9)}, r"expected states of one size, \[9, H\] or \[8, H\]"),
        ({"token_ids": torch.ones(4)}, "token ids as integers"),
        ({"token_ids": -torch.ones(4, dtype=torch.long)}, "from 0 on"),
        ({"hidden_states": torch.ones(4, 3, 8, dtype=torch.int32)}, "tensor of floats"),
        ({"hidden_states": torch.ones(4, 8)}, r"\[S, n, H\]"),
        ({"hidden_states": torch.ones(4, 3, 8).to(torch.float8_e4m3fn)}, "hidden_states_scales"),
        ({"hidden_states_scales": torch.ones(2, 1, 1)}, r"of shape \(4, 1, 1\)"),
    ],
)
def test_malformed_safetensors(tmp_path, changes, because):
    hs(tmp_path, **changes)
    with pytest.raises(InputError, match=because):
        open_dump(tmp_path)


def test_dumps_that_do_not_fit_together(tmp_path):
    hs(tmp_path)
    hs(tmp_path, "hs_1.safetensors", hidden_states=torch.ones(4, 4, 8))
    with pytest.raises(InputError, match="several dumps in one folder"):
        open_dump(tmp_path)


def test_states_that_are_nan(tmp_path, reference):
    hs(tmp_path, hidden_states=torch.full((4, 3, 32), torch.nan), token_ids=requests()[0][0][:4])
    dump = settle(open_dump(tmp_path), 4)
    with pytest.raises(InputError, match="NaN"):
        identify(dump, reference)
    with pytest.raises(InputError, match="NaN"):
        write_states(name_slots(dump, (0, 1)), tmp_path / "x", facts_from(reference), "all", None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hs_0.safetensors"]


def test_tokens_of_another_vocabulary_and_another_hidden_size(tmp_path, reference):
    hs(tmp_path, hidden_states=torch.ones(4, 3, 32), token_ids=torch.arange(62, 66))
    with pytest.raises(InputError, match="token ids below 64"):
        write_states(
            name_slots(settle(open_dump(tmp_path), 4), (0, 1)), tmp_path / "x",
            facts_of(TARGET), "all", None,
        )  # fmt: skip
    hs(tmp_path)
    with pytest.raises(InputError, match="hidden size 8"):
        identify(open_dump(tmp_path), reference)


def test_reference_of_other_tokens(tmp_path, reference):
    hs(tmp_path, hidden_states=torch.ones(4, 3, 32), token_ids=torch.tensor([60, 59, 58, 57]))
    with pytest.raises(InputError, match="found none that begin alike"):
        identify(open_dump(tmp_path), reference)


class _Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_a_pickle_never_runs(tmp_path):
    torch.save({"input_ids": _Evil(str(tmp_path / "ran"))}, tmp_path / "data_0.ckpt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(_Evil(str(tmp_path / "ran"))))
    for name, because in (("data_0.ckpt", "was not run"), ("old.pt", "torch.save")):
        done = subprocess.run([*COMMAND, tmp_path / name], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert because in done.stderr
        assert "Traceback" not in done.stderr
        assert "weights_only" not in done.stderr  # no word of how to run it all the same
    assert not (tmp_path / "ran").exists()


def test_numbers_in_a_pickle_are_bounded_and_lists_may_hold_themselves(tmp_path):
    torch.save({"input_ids": list(range(70_000, 4_500_000))}, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", because="at most 16 MiB beside")
    ring = []
    ring.append(ring)
    torch.save({"input_ids": ring, "hidden_states": torch.zeros(4, 2)}, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", because="found list of 1, the first list")
    torch.save(ring, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", because="Any script can write one")


def test_tensors_larger_than_their_file(tmp_path):
    vast = torch.ones(1).expand(10**6, 10**6)
    data = {"input_ids": torch.arange(3), "hidden_states": vast, "aux_hidden_states": vast}
    torch.save(data, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", because="lies in the file")
    torch.save(data | {"hidden_states": torch.eye(3).to_sparse()}, tmp_path / "y.pt")
    refused(tmp_path / "y.pt", because="lies in the file")


def test_packed_bombs(tmp_path):
    buffer = io.BytesIO()
    torch.save({"input_ids": torch.zeros(4 << 20, dtype=torch.long)}, buffer)
    bomb = tmp_path / "x.ckpt.gz"
    bomb.write_bytes(gzip.compress(buffer.getvalue(), 9))
    refused(bomb, because="100 times its size")
    with zipfile.ZipFile(buffer) as stored, zipfile.ZipFile(tmp_path / "x.pt", "w") as packed:
        for info in stored.infolist():
            packed.writestr(info.filename, stored.read(info), zipfile.ZIP_DEFLATED)
    refused(tmp_path / "x.pt", because="uncompressed entries")


def test_without_pyarrow_the_mask_is_asked_for(monkeypatch):
    arrow._open.cache_clear()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="needs pyarrow; install it"):
        open_dump(DUMPS / "speculators")


def test_arrow_beside_the_files(tmp_path):
    need_arrow()
    shutil.copytree(DUMPS / "speculators", tmp_path / "d")
    states = tmp_path / "d/hidden_states"
    (states / "hs_2.safetensors").rename(states / "hs_7.safetensors")
    with pytest.raises(InputError, match=r"expected a row 7 .* found 3 rows"):
        open_dump(tmp_path / "d")
    (states / "hs_7.safetensors").unlink()
    (states / "hs_0.safetensors").rename(tmp_path / "other")
    (states / "hs_1.safetensors").rename(states / "hs_0.safetensors")
    with pytest.raises(InputError, match="expected the tokens of row 0"):
        open_dump(tmp_path / "d")
    state = json.loads((tmp_path / "d/state.json").read_text())
    state["_data_files"] = [{"filename": "../../secret.arrow"}]
    (tmp_path / "d/state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match="inside the folder"):
        open_dump(tmp_path / "d")


def test_a_sample_that_is_not_its_row_is_left_out_as_the_trainer_does(tmp_path):
    """speculators' train/data.py skips it with a warning; the others are read, and it is told."""
    need_arrow()
    shutil.copytree(DUMPS / "speculators", tmp_path / "d")
    states = tmp_path / "d/hidden_states"
    shutil.copy(states / "hs_0.safetensors", states / "hs_1.safetensors")
    dump = open_dump(tmp_path / "d")
    kept = [load_file(states / f"hs_{i}.safetensors")["token_ids"] for i in (0, 2)]
    assert all(
        torch.equal(one.tokens, wanted) for one, wanted in zip(dump.stream(), kept, strict=True)
    )
    assert len(dump) == 2
    assert "1 of 3 sequences are left out" in dump.layout.notes[-1]
    assert "row 1" in dump.layout.notes[-1]
    shutil.copy(states / "hs_0.safetensors", states / "hs_2.safetensors")
    with pytest.raises(InputError, match=r"2 are left out.*row 1.*--dataset"):
        open_dump(tmp_path / "d")


def test_sglang_with_a_cached_prefix_or_without_ids(tmp_path):
    lines = (DUMPS / "sglang.jsonl").read_text().splitlines()
    response = json.loads(lines[0])
    response["meta_info"]["hidden_states"][0].pop()
    (tmp_path / "x.json").write_text(json.dumps(response))
    refused(tmp_path / "x.json", "--target", TARGET, because="--disable-radix-cache")
    response = json.loads(lines[0])
    prompt = [entry[1] for entry in response["meta_info"].pop("input_token_logprobs")]
    (tmp_path / "x.json").write_text(json.dumps(response))
    refused(tmp_path / "x.json", "--target", TARGET, because="input_ids")
    (tmp_path / "x.json").write_text(json.dumps(response | {"input_ids": prompt}))
    code, out, error = run(tmp_path / "x.json", "--target", TARGET, "--json")
    assert code == 0, error
    assert json.loads(out)["tokens"] == 19
    (tmp_path / "ids.jsonl").write_text(json.dumps({"input_ids": prompt}))
    (tmp_path / "x.json").write_text(json.dumps(response))
    code, out, error = run(
        tmp_path / "x.json", "--target", TARGET, "--tokens", tmp_path / "ids.jsonl"
    )
    assert code == 0, error


def test_files_that_are_no_dump_are_left_out_and_told(tmp_path):
    torch.save({"d2t": torch.zeros(4), "t2d": torch.ones(8)}, tmp_path / "vocab_mapping.pt")
    data = {"input_ids": torch.arange(3), "hidden_states": torch.ones(3, 4),
            "aux_hidden_states": torch.ones(3, 12)}  # fmt: skip
    torch.save(data, tmp_path / "a.pt")
    dump = open_dump(tmp_path)
    assert len(dump) == 1
    assert "vocab_mapping.pt" in dump.layout.notes[-1]
    (tmp_path / "link.pt").symlink_to(tmp_path / "a.pt")
    assert len(open_dump(tmp_path)) == 1


@pytest.mark.parametrize(
    "file",
    [
        "vllm/request_1.safetensors",
        "fp8/hs_1.safetensors",
        "specforge/rows_0-5000/data_1.ckpt",
        "specforge/rows_0-5000/data_2.ckpt.gz",
        "modelopt/conversation-1.pt",
        "sglang.jsonl",
        "founding.pt",
        "plain/two.npy",
    ],
)
def test_fuzz_mutated_bytes_are_read_or_refused(file, tmp_path):
    """Bytes changed, cut or doubled: a reading or an InputError, and nothing else."""
    source, rng, refusals = DUMPS / file, random.Random(file), []
    whole = source.read_bytes()
    options = Options(hidden=32, tokens=DUMPS / "plain/two.tokens.npy" if "npy" in file else None)
    path = tmp_path / source.name
    for _ in range(250):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 3, 30))):
            data[rng.randrange(min(len(data), rng.choice((200, len(data)))))] = rng.randrange(256)
        data = data[: rng.choice((len(data), rng.randrange(len(data))))]
        path.write_bytes(data)
        try:
            for one in open_dump(path, options).stream():
                assert one.rows <= 10**6
        except InputError as error:
            refusals.append(str(error))
    assert len(refusals) > 10
    assert all(str(path) in told for told in refusals)


def test_fuzz_arrow(tmp_path):
    need_arrow()
    shutil.copytree(DUMPS / "speculators", tmp_path / "d")
    path = tmp_path / "d/data-00000-of-00001.arrow"
    whole, rng, refusals = path.read_bytes(), random.Random(0), 0
    for number in range(60):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 3, 30))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        shutil.copytree(tmp_path / "d", tmp_path / str(number))
        (tmp_path / str(number) / path.name).write_bytes(data[: rng.randrange(1, len(data) + 1)])
        try:
            list(open_dump(tmp_path / str(number)).stream())
        except InputError:
            refusals += 1
    assert refusals > 10


def test_memory_is_bounded_by_a_sequence(tmp_path):
    """40 sequences of 4 MB each are converted in well under their 160 MB."""
    for number in range(40):
        states = torch.randn(128, 4, 2048)
        save_file(
            {"hidden_states": states, "token_ids": torch.arange(128)},
            tmp_path / f"hs_{number}.safetensors",
        )
    config = {"num_hidden_layers": 4, "hidden_size": 2048, "vocab_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = f"""
import resource, sys
from pathlib import Path
from draftprobe.states.dumps import open_dump, write
from draftprobe.states.dumps.record import name_slots, settle
import safetensors.torch, draftprobe.states.target, transformers
write._GROUP = 8 << 20
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
folder = Path({str(tmp_path)!r})
dump = name_slots(settle(open_dump(folder), 4), (0, 1, 2))
write.write_states(dump, folder / "out", write.facts_of(folder), "all", None)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 80 << 10  # KiB
    assert open_states(tmp_path / "out").lengths == (128,) * 40


def test_command_is_listed_and_loads_no_torch():
    code = (
        "import sys; from draftprobe.cli import app; app(['states', '--help'], "
        "standalone_mode=False); print('LOADED', 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "LOADED False" in done.stdout
    assert "states" in [command.callback.__name__ for command in app.registered_commands]


def test_slot_names():
    assert [Slot("aux", b, "").name for b in (0, "N", "L", None)] == [
        "h[0]", "h[N]", "h[L]", "unknown",
    ]  # fmt: skip
