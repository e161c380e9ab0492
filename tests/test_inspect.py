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
from draftprobe.report.findings import ids
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


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", synthetic.KNOWN)
def test_lines_fit_a_hundred_columns(folders, name, verbose):
    lines = [
        line
        for line in render(looked_at(folders[name], wanted=(0, 3, 31)), verbose)
        if str(folders[name].path) not in line
    ]
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("FINDINGS" if folders[name].findings else "FILES OK")


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
    assert "not known" in mends["llamacpp"].note
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
    assert lines[0].startswith("WRONG    sglang 0.5.23: for ids [1, 5, 11] in eagle_config")
    assert "would capture h[2], h[6]" in " ".join(lines)
    assert any(re.match(r"sglang 0\.5\.23  fails", line) for line in lines)


def test_what_an_engine_serves_stands_beside_what_was_meant():
    asked = Asked(FOLDER / "W203", TARGET, engines=("sglang",), trainer="speculators")
    [finding] = inspect(asked).findings
    assert (finding.wire, finding.served, finding.wanted) == ("residual", "raw", "normed")
    assert "sglang srt/models/llama_eagle3.py" in finding.evidence


def test_a_malformed_table_is_named_and_the_rest_is_inspected(tmp_path):
    tensors = weights()
    tensors["d2t"] = tensors["d2t"].reshape(20, 1)
    tensors["norm.weight"] = tensors.pop("norm.weight")[:4]
    write_folder(tmp_path / "d", CONFIG, tensors)
    found = {f.id: f.evidence for f in inspect(Asked(tmp_path / "d", TARGET)).findings}
    assert set(found) == {"W317", "W315"}
    assert found["W317"].startswith("d2t is I64 [20, 1]: expected a vector of integers")


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


