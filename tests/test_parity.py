"""The drafter against independent implementations: speculators' EAGLE-3, transformers' rope."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, PhiConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

from draftprobe.drafter.model import Drafter, Shape, unroll
from draftprobe.drafter.rope import amplitude, inverse_frequencies, rotate
from draftprobe.drafter.vocabulary import tables
from draftprobe.drafter.wiring import Rope, Wiring, eagle3
from draftprobe.errors import InputError

HIDDEN, HEAD_DIM, VOCABULARY, DRAFT, TOKENS, STEPS = 32, 8, 96, 40, 23, 4
SHAPE = Shape(HIDDEN, HIDDEN, 3, 4, 2, HEAD_DIM, 48, DRAFT, VOCABULARY, 1e-6)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 256}
YARNS = {
    "yarn": YARN,
    "yarn, betas": YARN | {"beta_fast": 8, "beta_slow": 2, "factor": 2.5},
    "yarn, deepseek": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn, attention factor": YARN | {"attention_factor": 1.3},
    "yarn, not rounded": YARN | {"truncate": False},
}


def rope_of(scaling: dict, theta: float = 500.0) -> Rope:
    return Rope(theta, scaling=tuple(sorted(scaling.items())))


def random_drafter(wiring: Wiring) -> Drafter:
    """Every weight and norm random, the embedding and a reduced draft vocabulary too."""
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    drafter = Drafter(SHAPE, wiring, embedding)
    with torch.no_grad():
        for parameter in drafter.parameters():
            scale = 0.3 if parameter.dim() == 1 else 1.5 * parameter.shape[-1] ** -0.5
            base = 1.0 if parameter.dim() == 1 else 0.0
            parameter.copy_(base + scale * torch.randn(parameter.shape, generator=generator))
    kept = torch.randperm(VOCABULARY, generator=generator)[:DRAFT].sort().values
    drafter.d2t.copy_(tables(kept, VOCABULARY)[0])
    return drafter.eval()


def peer_logits(
    drafter: Drafter, scaling: dict, states: torch.Tensor, tokens: torch.Tensor
) -> list[torch.Tensor]:
    """Each step's logits [T, D] from speculators' own module with the same weights."""
    reason = "speculators is not installed: `make test` installs it, without its dependencies"
    pytest.importorskip("speculators", reason=reason)
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    wiring = drafter.wiring
    layer = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=SHAPE.intermediate,
        num_hidden_layers=1,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        head_dim=HEAD_DIM,
        vocab_size=VOCABULARY,
        rms_norm_eps=SHAPE.epsilon,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": wiring.rope.theta, "rope_type": "default"} | scaling,
        pad_token_id=None,
    )
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=DRAFT,
        norm_before_residual=wiring.residual == "normed",
        norm_before_fc=wiring.pre_fc_norm == "whole",
        fc_norm=wiring.pre_fc_norm == "per_tap",
        norm_output=wiring.feedback == "post_norm",
        eagle_aux_hidden_state_layer_ids=[0, 1, 2],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    peer = Eagle3DraftModel(config).eval()
    weights = drafter.state_dict()
    weights["embed_tokens.weight"] = drafter.embedding
    left = peer.load_state_dict(weights, strict=False)
    assert not left.unexpected_keys
    assert all(name.startswith(("verifier_", "t2d")) for name in left.missing_keys)
    seen: list[torch.Tensor] = []
    peer.lm_head.register_forward_hook(lambda _module, _args, output: seen.append(output[0]))
    with torch.no_grad():
        # Its inputs are shifted beforehand: state t beside token t + 1.
        peer(
            hidden_states=states[None],
            input_ids=tokens[None, 1:],
            document_ids=torch.zeros(1, len(states), dtype=torch.long),
            ttt_steps=STEPS,
        )
    return seen


WIRES = {
    "paper": {},
    "residual after the norm": {"residual": "normed"},
    "one norm before fc": {"pre_fc_norm": "whole"},
    "a norm per tap": {"pre_fc_norm": "per_tap"},
    "normed feedback": {"feedback": "post_norm"},
    "all of them": {"residual": "normed", "pre_fc_norm": "per_tap", "feedback": "post_norm"},
}


@pytest.mark.parametrize("scaling", [{}, LINEAR, LLAMA3], ids=["default", "linear", "llama3"])
@pytest.mark.parametrize("wires", WIRES.values(), ids=WIRES)
def test_every_step_equals_the_peer(wires, scaling):
    drafter = random_drafter(replace(eagle3((0, 1, 2), rope_of(scaling)), **wires))
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(TOKENS - 1, 3 * HIDDEN, generator=generator)
    tokens = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    wanted = peer_logits(drafter, scaling, states, tokens)
    with torch.inference_mode():
        found = [drafter.logits(o)[0] for o in unroll(drafter, states[None], tokens[None], STEPS)]
    assert len(found) == len(wanted) == STEPS
    for step, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        inside = TOKENS - 1 - step  # later slots read tokens that the text does not have
        torch.testing.assert_close(ours[:inside], theirs[:inside], rtol=1e-4, atol=1e-4)
    assert found[1].sub(found[0]).abs().max() > 0.1  # the steps are not one and the same


@pytest.mark.parametrize("wires", list(WIRES.values())[1:], ids=list(WIRES)[1:])
def test_the_peer_notices_each_wire(wires):
    """The comparison has teeth: with that wire as in the paper, some step differs."""
    drafter = random_drafter(replace(eagle3((0, 1, 2), rope_of({})), **wires))
    states = torch.randn(TOKENS - 1, 3 * HIDDEN, generator=torch.Generator().manual_seed(1))
    tokens = torch.arange(TOKENS)
    wanted = peer_logits(drafter, {}, states, tokens)
    drafter.wiring = eagle3((0, 1, 2), rope_of({}))
    with torch.inference_mode():
        found = [drafter.logits(o)[0] for o in unroll(drafter, states[None], tokens[None], STEPS)]
    assert max((a - b).abs().max() for a, b in zip(found, wanted, strict=True)) > 0.1


ROPES = {"default": {}, "linear": LINEAR, "llama3": LLAMA3} | YARNS


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("scaling", ROPES.values(), ids=ROPES)
def test_rope_equals_transformers(scaling, theta):
    head_dim = 64
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=4096,
        rope_parameters={"rope_theta": theta, "rope_type": "default"} | scaling,
    )
    peer, rope = LlamaRotaryEmbedding(config), rope_of(scaling, theta)
    frequencies = inverse_frequencies(rope, head_dim)
    torch.testing.assert_close(frequencies, peer.inv_freq, rtol=1e-6, atol=0)
    positions = torch.tensor([[0, 1, 2, 63, 64, 65, 500, 4000]])
    x = torch.randn(1, 2, positions.shape[1], head_dim)
    wanted, _ = apply_rotary_pos_emb(x, x, *peer(x, positions))
    found = rotate(x, positions, frequencies, "half", amplitude(rope))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)
    assert amplitude(rope) == pytest.approx(peer.attention_scaling)


def test_partial_rope_equals_transformers():
    """Phi turns a share of each head and passes the rest."""
    rope = {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5}
    config = PhiConfig(hidden_size=128, num_attention_heads=2, rope_parameters=rope)
    peer = PhiRotaryEmbedding(config)
    frequencies = inverse_frequencies(Rope(10000.0, partial=0.5), 64)
    torch.testing.assert_close(frequencies, peer.inv_freq, rtol=1e-7, atol=0)
    x, positions = torch.randn(1, 2, 4, 64), torch.tensor([[0, 1, 7, 300]])
    wanted, _ = apply_rotary_pos_emb(x[..., :32], x[..., :32], *peer(x, positions))
    wanted = torch.cat([wanted, x[..., 32:]], dim=-1)
    torch.testing.assert_close(rotate(x, positions, frequencies, "half"), wanted)


def test_rope_by_hand():
    """One pair, theta irrelevant: position 1 turns it by one radian; the rest passes."""
    rope = Rope(10000.0, partial=0.5)
    frequencies = inverse_frequencies(rope, 4)
    x = torch.tensor([[[1.0, 0.0, 5.0, 6.0]]])  # [heads, T, d]
    for style in ("half", "interleaved"):
        turned = rotate(x, torch.tensor([1]), frequencies, style)
        wanted = torch.tensor([[[math.cos(1), math.sin(1), 5.0, 6.0]]])
        torch.testing.assert_close(turned, wanted)


def test_interleaved_is_half_with_channels_in_another_order():
    x, positions = torch.randn(2, 5, 8), torch.arange(5)
    frequencies = inverse_frequencies(Rope(100.0), 8)
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # pairs (i, i + 4) side by side
    half = rotate(x, positions, frequencies, "half")[..., order]
    torch.testing.assert_close(rotate(x[..., order], positions, frequencies, "interleaved"), half)


def test_scores_know_only_the_distance():
    """What the feasibility study found invisible: a shift of all positions."""
    q, k = torch.randn(1, 6, 8), torch.randn(1, 6, 8)
    frequencies, positions = inverse_frequencies(Rope(100.0), 8), torch.arange(6)
    scores = [
        rotate(q, positions + shift, frequencies, "half")
        @ rotate(k, positions + shift, frequencies, "half").transpose(-1, -2)
        for shift in (0, 17)
    ]
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "found 'longrope'"),
        ({"rope_type": "dynamic", "factor": 2.0}, "found 'dynamic'"),
        ({"type": "su"}, "found 'su'"),
        ({"rope_type": "linear"}, "positive number under 'factor', found 'None'"),
        ({"rope_type": "linear", "factor": "8"}, "positive number under 'factor', found '8'"),
        ({"rope_type": "linear", "factor": 0}, "positive number under 'factor'"),
        ({"rope_type": "yarn", "factor": 2.0}, "under 'original_max_position_embeddings'"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "expected low_freq_factor below 4"),
    ],
)
def test_a_scaling_that_is_not_known_or_not_whole_is_refused(scaling, message):
    with pytest.raises(InputError, match=message):
        inverse_frequencies(rope_of(scaling), 8)


def test_nothing_to_turn_is_refused():
    with pytest.raises(InputError, match="even number of channels to turn, found 3"):
        inverse_frequencies(Rope(100.0, partial=0.4), 8)
