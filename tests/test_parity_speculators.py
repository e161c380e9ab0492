"""speculators' own EAGLE-3 module, and the folder that it wrote itself, read here: equal logits.

Weights, norms and vocabulary are random. Every wire of a case is checked to matter.
"""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.layout import layout_of
from draftprobe.drafter.model import load_drafter, unroll
from draftprobe.drafter.vocabulary import tables

pytest.importorskip(
    "speculators",
    reason="speculators is not installed: `make test` installs it, without its dependencies",
)

HIDDEN, HEADS, KV_HEADS, SIZE, VOCABULARY, DRAFT, TOKENS, STEPS = 32, 4, 2, 8, 96, 40, 19, 4
TAPS = (0, 2, 3)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
CASES = {
    "llama": {},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": True},
    "two layers": {"layers": 2},
    "full vocabulary": {"draft": VOCABULARY},
    "yarn": {"rope": YARN},
    "biases": {"attention_bias": True},
    "two taps": {"taps": (0, 3)},
    "qwen3": {"kind": "qwen3"},
    "qwen3, two layers, all flags": {
        "kind": "qwen3", "layers": 2, "fc_norm": True, "norm_before_residual": True,
        "norm_output": True,
    },
    "three layers, all flags": {
        "layers": 3, "norm_before_fc": True, "norm_before_residual": True, "norm_output": True,
    },
}  # fmt: skip


def build(kind="llama", layers=1, draft=DRAFT, taps=TAPS, rope=(), attention_bias=False, **flags):
    """Their module with random weights; norms around one, large enough to matter."""
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    layer = (Qwen3Config if kind == "qwen3" else LlamaConfig)(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=SIZE,
        vocab_size=VOCABULARY,
        rms_norm_eps=1e-5,
        max_position_embeddings=256,
        attention_bias=attention_bias,
        rope_parameters={"rope_theta": 500.0, "rope_type": "default"} | dict(rope),
        pad_token_id=None,
    )
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=draft,
        eagle_aux_hidden_state_layer_ids=list(taps),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **flags,
    )
    peer = Eagle3DraftModel(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in peer.parameters():
            vector = parameter.dim() == 1
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(
                1 + 0.4 * noise if vector else 1.5 * parameter.shape[-1] ** -0.5 * noise
            )
        if draft < VOCABULARY:
            kept = torch.randperm(VOCABULARY, generator=generator)[:draft].sort().values
            peer.load_vocab_mappings(*reversed(tables(kept, VOCABULARY)))
    return peer


def theirs(peer, states, tokens):
    """Each step's logits [T, D]; their inputs are shifted beforehand."""
    seen = []
    hook = peer.lm_head.register_forward_hook(lambda _m, _args, out: seen.append(out[0]))
    with torch.no_grad():
        peer(
            hidden_states=states[None],
            input_ids=tokens[None, 1:],
            document_ids=torch.zeros(1, len(states), dtype=torch.long),
            ttt_steps=STEPS,
        )
    hook.remove()
    return seen


def ours(drafter, states, tokens):
    with torch.inference_mode():
        return [drafter.logits(o)[0] for o in unroll(drafter, states[None], tokens[None], STEPS)]


def largest(found, wanted):
    """Later slots read tokens that the text does not have: left out."""
    pairs = zip(found, wanted, strict=True)
    return max(
        float((a[: TOKENS - 1 - i] - b[: TOKENS - 1 - i]).abs().max())
        for i, (a, b) in enumerate(pairs)
    )


def inputs(taps=TAPS):
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(TOKENS - 1, len(taps) * HIDDEN, generator=generator)
    return states, torch.randint(VOCABULARY, (TOKENS,), generator=generator)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_their_folder_gives_their_logits(case, tmp_path):
    peer, taps = build(**case), case.get("taps", TAPS)
    peer.save_pretrained(tmp_path / "folder")
    checkpoint = open_checkpoint(tmp_path / "folder")
    wiring = wiring_of(checkpoint, taps)
    assert wiring.embedding == wiring.head == "own"
    drafter = load_drafter(checkpoint, wiring, torch.empty(0))
    assert drafter.shape.layers == case.get("layers", 1)
    assert drafter.shape.qk_norm == (case.get("kind") == "qwen3")
    if case.get("draft") != VOCABULARY:
        wanted = torch.arange(DRAFT) + peer.d2t
        assert torch.equal(drafter.target_ids(), wanted)
    states, tokens = inputs(taps)
    found, wanted = ours(drafter, states, tokens), theirs(peer, states, tokens)
    assert largest(found, wanted) < 1e-4
    assert float((found[1] - found[0]).abs().max()) > 0.1  # the steps are not one and the same


WRONG = {
    "norm_before_fc": {"pre_fc_norm": "none"},
    "fc_norm": {"pre_fc_norm": "none"},
    "norm_before_residual": {"residual": "raw"},
    "norm_output": {"feedback": "pre_norm"},
}


@pytest.mark.parametrize("name", WRONG)
def test_the_peer_notices_each_flag(name, tmp_path):
    peer = build(**CASES[name])
    peer.save_pretrained(tmp_path / "folder")
    checkpoint = open_checkpoint(tmp_path / "folder")
    wiring = replace(wiring_of(checkpoint, TAPS), **WRONG[name])
    states, tokens = inputs()
    found = ours(load_drafter(checkpoint, wiring, torch.empty(0)), states, tokens)
    assert largest(found, theirs(peer, states, tokens)) > 0.1


def test_what_they_write_is_understood_whole(tmp_path):
    peer = build(**CASES["qwen3, two layers, all flags"])
    peer.save_pretrained(tmp_path / "folder")
    layout = layout_of(open_checkpoint(tmp_path / "folder"))
    assert (layout.unknown, layout.twice, layout.layers) == ((), (), 2)
