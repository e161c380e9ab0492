"""`draftprobe mend`: what it changes in a config, what it leaves, and what it refuses."""

import difflib
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftprobe import cli
from draftprobe.diagnose.mend import Wanted, mend, read_wanted, write_beside
from draftprobe.dialects.engines import parse_engine
from draftprobe.dialects.ids import KEY
from draftprobe.drafter.json_text import remove_member, set_member
from draftprobe.errors import InputError

NESTED_CONFIG = """\
{
  "architectures": ["LlamaForCausalLMEagle3"],
  "rms_norm_eps": 1e-05,
  "eagle_config": {
    "eagle_aux_hidden_state_layer_ids": [2, 15, 27],
    "use_aux_hidden_state": true
  },
  "vocab_size": 49152
}
"""

TOP_CONFIG = """\
{
    "model_type": "llama",
    "eagle_aux_hidden_state_layer_ids": [
        3,
        16,
        28
    ]
}
"""


def wanted(folder, taps=(0, 3, 16), family="llama", layers=30, proved=True):
    return Wanted(folder, taps, family, layers, proved)


def mended(tmp_path, text, engine, **order):
    return mend(text, wanted(tmp_path, **order), parse_engine(engine))


def test_sglang_one_line_changes(tmp_path):
    found = mended(tmp_path, NESTED_CONFIG, "sglang")
    assert found.mend.diff == (
        "--- config.json\n"
        "+++ config.sglang.json\n"
        "@@ -2,7 +2,7 @@\n"
        '   "architectures": ["LlamaForCausalLMEagle3"],\n'
        '   "rms_norm_eps": 1e-05,\n'
        '   "eagle_config": {\n'
        '-    "eagle_aux_hidden_state_layer_ids": [2, 15, 27],\n'
        '+    "eagle_aux_hidden_state_layer_ids": [-1, 2, 15],\n'
        '     "use_aux_hidden_state": true\n'
        "   },\n"
        '   "vocab_size": 49152\n'
    )
    assert found.mend.safe
    assert (found.mend.engine, found.mend.version) == ("sglang", "0.5.23")
    assert "id k feeds h[k + 1]" in found.mend.note
    assert "llama.py" in found.mend.note


def test_vllm_reads_top_level_and_the_nested_list_says_the_same_for_sglang(tmp_path):
    found = mended(tmp_path, NESTED_CONFIG, "vllm")
    assert found.text == NESTED_CONFIG.replace("[2, 15, 27]", "[-1, 2, 15]").replace(
        "49152\n",
        '49152,\n  "eagle_aux_hidden_state_layer_ids": [\n    0,\n    3,\n    16\n  ]\n',
    )
    assert found.mend.safe


def test_a_list_at_top_level_is_not_enough_for_sglang_and_says_the_same_for_vllm(tmp_path):
    found = mended(tmp_path, TOP_CONFIG, "sglang")
    assert json.loads(found.text) == {
        "model_type": "llama",
        KEY: [0, 3, 16],
        "eagle_config": {KEY: [-1, 2, 15]},
    }


def test_a_list_that_another_engine_cannot_say_stays(tmp_path):
    """vLLM cannot feed h[0] of this family; its list is no business of SGLang's mend."""
    text = json.dumps({KEY: [3, 31, 59], "eagle_config": {KEY: [2, 30, 58]}}, indent=2)
    found = mended(tmp_path, text, "sglang", taps=(0, 3, 31), family="kimi_k25", layers=61)
    assert json.loads(found.text) == {KEY: [3, 31, 59], "eagle_config": {KEY: [0, 3, 31]}}


def test_what_our_conversion_noted_does_not_outlive_a_mend(tmp_path):
    text = json.dumps({KEY: [3, 16, 28], "draftprobe_convert": {"to": "eagle", KEY: [3, 16, 28]}})
    found = mended(tmp_path, text, "vllm")
    assert json.loads(found.text) == {KEY: [0, 3, 16], "draftprobe_convert": {"to": "eagle"}}
    same = mended(tmp_path, text, "sglang", taps=(3, 16, 28))
    assert json.loads(same.text)["draftprobe_convert"][KEY] == [3, 16, 28]


def test_ids_out_of_order_say_why(tmp_path):
    text = json.dumps({"eagle_config": {KEY: [2, 30, 58]}})
    found = mended(tmp_path, text, "sglang", taps=(1, 30, 58), family="kimi_k25", layers=61)
    assert json.loads(found.text)["eagle_config"][KEY] == [30, 1, 58]
    assert "out of order on purpose" in found.mend.note


