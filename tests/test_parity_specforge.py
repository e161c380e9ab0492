"""SpecForge's own draft class, out of its wheel: equal logits on the same weights.

The wheel has one decoder layer, no reduced set of flags but ``fc_norm`` and ``norm_output``, which
in this version says whether the norm stands before the head (see ``dialects/trainers``).
"""

import json
import subprocess
import sys
import warnings
import zipfile
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import load_drafter, unroll
from draftprobe.drafter.vocabulary import tables

RELEASE = "0.2.0"
HIDDEN, TARGET, VOCABULARY, DRAFT, TOKENS, STEPS = 32, 24, 96, 40, 19, 4
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
CASES = {
    "as shipped": {},
    "full vocabulary": {"draft_vocab_size": VOCABULARY},
    "fc_norm": {"fc_norm": True},
    "no norm before the head": {"norm_output": False},
    "target of another width": {"target_hidden_size": TARGET},
    "llama3": {"rope_scaling": LLAMA3},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "yarn": {"rope_scaling": YARN},
}


@pytest.fixture(scope="module")
def specforge(tmp_path_factory):
    """The module that defines the class; its wheel is unpacked beside, not installed."""
    folder = tmp_path_factory.mktemp("specforge")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    try:
        subprocess.run([*command, f"specforge=={RELEASE}"], check=True, capture_output=True)
        (wheel,) = folder.glob("*.whl")
    except (subprocess.SubprocessError, ValueError):
        pytest.skip(f"the wheel of specforge {RELEASE} cannot be had here")
    zipfile.ZipFile(wheel).extractall(folder / "wheel")
    sys.path.insert(0, str(folder / "wheel"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # flash attention is not there
            import specforge.modeling.draft.llama3_eagle as module
    except ImportError as error:
        pytest.skip(f"specforge {RELEASE} cannot be imported here: {error}")
    finally:
        sys.path.remove(str(folder / "wheel"))
    with torch.compiler.set_stance("force_eager"):  # its norm is compiled, which takes a minute
        yield module


def build(module, **facts):
    """Their class with random weights."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": HIDDEN,
        "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCABULARY,
        "draft_vocab_size": DRAFT, "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
        "rope_theta": 500.0, "hidden_act": "silu", "pad_token_id": None,
    } | facts  # fmt: skip
    peer = module.LlamaForCausalLMEagle3(module.LlamaConfig(**config)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in peer.parameters():
            vector = parameter.dim() == 1
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(
                1 + 0.4 * noise if vector else 1.5 * parameter.shape[-1] ** -0.5 * noise
            )
        if config["draft_vocab_size"] < VOCABULARY:
            kept = torch.randperm(VOCABULARY, generator=generator)[:DRAFT].sort().values
            d2t, t2d = tables(kept, VOCABULARY)
            peer.d2t.copy_(d2t)
            peer.t2d.copy_(t2d)
    return peer, config


def theirs(module, peer, states, tokens):
    """Its training-time test by hand: the same layer again, cached, on its own output."""
    cache, slots = [[], []], len(states)
    ones = torch.ones(1, slots, dtype=torch.bool)
    found = []
    with torch.no_grad():
        hidden = peer.project_hidden_states(states[None])
        mask = module.prepare_decoder_attention_mask(ones, (1, slots), hidden, 0)
        for step in range(STEPS):
            read = torch.cat([tokens[1 + step :], tokens.new_zeros(step)])[None]
            hidden = peer.backbone(
                input_embeds=peer.embed_input_ids(read),
                hidden_states=hidden,
                cache_hidden=cache,
                attention_mask=mask,
                position_ids=torch.arange(slots)[None],
            )
            found.append(peer.compute_logits(hidden)[0])
    return found


def folder_of(peer, config, folder):
    """As SpecForge exports: no embedding, both tables, the module's own names."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {k: v.contiguous() for k, v in peer.state_dict().items() if "embed" not in k}
    save_file(tensors, folder / "model.safetensors")
    return open_checkpoint(folder)


def largest(found, wanted):
    return max(
        float((a[: TOKENS - 1 - i] - b[: TOKENS - 1 - i]).abs().max())
        for i, (a, b) in enumerate(zip(found, wanted, strict=True))
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_its_class_and_its_export_give_the_same_logits(specforge, case, tmp_path):
    peer, config = build(specforge, **case)
    checkpoint = folder_of(peer, config, tmp_path / "folder")
    trainer = "specforge@before-879" if "norm_output" in case else None
    wiring = wiring_of(checkpoint, (0, 2, 3), trainer)
    drafter = load_drafter(checkpoint, wiring, peer.embed_tokens.weight.detach())
    generator = torch.Generator().manual_seed(1)
    width = 3 * config.get("target_hidden_size", HIDDEN)
    states = torch.randn(TOKENS - 1, width, generator=generator)
    tokens = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    wanted = theirs(specforge, peer, states, tokens)
    with torch.inference_mode():
        found = [drafter.logits(o)[0] for o in unroll(drafter, states[None], tokens[None], STEPS)]
    assert largest(found, wanted) < 1e-4
    assert float((found[1] - found[0]).abs().max()) > 0.1  # the steps are not one and the same
    drafter.wiring = replace(wiring, head_norm=not wiring.head_norm)
    with torch.inference_mode():
        other = [drafter.logits(o)[0] for o in unroll(drafter, states[None], tokens[None], STEPS)]
    assert largest(other, wanted) > 0.1  # and the comparison has teeth
