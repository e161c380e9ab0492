"""What a run did not write, it neither removes nor replaces."""

import hashlib
import json

import pytest
import tiny
import tiny_targets
from typer.testing import CliRunner

from draftprobe.cli import app
from draftprobe.diagnose.run import check_out
from draftprobe.errors import InputError


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def target(tmp_path):
    tiny_targets.build("llama").save_pretrained(tmp_path / "target")
    (tmp_path / "tokens.jsonl").write_text('{"input_ids": [1, 2, 3, 4]}\n' * 2)
    return tmp_path


def test_capture_leaves_a_folder_of_others_alone(target):
    parts = target / "out.parts"
    parts.mkdir()
    (parts / "mine.txt").write_text("mine")
    (target / "out.partial").write_text("mine")
    command = ("capture", target / "target", "--tokens", target / "tokens.jsonl", "--out")
    result = run(*command, target / "out")
    assert isinstance(result.exception, InputError)
    assert (parts / "mine.txt").read_text() == "mine"
    assert run(*command, target / "other").exit_code == 0
    assert (target / "out.partial").read_text() == "mine"
    (target / "link").symlink_to("nowhere")
    assert isinstance(run(*command, target / "link").exception, InputError)
    assert (target / "link").is_symlink()


def test_train_leaves_a_folder_of_others_alone(target):
    command = ("capture", target / "target", "--tokens", target / "tokens.jsonl", "--out")
    assert run(*command, target / "s").exit_code == 0
    work = target / "draft.train"
    work.mkdir()
    (work / "mine.txt").write_text("mine")
    result = run(
        "train", "--target", target / "target", "--states", target / "s", "--taps", "0,2,4",
        "--draft-vocabulary", 16, "--updates", 1, "--batch-tokens", 16, "--out", target / "draft",
    )  # fmt: skip
    assert isinstance(result.exception, InputError)
    assert (work / "mine.txt").read_text() == "mine"


def test_run_folder_is_checked_before_the_work(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for bad in ("file", "link", "file/run"):
        with pytest.raises(InputError):
            check_out(tmp_path / bad)
    check_out(tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()


def test_an_index_decides_which_file_holds_a_tensor(tmp_path):
    from safetensors.torch import save_file

    from draftprobe.drafter.checkpoint import open_checkpoint, read_header

    made = tiny.drafter()
    folder = tiny.save_drafter(tmp_path / "d", made)
    zeros = {"fc.weight": made.fc.weight.detach() * 0, "norm.weight": made.norm.weight.detach()}
    save_file(zeros, folder / "z.safetensors")
    names = dict.fromkeys(read_header(folder / "model.safetensors")[0], "model.safetensors")
    names |= {"norm.weight": "z.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    assert open_checkpoint(folder).read("fc.weight").abs().sum() > 0
    index.write_text(json.dumps({"weight_map": names | {"nope": "model.safetensors"}}))
    with pytest.raises(InputError, match="nope"):
        open_checkpoint(folder)


def test_a_config_that_changed_is_not_mended(tmp_path):
    config = '{"vocab_size": 8}'
    (tmp_path / "config.json").write_text(config)
    facts = {"drafter": str(tmp_path), "family": "llama", "layers": 30, "proved": True}
    facts["config_sha256"] = hashlib.sha256(config.encode()).hexdigest()
    verdict = {"schema_version": 1, "wanted": [0, 3, 16], "provenance": facts}
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    assert run("mend", tmp_path / "verdict.json", "--engine", "vllm").exit_code == 0
    (tmp_path / "config.json").write_text('{"vocab_size": 9}')
    result = run("mend", tmp_path / "verdict.json", "--engine", "vllm")
    assert isinstance(result.exception, InputError)
    assert "changed" in str(result.exception)
