"""`draftprobe inspect` as a whole: facts, readings, findings, mends, and what it must not load."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import synthetic
from make_cases import CONFIG, FOLDER, IDS, KEPT, weights, write_folder

import draftprobe
from draftprobe.diagnose.checks.inspection import Asked, inspect
from draftprobe.drafter.wiring import parse_taps
from draftprobe.errors import InputError
from draftprobe.report.inspection import render

COMMAND = str(Path(sys.executable).with_name("draftprobe"))
DEMO = Path(draftprobe.__file__).parent / "demo" / "drafter"
TARGET = FOLDER / "target"


def run(*arguments):
    return subprocess.run(
        [COMMAND, "inspect", *map(str, arguments)], capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("public")
    return {name: synthetic.write(root, name) for name in synthetic.KNOWN}


def looked_at(folder, **more):
    return inspect(Asked(folder.path, folder.target, **more))


@pytest.mark.parametrize("name", synthetic.KNOWN)
def test_public_drafters_are_what_they_are_and_raise_what_they_must(folders, name):
    folder = folders[name]
    found = looked_at(folder)
    expected = {"family": "eagle3"} | folder.facts
    assert {key: found.facts[key] for key in expected} == expected
    assert [finding.id for finding in found.findings] == folder.findings


@pytest.mark.parametrize("name", synthetic.KNOWN)
def test_lines_fit_a_hundred_columns(folders, name):
    lines = [
        line
        for line in render(looked_at(folders[name], wanted=(0, 3, 31)))
        if str(folders[name].path) not in line
    ]
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("FINDINGS" if folders[name].findings else "CLEAN")


def test_sizes_are_counted_from_the_shapes(folders):
    facts = looked_at(folders["eagle-llama-8b"]).facts
    h, inner, kv, draft = 4096, 14336, 1024, 32000
    layer = 2 * h * (h + 2 * kv) + h * h + 3 * h * inner + 3 * h
    assert facts["parameters"] == 3 * h * h + layer + h + draft * h
    assert facts["dtypes"] == ["F16"]


# The founding case's list on a target of 61 layers, by each engine's rule: hand counts.
STORY = {
    ("sglang", "0.5.23", ""): (2, 30, 58),
    ("sglang", "0.5.12.post1", ""): (3, 31, 59),
    ("vllm", "0.32.0", "V1"): (2, 30, 58),
    ("vllm", "0.32.0", "V2"): (2, 30, 58),
    ("tensorrt_llm", "001e6700", ""): (2, 30, 58),
    ("llamacpp", "0274f0fc", ""): (2, 30, 58),
}


def test_the_story_on_both_sides_of_the_change(folders):
    found = looked_at(folders["story"])
    read = {(r.engine, r.version, r.variant): r for r in found.readings}
    known = {key: reading.taps for key, reading in read.items() if reading.taps is not None}
    assert known == STORY
    assert read["sglang", "0.5.23", ""].found == "nested"
    assert read["vllm", "0.32.0", "V2"].found == "default"
    assert all(reading.rule is not None and reading.rule.source for reading in read.values())


def test_the_twin_at_top_level_is_not_read_by_sglang(folders):
    found = looked_at(folders["story-at-top"])
    by_engine = {(r.engine, r.variant): r.found for r in found.readings}
    assert by_engine["sglang", ""] == "default"
    assert by_engine["vllm", "V1"] == by_engine["vllm", "V2"] == "top"
    ignored = [e for e in found.effects if e.engine == "sglang" and e.did == "ignores key"]
    assert [effect.subject for effect in ignored] == [IDS]


def test_what_to_write_for_the_story(folders):
    mends = {m.engine: m for m in looked_at(folders["story"], wanted=(0, 3, 31)).mend}
    for engine in ("vllm", "tensorrt_llm", "openvino"):
        assert mends[engine].note.startswith("cannot be expressed here"), mends[engine]
        assert mends[engine].diff == ""
    assert "eagle3.extract_layers = [0, 3, 31]" in mends["llamacpp"].note
    both = [m for m in looked_at(folders["story"], wanted=(0, 3, 31)).mend if m.engine == "sglang"]
    spelled = {m.version: re.findall(r"nested ids (\[.*?\]) feed", m.note) for m in both}
    assert spelled == {"0.5.23": ["[0, 3, 31]"], "0.5.12.post1": ["[-1, 2, 30]"]}
    assert all(mend.diff for mend in both)


def test_the_demo_drafter_is_clean(tmp_path):
    done = run(DEMO, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["findings"] == []
    assert told["drafter"]["trainer"] == "draftprobe"
    assert told["drafter"]["layer_ids"] == {IDS: [0, 3, 16]}
    points = {entry["what"] for entry in told["not_evaluated"]}
    assert {"what each engine feeds", "own tables' contents", "coverage"} <= points


def test_one_json_object_holds_it_all():
    done = run(FOLDER / "W107", "--target", TARGET, "--wanted", "2,6,9", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads(done.stdout)
    assert told["schema_version"] == 1
    assert {"drafter", "target", "wiring", "readings", "effects", "findings", "mend"} <= set(told)
    finding = {"id", "title", "wire", "severity", "served", "wanted", "evidence"}
    assert set(told["findings"][0]) == finding
    assert told["findings"][0]["severity"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere: expected a checkpoint folder"),
        ([FOLDER / "healthy", "--target", "nowhere"], "nowhere"),
        ([FOLDER / "healthy", "--engine", "sglang"], "give --target"),
        ([FOLDER / "healthy", "--wanted", "2,6,9"], "give --target"),
        ([FOLDER / "healthy", "--target", TARGET, "--engine", "ollama"], "ollama"),
        ([FOLDER / "healthy", "--target", TARGET, "--wanted", "2,6"], "expected 3 boundaries"),
        ([FOLDER / "healthy", "--target", TARGET, "--wanted", "2,6,99"], "99"),
        ([FOLDER / "healthy", "--histogram", FOLDER / "healthy" / "config.json"], "counts"),
        ([FOLDER / "healthy", "--trainer", "nobody"], "nobody"),
    ],
)
def test_bad_input_is_one_line_and_no_traceback(arguments, said):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def imported(*arguments):
    code = (
        "import sys; from draftprobe.cli import app\n"
        "try: app(sys.argv[1:], standalone_mode=False)\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.partition("LOADED")[2].split())


@pytest.mark.parametrize(
    "more", [[], ["--deep"], ["--engine", "sglang", "--engine", "vllm", "--wanted", "0,6,9"]]
)
def test_no_torch_is_loaded(more):
    loaded = imported("inspect", FOLDER / "healthy", "--target", TARGET, *more)
    assert "numpy" in loaded
    assert {"torch", "transformers", "scipy"}.isdisjoint(loaded)


def test_without_deep_only_tables_are_read(tmp_path, monkeypatch):
    """The weights' part of the file may hold anything, as long as the two tables are there."""
    write_folder(tmp_path / "d", CONFIG, weights())
    clean = inspect(Asked(tmp_path / "d", TARGET)).facts
    file = tmp_path / "d" / "model.safetensors"
    raw = bytearray(file.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    for name, entry in header.items():
        if name not in ("d2t", "t2d"):
            first, last = (8 + length + at for at in entry["data_offsets"])
            raw[first:last] = b"\xff" * (last - first)
    file.write_bytes(raw)
    found = inspect(Asked(tmp_path / "d", TARGET))
    assert (found.findings, found.facts) == ((), clean)
    assert [f.id for f in inspect(Asked(tmp_path / "d", TARGET, deep=True)).findings] == ["W501"]


def test_deep_compares_own_tables_by_hand_count():
    found = inspect(Asked(FOLDER / "W309", TARGET, deep=True))
    own, other = (
        _array(folder, name)
        for folder, name in (
            (FOLDER / "W309", "embed_tokens.weight"),
            (TARGET, "model.embed_tokens.weight"),
        )
    )
    size = np.linalg.norm(own, axis=1) * np.linalg.norm(other, axis=1)
    alike = found.alike["embed_tokens.weight"]
    assert (alike.rows, alike.equal) == (40, 0)
    assert alike.cosine == pytest.approx(float(((own * other).sum(axis=1) / size).mean()), abs=1e-5)
    head = found.alike["lm_head.weight"]
    assert head.rows == 20
    mine, theirs = _array(FOLDER / "W309", "lm_head.weight"), _array(TARGET, "lm_head.weight")[KEPT]
    size = np.linalg.norm(mine, axis=1) * np.linalg.norm(theirs, axis=1)
    expected = float(((mine * theirs).sum(axis=1) / size).mean())
    assert head.cosine == pytest.approx(expected, abs=1e-5)


def _array(folder, name):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")[name].astype(np.float64)


@pytest.mark.parametrize("kind", ["object", "list", "npy"])
def test_coverage_of_a_histogram_in_each_form(tmp_path, kind):
    """Ids 0 and 39 are drafted, 10 is not: 90 of 100."""
    counts = [0] * 40
    counts[0], counts[39], counts[10] = 60, 30, 10
    path = tmp_path / ("c.npy" if kind == "npy" else "c.json")
    if kind == "npy":
        np.save(path, np.array(counts))
    else:
        path.write_text(json.dumps(counts if kind == "list" else {"0": 60, "39": 30, "10": 10}))
    found = inspect(Asked(FOLDER / "healthy", TARGET, histogram=path))
    assert found.coverage == 0.9
    assert found.findings == ()


def test_wanted_taps_that_arrive_are_no_finding():
    asked = Asked(FOLDER / "healthy", TARGET, engines=("sglang",), wanted=parse_taps("2,6,9"))
    found = inspect(asked)
    assert found.findings == ()
    assert "nothing to change" in found.mend[0].note


def test_engines_that_all_fail_are_told_too():
    found = inspect(Asked(FOLDER / "W112", TARGET, engines=("sglang",)))
    assert [reading.taps for reading in found.readings] == [None]
    lines = list(render(found))
    assert any(line.startswith("sglang 0.5.23  !1") for line in lines)
    assert any(line.startswith("  !1") and "would capture" in line for line in lines)


def test_what_an_engine_serves_stands_beside_what_was_meant():
    asked = Asked(FOLDER / "W203", TARGET, engines=("sglang",), trainer="speculators")
    [finding] = inspect(asked).findings
    assert (finding.wire, finding.served, finding.wanted) == ("residual", "raw", "normed")
    assert "sglang srt/models/llama_eagle3.py" in finding.evidence


def test_a_malformed_table_is_bad_input(tmp_path):
    tensors = weights()
    tensors["d2t"] = tensors["d2t"].reshape(4, 5)
    write_folder(tmp_path / "d", CONFIG, tensors)
    with pytest.raises(InputError, match="vector of integers"):
        inspect(Asked(tmp_path / "d"))


def test_a_pickle_folder_is_inspected_too(tmp_path):
    import torch

    write_folder(tmp_path / "d", CONFIG, weights())
    (tmp_path / "d" / "model.safetensors").unlink()
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in weights().items()}
    torch.save(tensors, tmp_path / "d" / "pytorch_model.bin")
    found = inspect(Asked(tmp_path / "d", TARGET))
    twin = inspect(Asked(FOLDER / "healthy", TARGET))
    assert found.findings == ()
    same = set(found.facts) - {"folder", "files"}
    assert {key: found.facts[key] for key in same} == {key: twin.facts[key] for key in same}


