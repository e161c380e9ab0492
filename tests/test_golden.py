"""The golden file: written, read back, replayed; a changed weight or config is told."""

import json

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from draftprobe.cli import app
from draftprobe.drafter import golden
from draftprobe.errors import InputError

STEPS = 3


@pytest.fixture
def carried(tmp_path):
    """A drafter folder with a golden file, and the drafter and text it was made from."""
    made = tiny.drafter()
    states, _ = tiny.planted_states(tmp_path / "s.safetensors", made, count=1)
    text = states.sequence(0, tiny.TAPS)
    folder = tiny.save_drafter(tmp_path / "d", made)
    golden.write(golden.make(made, text.tokens, text.taps(tiny.TAPS), STEPS), folder)
    return folder, made, text


def test_expected_drafts_are_those_of_a_decode_without_cache(carried):
    folder, made, text = carried
    taps = tiny.taps_of(made, text.h)
    drafts = golden.read(folder).drafts
    n = len(text.tokens)
    for slot in range(n - STEPS - 1):
        tokens = text.tokens.tolist()
        follow = [tokens[slot + 2 + i] for i in range(STEPS - 1)]
        outs = tiny.outputs(made, taps, text.tokens, slot, follow)
        expected = [int(made.target_ids()[made.logits(o).argmax()]) for o in outs]
        assert drafts[:, slot].tolist() == expected


def test_selftest_passes_on_untouched_folder(carried):
    result = CliRunner().invoke(app, ["selftest", str(carried[0]), "--json"])
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told["same"] is True
    assert [s["same"] for s in told["steps"]] == [s["n"] for s in told["steps"]]


def test_selftest_tells_a_changed_wire_and_changed_weights(carried):
    folder = carried[0]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"norm_output": True}))
    result = CliRunner().invoke(app, ["selftest", str(folder)])
    assert result.exit_code == 1
    assert "feedback" in result.stdout
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights["fc.weight"] = weights["fc.weight"].flip(1).contiguous()
    save_file(weights, folder / "model.safetensors")
    assert CliRunner().invoke(app, ["selftest", str(folder)]).exit_code == 1


@pytest.mark.parametrize("name", ["taps", "embedding", "drafts", "tokens"])
def test_parts_that_do_not_fit_are_refused(carried, name):
    folder = carried[0]
    path = folder / golden.NAME
    kept = golden.read(folder)
    tensors = load_file(path)
    cut = tensors[name][:, :3] if name == "drafts" else tensors[name][:1]
    tensors[name] = cut.contiguous()
    metadata = {
        golden._KEY: json.dumps(
            {"wiring": golden.to_json(kept.wiring), "vocabulary": kept.vocabulary}
        )
    }
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(InputError, match="do not fit"):
        golden.read(folder)


def test_file_without_golden_metadata_is_refused(carried):
    save_file({"tokens": torch.zeros(3)}, carried[0] / golden.NAME)
    with pytest.raises(InputError, match="not a golden file"):
        golden.read(carried[0])