def test_vllm_changes_a_list_that_stands_at_top_level(tmp_path):
    found = mended(tmp_path, TOP_CONFIG, "vllm")
    assert found.text == TOP_CONFIG.replace("3,", "0,").replace("16,", "3,").replace("28", "16")


@pytest.mark.parametrize(
    ("engine", "ids", "safe"),
    [("sglang", [0, 3, 31], True), ("sglang@before-2026-05", [-1, 2, 30], False)],
)
def test_the_founding_case(tmp_path, engine, ids, safe):
    text = json.dumps({"eagle_config": {KEY: [2, 30, 58]}, "vocab_size": 163840}, indent=2)
    found = mended(tmp_path, text, engine, taps=(0, 3, 31), family="kimi_k25", layers=61)
    assert json.loads(found.text)["eagle_config"][KEY] == ids
    assert found.mend.safe is safe
    assert ("model file must be changed" in found.mend.note) is not safe


def test_what_an_engine_cannot_express_has_no_diff(tmp_path):
    found = mended(tmp_path, NESTED_CONFIG, "vllm", taps=(0, 3, 31), family="kimi_k25", layers=61)
    assert (found.text, found.mend.diff, found.mend.safe) == (None, "", False)
    assert found.mend.note.startswith("cannot be expressed here: vLLM cannot capture h[0]")


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("tensorrt_llm", "set eagle3_layers_to_capture={2, 14, 19}"),
        ("openvino", "set hidden_layers_list to [2, 14, 19]"),
        ("llamacpp", "write eagle3.extract_layers = [3, 15, 20]"),
    ],
)
def test_an_option_of_the_engine_is_told_and_no_config_is_written(tmp_path, engine, told):
    found = mended(tmp_path, NESTED_CONFIG, engine, taps=(3, 15, 20))
    assert (found.text, found.mend.diff, found.mend.safe) == (None, "", True)
    assert told in found.mend.note
    doubtful = mended(tmp_path, NESTED_CONFIG, engine, taps=(3, 15, 20), proved=False)
    assert not doubtful.mend.safe
    assert "not proved by replay" in doubtful.mend.note


def test_an_engine_that_feeds_the_wanted_taps_unasked_needs_no_option(tmp_path):
    found = mended(tmp_path, NESTED_CONFIG, "llamacpp", taps=(2, 15, 27))
    assert (
        found.mend.note == "nothing to change: llamacpp@0274f0fc feeds h[2], h[15], h[27] already"
    )


def test_a_config_that_is_right_stays(tmp_path):
    found = mended(tmp_path, NESTED_CONFIG, "sglang", taps=(3, 16, 28))
    assert (found.text, found.mend.diff) == (NESTED_CONFIG, "")
    assert found.mend.note == "nothing to change: sglang@0.5.23 feeds h[3], h[16], h[28] already"


def test_without_proof_it_is_unsafe_and_says_so(tmp_path):
    found = mended(tmp_path, NESTED_CONFIG, "sglang", proved=False)
    assert not found.mend.safe
    assert "unsafe: the wanted wiring was not proved by replay" in found.mend.note


def test_another_number_of_taps_is_written_where_fc_is_sized(tmp_path):
    four = mended(tmp_path, TOP_CONFIG, "vllm", taps=(0, 3, 16, 28))
    assert json.loads(four.text)["num_aux_hidden_states"] == 4
    nested = mended(tmp_path, NESTED_CONFIG, "sglang", taps=(0, 3, 16, 28))
    assert "num_aux_hidden_states" not in json.loads(nested.text)


def test_a_capture_that_is_switched_off_is_switched_on(tmp_path):
    text = NESTED_CONFIG.replace("true", "false")
    for engine in ("sglang", "vllm"):
        config = json.loads(mended(tmp_path, text, engine).text)
        assert config["eagle_config"]["use_aux_hidden_state"] is True


def test_a_file_without_a_last_line_end_gives_a_diff_that_says_so(tmp_path):
    found = mended(tmp_path, TOP_CONFIG.rstrip(), "sglang")
    assert found.mend.diff.startswith("--- config.json\n+++ config.sglang.json\n@@ ")
    assert found.mend.diff.endswith("\n }\n\\ No newline at end of file\n")


# Any JSON object, in any layout: what is set is set, and nothing else is another value.

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=4) | st.just("a"), values, max_size=4)
layouts = st.sampled_from([None, 0, 1, 2, 4, "\t"])