def test_a_pickle_folder_is_looked_through_too(tmp_path):
    import torch

    tensors = {name: torch.from_numpy(np.array(value)) for name, value in weights().items()}
    tensors["midlayer.mlp.up_proj.weight"][3, 2] = float("inf")
    tensors["embed_tokens.weight"] = torch.from_numpy(
        _array(TARGET, "model.embed_tokens.weight").astype(np.float32)
    )
    write_folder(tmp_path / "d", CONFIG, weights())
    (tmp_path / "d" / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "d" / "pytorch_model.bin")
    found = inspect(Asked(tmp_path / "d", TARGET, deep=True))
    assert [(f.id, f.evidence) for f in found.findings] == [
        ("W501", "midlayer.mlp.up_proj.weight (1 numbers)")
    ]
    alike = found.alike["embed_tokens.weight"]
    assert (alike.rows, alike.equal, alike.cosine) == (40, 40, pytest.approx(1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_table_is_a_copy_in_the_drafters_own_precision(dtype, tmp_path):
    """The target's table in float32, the drafter's cast by torch; one row is then changed."""
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    table = torch.randn(40, 8) * torch.logspace(-6, 4, 40)[:, None]
    write_folder(tmp_path / "target", json.loads((TARGET / "config.json").read_text()), {})
    save_file({"model.embed_tokens.weight": table}, tmp_path / "target" / "model.safetensors")
    write_folder(tmp_path / "d", CONFIG, weights())
    tensors = load_file(tmp_path / "d" / "model.safetensors")
    tensors["embed_tokens.weight"] = table.to(getattr(torch, dtype))
    tensors["embed_tokens.weight"][37, 3] *= 1.5
    save_file(tensors, tmp_path / "d" / "model.safetensors")
    found = inspect(Asked(tmp_path / "d", tmp_path / "target", deep=True))
    alike = found.alike["embed_tokens.weight"]
    assert (alike.rows, alike.equal) == (40, 39)


def test_names_from_files_move_no_cursor_and_break_no_print(tmp_path):
    tensors = weights() | {
        "odd\x1b[31m\x9b.weight": np.ones(4, dtype=np.float16),
        "half \ud800.weight": np.ones(4, dtype=np.float16),
    }
    config = CONFIG | {"architectures": ["Llama\x1b]0;x\x07"]}
    write_folder(tmp_path / "d", config, tensors)
    done = run(tmp_path / "d", "--target", TARGET, "--engine", "sglang")
    assert done.returncode == 1, done.stderr
    assert "\\x1b[31m" in done.stdout
    assert "\\ud800" in done.stdout
    assert not {c for c in done.stdout if ord(c) < 32 or 127 <= ord(c) < 160} - {"\n"}


def test_an_overlong_path_is_bad_input():
    for arguments in (["x" * 5000], [FOLDER / "healthy", "--target", "x" * 300]):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: xxx")


def test_json_has_no_words_that_json_lacks(tmp_path):
    config = CONFIG | {"rope_scaling": {"rope_type": "yarn", "factor": float("nan")}}
    write_folder(tmp_path / "d", config, weights())
    done = run(tmp_path / "d", "--target", TARGET, "--json")
    assert done.returncode in (0, 1), done.stderr

    def refuse(word):
        raise AssertionError(word)

    told = json.loads(done.stdout, parse_constant=refuse)
    assert told["drafter"]["rope_scaling"]["factor"] == "nan"


@pytest.mark.parametrize("key", ["rope_theta", "partial_rotary_factor", "max_position_embeddings"])
def test_a_number_beyond_all_floats_is_no_internal_error(key, tmp_path):
    write_folder(tmp_path / "d", CONFIG | {key: 10**400}, weights())
    done = run(tmp_path / "d", "--target", TARGET, "--engine", "sglang")
    assert done.returncode in (0, 1, 2), done.stderr


def test_many_odd_tensors_are_told_in_a_few_lines(tmp_path):
    tensors = weights() | {f"odd.{n}.weight": np.ones(1, dtype=np.float16) for n in range(2000)}
    write_folder(tmp_path / "d", CONFIG, tensors)
    found = inspect(Asked(tmp_path / "d", TARGET, engines=("sglang", "vllm")))
    assert len(list(render(found))) < 60


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


# The first lines: an answer for each engine, worst first.


def test_each_engine_asked_for_has_a_line_and_the_worst_comes_first():
    found = inspect(Asked(FOLDER / "W106", TARGET, engines=("vllm", "sglang")))
    assert [a.status for a in found.answers] == ["wrong", "ok"]
    assert list(render(found))[:2] == [
        "WRONG    sglang 0.5.23 feeds h[2], h[6], h[9]; the drafter means h[1], h[6], h[9] [W106]",
        "OK       vllm 0.32.0 feeds h[1], h[6], h[9], as meant",
    ]


def test_runners_that_differ_have_a_line_each():
    found = inspect(Asked(FOLDER / "W114", TARGET, engines=("vllm",)))
    told = {answer.variants: (answer.status, answer.fed) for answer in found.answers}
    assert told == {("V1",): ("wrong", (1, 5, 8)), ("V2",): ("ok", (2, 6, 9))}


@pytest.fixture(scope="module")
def speculators(tmp_path_factory):
    """A folder as speculators saves it, which SGLang has no class for."""
    folder = tmp_path_factory.mktemp("speculators") / "d"
    config = json.loads((FOLDER / "healthy-speculators" / "config.json").read_text())
    write_folder(folder, config | {"architectures": ["Eagle3DraftModel"]}, weights())
    return folder


def test_without_an_engine_files_come_first_and_nobody_is_accused(speculators):
    found = inspect(Asked(speculators, TARGET))
    assert (found.findings, found.undecided, found.mend) == ((), False, ())
    first = re.sub(" +", " ", " ".join(list(render(found))[:3]))
    assert first.startswith("FILES OK nothing wrong in the files")
    assert "sglang 0.5.23 refuses them" in first
    assert "tensorrt_llm 001e6700 is not known" in first
    assert {a.engine: a.status for a in found.answers}["sglang"] == "refuses"


@pytest.mark.parametrize(
    ("engine", "code", "said"),
    [
        ("vllm@0.11", 3, "UNDECIDED vllm 0.11: vLLM 0.11 is not known here (known: 0.32.0)"),
        ("vllm@0.31", 3, "UNDECIDED vllm 0.31: vLLM 0.31 is not known here (known: 0.32.0)"),
        ("sglang@0.5.3", 3, "UNDECIDED sglang 0.5.3: SGLang 0.5.3 is not known here"),
        ("sglang@9.9", 0, "OK       sglang 9.9 (9.9 is newer than the newest rule, 0.5.23) feeds"),
        ("sglang", 0, "OK       sglang 0.5.23 feeds h[2], h[6], h[9], as meant"),
    ],
)
def test_an_engine_that_cannot_be_judged_is_not_clean(engine, code, said):
    done = run(FOLDER / "healthy", "--target", TARGET, "--engine", engine)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(said)


def test_a_finding_outweighs_an_engine_that_is_not_known():
    done = run(FOLDER / "W304", "--target", TARGET, "--engine", "vllm@0.11")
    assert done.returncode == 1
    assert done.stdout.startswith("FINDINGS d2t points outside the target's vocabulary (W304)")


def test_a_drafter_of_another_family_is_undecided(tmp_path):
    config = CONFIG | {"architectures": ["DFlashDraftModel"], "dflash_config": {"a": 1}}
    tensors = {name: value for name, value in weights().items() if "fc" not in name}
    write_folder(tmp_path / "d", config, tensors)
    found = inspect(Asked(tmp_path / "d", TARGET, engines=("sglang",)))
    assert found.facts["family"] not in ("eagle3", "unknown")
    assert (found.findings, found.undecided) == ((), True)
    assert [a.status for a in found.answers] == ["undecided"]
    assert inspect(Asked(tmp_path / "d")).undecided


def test_an_engine_that_refuses_is_not_said_to_feed(speculators):
    found = inspect(Asked(speculators, TARGET, engines=("sglang", "vllm")))
    assert [f.id for f in found.findings] == ["S104"]
    lines = list(render(found))
    assert lines[0].startswith("REFUSES  sglang 0.5.23: ")
    assert any(line.startswith("sglang 0.5.23      refuses") for line in lines)
    [mend] = [m for m in found.mend if m.engine == "sglang"]
    assert mend.note.startswith("convert first: draftprobe convert ")
    assert "--to specforge" in mend.note


def applied(folder, found, tmp_path, engine="sglang"):
    """The folder with the mend's diff applied by patch, beside its weights."""
    import shutil

    [mend] = [m for m in found.mend if m.engine == engine]
    copy = tmp_path / "mended"
    shutil.copytree(folder, copy)
    subprocess.run(
        ["patch", "-s", str(copy / "config.json")], input=mend.diff, text=True, check=True
    )
    return copy


def test_a_folder_that_lacks_one_key_is_mended_by_that_key(tmp_path):
    config = {key: value for key, value in CONFIG.items() if key != "draft_vocab_size"}
    write_folder(tmp_path / "d", config, weights())
    engines = ("sglang",)
    found = inspect(Asked(tmp_path / "d", TARGET, engines=engines))
    assert [answer.status for answer in found.answers] == ["refuses"]
    copy = applied(tmp_path / "d", found, tmp_path)
    assert json.loads((copy / "config.json").read_text()) == CONFIG
    assert inspect(Asked(copy, TARGET, engines=engines)).findings == ()


@pytest.mark.parametrize("case", ["W106", "W114"])
def test_one_config_mends_two_engines_unasked(case, tmp_path):
    engines = ("sglang", "vllm")
    found = inspect(Asked(FOLDER / case, TARGET, engines=engines))
    assert found.findings
    assert found.wanted_by == "config"
    mends = [mend for mend in found.mend if mend.diff]
    assert len({mend.diff.partition("@@")[2] for mend in mends}) == 1
    copy = applied(FOLDER / case, found, tmp_path, mends[0].engine)
    after = inspect(Asked(copy, TARGET, engines=engines))
    assert after.findings == ()
    assert {answer.fed for answer in after.answers} == {found.wanted}
    assert [answer.status for answer in after.answers] == ["ok", "ok"]


def test_ids_in_doubt_are_not_mended_but_the_command_is_given():
    found = inspect(Asked(FOLDER / "W107", TARGET, engines=("sglang",)))
    assert found.wanted is None
    assert found.mend == ()
    command = [line for line in render(found) if line.startswith("draftprobe inspect ")]
    assert len(command) == 1
    assert command[0].endswith("--wanted 3,7,10")


def test_two_lists_that_disagree_accuse_nobody_who_reads_his_own():
    """Nested [1, 5, 8] is h[2], h[6], h[9] to SGLang and to who wrote it."""
    found = inspect(Asked(FOLDER / "W121", TARGET, engines=("sglang", "vllm")))
    assert [f.id for f in found.findings] == ["W121"]
    assert {a.engine: a.fed for a in found.answers} == {"sglang": (2, 6, 9), "vllm": (2, 6, 10)}
    assert found.wanted is None


def test_an_empty_list_is_no_list(tmp_path):
    config = CONFIG | {"eagle_config": {IDS: []}}
    write_folder(tmp_path / "d", config, weights())
    found = inspect(Asked(tmp_path / "d", TARGET))
    assert found.findings == ()
    assert found.facts["claims"] == []
    assert [f.id for f in inspect(Asked(tmp_path / "d", TARGET, engines=("sglang",))).findings] == [
        "W112"
    ]


def test_the_order_that_a_rule_asks_for_is_no_finding(tmp_path):
    """On the DeepSeek family a first id of 1 means outputs: [5, 1, 8] feeds h[1], h[5], h[8]."""
    target = tmp_path / "target.json"
    text = json.loads((TARGET / "config.json").read_text()) | {"model_type": "deepseek_v3"}
    target.write_text(json.dumps(text))
    config = CONFIG | {"eagle_config": {IDS: [5, 1, 8]}}
    write_folder(tmp_path / "d", config, weights())
    assert "W108" not in [f.id for f in inspect(Asked(tmp_path / "d", target)).findings]
    assert "W108" in [f.id for f in inspect(Asked(tmp_path / "d", TARGET)).findings]


def test_a_theta_is_named_by_what_it_is(tmp_path):
    """EAGLE's training code takes 10000, whatever the config says."""
    config = CONFIG | {"architectures": ["LlamaForCausalLM"]}
    write_folder(tmp_path / "d", config, weights())
    [doubt] = [f for f in inspect(Asked(tmp_path / "d", TARGET)).findings if f.id == "W405"]
    assert doubt.evidence.endswith("500000.0 as written, 10000.0 by training")
    mark = {"draftprobe_convert": {"to": "eagle", "from": "specforge", IDS: [2, 6, 9]}}
    write_folder(tmp_path / "converted", config | mark, weights())
    assert inspect(Asked(tmp_path / "converted", TARGET)).findings == ()


def test_sources_are_told_on_demand_and_always_in_json():
    found = inspect(Asked(FOLDER / "W203", TARGET, engines=("sglang",), trainer="speculators"))
    source = "srt/models/llama_eagle3.py"
    assert source not in "\n".join(render(found))
    assert source in " ".join(render(found, verbose=True))
    assert source in json.dumps(found.to_json())


def test_explain_without_an_id_lists_them_all():
    done = subprocess.run([COMMAND, "explain"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "W103  aux taps shifted by one slot" in done.stdout
    assert len(done.stdout.splitlines()) == len(ids())


ODD = [
    None, True, False, 0, -1, 1, 10**30, 1.5, float("nan"), float("inf"), "", "x", [], [1],
    10**400, ["a"], [[1]], {}, {"a": 1}, {"rope_type": "yarn"}, {IDS: [2, 3]}, 2**31, 2**63,
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
