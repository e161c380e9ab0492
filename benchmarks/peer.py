"""The speculators package's own EAGLE-3 module with the weights of a case of at_size_case."""

from pathlib import Path

import torch

from draftprobe.drafter.checkpoint import open_checkpoint


def peer(folder: Path, steps: int = 1, attention: str = "sdpa") -> torch.nn.Module:
    """Their module in float32, whatever the folder's dtype, with every tensor of the folder.

    Of the implementations of attention that it takes without a compiler, sdpa is the quicker here.
    """
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig

    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    same = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps", "max_position_embeddings",
        "attention_bias",
    )  # fmt: skip
    layer = LlamaConfig(
        **{key: config[key] for key in same},
        rope_parameters={"rope_theta": config["rope_theta"], "rope_type": "default"},
        pad_token_id=None,
    )
    layer._attn_implementation = attention
    taps = checkpoint.tensors["fc.weight"].shape[1] // config["hidden_size"]
    speculators = SpeculatorsConfig(
        algorithm="eagle3",
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=steps)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )
    made = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=layer,
            draft_vocab_size=config["draft_vocab_size"],
            eagle_aux_hidden_state_layer_ids=list(range(taps)),
            speculators_config=speculators,
        )
    ).eval()
    own = {name: checkpoint.read(name) for name in checkpoint.tensors}
    made.load_vocab_mappings(own.pop("t2d"), own.pop("d2t"))
    unused = made.load_state_dict({k: v.float() for k, v in own.items()}, strict=False)
    if unused.unexpected_keys:
        raise SystemExit(f"speculators' module has no {unused.unexpected_keys}")
    return made.float()


class Logits:
    """What their head gave in a forward pass, step by step: [1, T, D]."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module, self.steps = module, []
        head = module.get_submodule("lm_head")
        head.register_forward_hook(lambda _m, _args, out: self.steps.append(out))

    def __call__(
        self, states: torch.Tensor, tokens: torch.Tensor, documents: torch.Tensor, steps: int
    ) -> list[torch.Tensor]:
        """States [T, taps * H], each slot's next token [T], each slot's sequence [T]."""
        self.steps.clear()
        with torch.inference_mode():
            self.module(
                hidden_states=states[None],
                input_ids=tokens[None],
                document_ids=documents[None],
                ttt_steps=steps,
            )
        return list(self.steps)