@settings(deadline=None)
@given(objects, layouts, values)
def test_property_a_member_is_set_and_removed(data, indent, value):
    text = json.dumps(data, indent=indent, separators=(",", ":") if indent == 0 else None)
    found = set_member(text, ("a", "b"), value)
    inner = data.get("a") if isinstance(data.get("a"), dict) else {}
    assert json.loads(found) == data | {"a": {**inner, "b": value}}
    assert json.loads(set_member(text, ("a",), value)) == data | {"a": value}
    gone = json.loads(remove_member(found, ("a", "b")))
    assert gone == data | {"a": {k: v for k, v in inner.items() if k != "b"}}
    assert json.loads(remove_member(text, ("a",))) == {k: v for k, v in data.items() if k != "a"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", '{"x": [1]}'),
        ('{"a": 1}', '{"a": 1, "x": [1]}'),
        ('{\n  "a": 1\n}\n', '{\n  "a": 1,\n  "x": [\n    1\n  ]\n}\n'),
        ('{"x": null, "a": 1e-05}', '{"x": [1], "a": 1e-05}'),
        ('{"x": 3, "x": 4}', '{"x": 3, "x": [1]}'),  # the last one counts
    ],
)
def test_one_member_is_set_and_every_other_byte_stays(text, expected):
    assert set_member(text, ("x",), [1]) == expected


# The command


@pytest.fixture
def run_folder(tmp_path):
    """A run folder with a verdict about a drafter; gives a function that changes the verdict."""
    draft, run = tmp_path / "draft", tmp_path / "run"
    draft.mkdir()
    run.mkdir()
    (draft / "config.json").write_text(NESTED_CONFIG)

    def write(wanted=(0, 3, 16), **facts):
        provenance = {"drafter": str(draft), "family": "llama", "layers": 30, "proved": True}
        data = {"schema_version": 1, "wanted": list(wanted), "provenance": provenance | facts}
        (run / "verdict.json").write_text(json.dumps(data))
        return run

    return write