def test_explain_prints_the_page_and_refuses_what_has_none():
    done = subprocess.run([COMMAND, "explain", "w103"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("# W103: ")
    told = subprocess.run([COMMAND, "explain", "W103", "--json"], capture_output=True, text=True)
    page = json.loads(told.stdout)
    assert page["id"] == "W103"
    assert next(iter(page["sections"])) == "Symptom"
    done = subprocess.run([COMMAND, "explain", "W999"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "W103" in done.stderr


ODD = [
    None, True, False, 0, -1, 1, 10**30, 1.5, float("nan"), float("inf"), "", "x", [], [1],
    ["a"], [[1]], {}, {"a": 1}, {"rope_type": "yarn"}, {IDS: [2, 3]}, 2**31, 2**63,
]  # fmt: skip
PLACES = [
    *CONFIG, "transformer_layer_config", "speculators_config", "speculators_model_type",
    "rope_parameters", "rope_scaling", "partial_rotary_factor", "norm_before_fc", "fc_norm",
    "norm_output", "norm_before_residual", "num_aux_hidden_states", "layer_types", IDS,
    "draftprobe_convert", "dflash_config", "target_layer_ids", "bias", "attention_bias",
    "kv_lora_rank", "_torchspec_version",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_fuzz_odd_values_give_findings_or_input_errors(tmp_path, seed):
    rng = random.Random(seed)
    folder, tried, refused = tmp_path / "d", 120, 0
    write_folder(folder, CONFIG, weights())
    for _ in range(tried):
        config = json.loads(json.dumps(CONFIG))
        for _ in range(rng.randint(1, 3)):
            config[rng.choice(PLACES)] = rng.choice(ODD)
        if isinstance(config["eagle_config"], dict) and rng.random() < 0.3:
            config["eagle_config"][IDS] = rng.choice(ODD)
        (folder / "config.json").write_text(json.dumps(config))
        found = tolerant(Asked(folder, TARGET, engines=("sglang", "vllm", "tensorrt_llm")))
        if isinstance(found, InputError):
            refused += 1
            assert str(folder) in str(found), config
        else:
            assert list(render(found))
            assert json.dumps(found.to_json())
    assert 0 < refused < tried


def tolerant(asked):
    try:
        return inspect(asked)
    except InputError as error:
        return error
