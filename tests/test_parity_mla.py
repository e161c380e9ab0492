"""Latent attention against transformers' own DeepSeek-V3 modules, the first layer's input widened.

The peer runs every chain anew from its first slot, without a cache: layers, norms, MLP and rope are
transformers', only their order is written here, from the vLLM 0.32.0 drafter ``deepseek_eagle3``.
"""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config

from draftprobe.dialects.trainers import wiring_of
from draftprobe.drafter.checkpoint import open_checkpoint
from draftprobe.drafter.model import Cache, load_drafter, unroll

HIDDEN, VOCABULARY, TOKENS, STEPS = 32, 64, 9, 4
YARN = {
    "rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
CASES = {
    "plain": {},
    "yarn of Kimi": {"rope": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "yarn, two scales": {"rope": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}},
    "yarn, no scale": {"rope": YARN},
    "queries not compressed": {"q_lora_rank": None},
    "biases": {"attention_bias": True},
    "two layers": {"layers": 2},
    "values wider than keys": {"v_head_dim": 24},
}


class Peer:
    """EAGLE-3 around transformers' modules."""

    def __init__(self, layers=1, rope=(), **facts):
        torch.manual_seed(0)
        self.config = DeepseekV3Config(
            **{
                "hidden_size": HIDDEN, "intermediate_size": 48, "num_attention_heads": 4,
                "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 12,
                "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
                "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6, "max_position_embeddings": 262144,
                "num_hidden_layers": layers,
                "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"} | dict(rope),
            } | facts
        )  # fmt: skip
        self.config._attn_implementation = "eager"
        config = self.config
        self.parts = torch.nn.ModuleDict({
            "embed_tokens": torch.nn.Embedding(VOCABULARY, HIDDEN),
            "fc": torch.nn.Linear(3 * HIDDEN, HIDDEN, bias=False),
            "layers": torch.nn.ModuleList(self._layer(config, i) for i in range(layers)),
            "norm": deepseek.DeepseekV3RMSNorm(HIDDEN),
            "lm_head": torch.nn.Linear(HIDDEN, VOCABULARY, bias=False),
        })  # fmt: skip
        self.rope = deepseek.DeepseekV3RotaryEmbedding(config)
        with torch.no_grad():
            for parameter in self.parts.parameters():
                noise = torch.randn(parameter.shape)
                scale = 1.5 * parameter.shape[-1] ** -0.5
                parameter.copy_(1 + 0.4 * noise if parameter.dim() == 1 else scale * noise)

    @staticmethod
    def _layer(config, number):
        attention = deepseek.DeepseekV3Attention(config, number)
        if number == 0:
            for name in ("q_proj", "q_a_proj", "kv_a_proj_with_mqa"):
                if (old := getattr(attention, name)) is not None:
                    wide = torch.nn.Linear(2 * HIDDEN, old.out_features, old.bias is not None)
                    setattr(attention, name, wide)
        norms = ["input_layernorm", "post_attention_layernorm"] + ["hidden_norm"] * (number == 0)
        return torch.nn.ModuleDict(
            {name: deepseek.DeepseekV3RMSNorm(HIDDEN) for name in norms}
            | {"self_attn": attention, "mlp": deepseek.DeepseekV3MLP(config)}
        )

    def outputs(self, e, g, positions):
        """All slots of one chain: e, g [n, H] -> [n, H]."""
        n, o, turned = len(e), g[None], self.rope(e[None], positions[None])
        mask = torch.full((n, n), -torch.inf).triu(1)[None, None]
        for number, layer in enumerate(self.parts["layers"]):
            u = layer["input_layernorm"](e[None] if number == 0 else o)
            if number == 0:
                u = torch.cat([u, layer["hidden_norm"](o)], dim=-1)
            a = o + layer["self_attn"](u, turned, mask)[0]
            o = a + layer["mlp"](layer["post_attention_layernorm"](a))
        return o[0]

    def logits(self, states, tokens, slot, steps):
        """Teacher-forced logits [steps, V] of the chain that starts at ``slot``."""
        e = list(self.parts["embed_tokens"](tokens[1 : slot + 2]))
        g = list(self.parts["fc"](states[: slot + 1]))
        found = []
        for step in range(steps):
            o = self.outputs(torch.stack(e), torch.stack(g), torch.arange(len(e)))[-1]
            found.append(self.parts["lm_head"](self.parts["norm"](o)))
            g.append(o)
            if slot + 2 + step < len(tokens):
                e.append(self.parts["embed_tokens"](tokens[slot + 2 + step]))
        return torch.stack(found)

    def save(self, folder):
        """As TorchSpec and vLLM name them; ``rope_scaling`` in the older spelling."""
        folder.mkdir()
        config = self.config.to_dict()
        kept = (
            "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers",
            "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
            "vocab_size", "rms_norm_eps", "attention_bias", "rope_parameters",
        )  # fmt: skip
        written = {key: config[key] for key in kept if key in config}
        written |= {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"}
        (folder / "config.json").write_text(json.dumps(written))
        weights = {name: value.contiguous() for name, value in self.parts.state_dict().items()}
        save_file(weights, folder / "model.safetensors")
        return open_checkpoint(folder)


@pytest.fixture(params=CASES.values(), ids=CASES)
def pair(request, tmp_path):
    peer = Peer(**request.param)
    checkpoint = peer.save(tmp_path / "folder")
    wiring = wiring_of(checkpoint, (0, 2, 3))
    assert (wiring.rope.style, wiring.vocabulary) == ("interleaved", "identity")
    return peer, load_drafter(checkpoint, wiring, torch.empty(0))


def inputs():
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(TOKENS - 1, 3 * HIDDEN, generator=generator)
    return states, torch.randint(VOCABULARY, (TOKENS,), generator=generator)


@torch.no_grad()
def test_every_step_of_every_chain_equals_the_peer(pair):
    peer, drafter = pair
    states, tokens = inputs()
    found = [drafter.logits(o)[0] for o in unroll(drafter, states[None], tokens[None], STEPS)]
    for slot in range(TOKENS - 1):
        steps = min(STEPS, TOKENS - 1 - slot)
        wanted = peer.logits(states, tokens, slot, steps)
        ours = torch.stack([logits[slot] for logits in found[:steps]])
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_cache_equals_the_peer(pair):
    """Slots in two portions, a chain of its own from each, forgotten again."""
    peer, drafter = pair
    states, tokens = inputs()
    cache, slot = Cache(), 0
    for until in (4, 6):
        at = torch.arange(slot, until)
        o = drafter.block(
            drafter.embed(tokens[at + 1])[None], drafter.fuse(states[at])[None], at, cache
        )[:, -1:]
        found, known = [drafter.logits(o)[0, 0]], cache.length
        for step in range(1, 3):
            e = drafter.embed(tokens[until + step])[None, None]
            o = drafter.block(e, drafter.feedback(o), torch.tensor([until - 1 + step]), cache)
            found.append(drafter.logits(o)[0, 0])
        cache.truncate(known)
        slot = until
        wanted = peer.logits(states, tokens, until - 1, 3)
        torch.testing.assert_close(torch.stack(found), wanted, rtol=1e-4, atol=1e-4)
    assert cache.length == 6


@torch.no_grad()
def test_half_style_is_another_drafter(tmp_path):
    """The comparison has teeth, and transformers' other pair layout is the one named half."""
    peer = Peer(rope_interleave=False)
    checkpoint = peer.save(tmp_path / "folder")
    wiring = wiring_of(checkpoint, (0, 2, 3))
    drafter = load_drafter(checkpoint, wiring, torch.empty(0))
    states, tokens = inputs()
    wanted = peer.logits(states, tokens, 5, 1)[0]
    errors = []
    for style in ("interleaved", "half"):
        drafter.wiring = replace(wiring, rope=replace(wiring.rope, style=style))
        (o,) = unroll(drafter, states[None], tokens[None], 1)
        errors.append(float((drafter.logits(o)[0, 5] - wanted).abs().max()))
    assert errors[0] > 0.01
    assert errors[1] < 1e-4