@pytest.fixture
def draftprobe(monkeypatch, capsys):
    """Run the command line in this process: exit code, stdout, stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["draftprobe", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


def test_mend_shows_the_diff(run_folder, draftprobe):
    folder = run_folder()
    for verdict in (folder, folder / "verdict.json"):
        code, out, err = draftprobe("mend", verdict, "--engine", "sglang")
        assert (code, err) == (0, "")
        assert '+    "eagle_aux_hidden_state_layer_ids": [-1, 2, 15],' in out.splitlines()
        assert "\nsafe for sglang@0.5.23: nested ids [-1, 2, 15] feed h[0], h[3], h[16]" in out


def test_mend_says_unsafe(run_folder, draftprobe):
    code, out, _ = draftprobe("mend", run_folder(proved=False), "--engine", "vllm@0.32.0")
    assert code == 0
    assert "\nUNSAFE for vllm@0.32.0" in out


def test_mend_of_equal_taps_says_that_no_gain_was_measured(run_folder, draftprobe):
    folder = run_folder(proved=False)
    file = folder / "verdict.json"
    data = json.loads(file.read_text())
    file.write_text(json.dumps(data | {"served": data["wanted"]}))
    _, out, _ = draftprobe("mend", folder, "--engine", "sglang")
    assert "no gain was measured, as served and wanted are the same" in out
    assert "not proved by replay" not in out


def test_mend_that_is_unsafe_says_so_where_it_writes(run_folder, draftprobe, tmp_path):
    folder = run_folder(proved=False)
    _, out, _ = draftprobe("mend", folder, "--engine", "sglang", "--write")
    path = tmp_path / "draft" / "config.sglang.json"
    assert f"written: {path} (UNSAFE, not proved to help; nothing else in" in out


def test_mend_for_an_engine_that_refuses_the_folder_says_so_first(run_folder, draftprobe, tmp_path):
    from make_cases import CONFIG, weights, write_folder

    draft = tmp_path / "other"
    write_folder(draft, CONFIG | {"architectures": ["Eagle3DraftModel"]}, weights())
    folder = run_folder(drafter=str(draft), layers=12, wanted=(2, 6, 9))
    _, out, _ = draftprobe("mend", folder, "--engine", "sglang")
    assert out.startswith("REFUSES  sglang@0.5.23 does not load this folder: SGLang has no drafter")
    _, out, _ = draftprobe("mend", folder, "--engine", "sglang", "--json")
    assert "Eagle3DraftModel" in json.loads(out)["refused"]
    write_folder(tmp_path / "good", CONFIG, weights())
    folder = run_folder(drafter=str(tmp_path / "good"), layers=12, wanted=(2, 6, 9))
    _, out, _ = draftprobe("mend", folder, "--engine", "sglang")
    assert out == "sglang@0.5.23: nothing to change: sglang@0.5.23 feeds h[2], h[6], h[9] already\n"


def test_mend_of_a_drafters_folder_names_the_way_from_files(run_folder, draftprobe, tmp_path):
    run_folder()
    code, out, err = draftprobe("mend", tmp_path / "draft", "--engine", "sglang")
    assert (code, out) == (2, "")
    assert "draftprobe diagnose --out" in err
    assert f"draftprobe inspect {tmp_path / 'draft'} " in err


def test_mend_writes_beside_and_never_over(run_folder, draftprobe, tmp_path):
    arguments = ("mend", run_folder(), "--engine", "vllm", "--write", "--json")
    code, out, _ = draftprobe(*arguments)
    path = tmp_path / "draft" / "config.vllm.json"
    told = json.loads(out)
    assert (code, told["written"]) == (0, str(path))
    assert told["mend"]["safe"] is True
    assert json.loads(path.read_text())[KEY] == [0, 3, 16]
    assert (tmp_path / "draft" / "config.json").read_text() == NESTED_CONFIG
    path.write_text("mine")
    code, out, err = draftprobe(*arguments)
    assert (code, out) == (2, "")
    assert "is not overwritten" in err
    assert path.read_text() == "mine"
    assert len(list((tmp_path / "draft").iterdir())) == 2


def test_the_diff_is_what_is_written(run_folder, draftprobe, tmp_path):
    _, out, _ = draftprobe("mend", run_folder(), "--engine", "sglang", "--write", "--json")
    written = (tmp_path / "draft" / "config.sglang.json").read_text()
    lines = difflib.unified_diff(
        NESTED_CONFIG.splitlines(True),
        written.splitlines(True),
        "config.json",
        "config.sglang.json",
    )
    assert json.loads(out)["mend"]["diff"] == "".join(lines)


def test_mend_of_what_cannot_be_expressed(run_folder, draftprobe):
    folder = run_folder(wanted=(16, 3, 0))
    code, out, _ = draftprobe("mend", folder, "--engine", "sglang")
    assert code == 0
    assert out.startswith("sglang@0.5.23: cannot be expressed here: ")
    code, _, err = draftprobe("mend", folder, "--engine", "sglang", "--write")
    assert code == 2
    assert "no config to write" in err


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"drafter": None}, "'drafter'"),
        ({"drafter": ""}, "'drafter'"),
        ({"drafter": "/nowhere/draft"}, "cannot be read"),
        ({"drafter": "a\0b"}, "'drafter'"),
        ({"family": 3}, "'family'"),
        ({"layers": "30"}, "'layers'"),
        ({"layers": True}, "'layers'"),
        ({"layers": 0}, "layers"),
        ({"layers": 10**9}, "layers"),
        ({"proved": "yes"}, "'proved'"),
        ({"wanted": []}, "'wanted'"),
        ({"wanted": [0, 3, 31]}, "does not exist"),
        ({"wanted": [-1, 3, 16]}, "expected boundaries"),
        ({"wanted": [True, 3, 16]}, "'wanted'"),
        ({"wanted": ["0,1", 3]}, "'wanted'"),
    ],
)
def test_a_verdict_of_another_shape_is_bad_input(run_folder, draftprobe, facts, told):
    code, out, err = draftprobe("mend", run_folder(**facts), "--engine", "sglang")
    assert (code, out) == (2, "")
    assert told in err


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema_version": 1}', "\xff", '{"wanted": [1]']
)
def test_a_file_that_is_no_verdict_is_bad_input(tmp_path, text):
    (tmp_path / "verdict.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"verdict\.json"):
        read_wanted(tmp_path)


def test_an_unknown_engine_is_bad_input(run_folder, draftprobe):
    code, _, err = draftprobe("mend", run_folder(), "--engine", "trtllm")
    assert code == 2
    assert "openvino, sglang, tensorrt_llm, vllm" in err


def test_a_folder_that_cannot_be_written_to_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        write_beside(tmp_path / "nowhere", "{}", parse_engine("sglang"))
