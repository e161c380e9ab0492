"""The standalone test of an EAGLE-3 drafter, in one file: is the drafter good, given right inputs?

Needs torch and safetensors, the draft folder, one states file that `draftprobe capture` wrote, and
the target's folder (only its embedding table is read). No server, no target model is run:

    python standalone.py DRAFT STATES TARGET 0,3,16 [STEPS]

prints, per draft step, how often the draft is the text's own next token, alone and together with
all steps before it, and the tokens per target pass that a decode of this text would reach.
If these figures are good and serving is not, a wire between target and drafter is wrong.

    h_t           target states at token t, one per tap, side by side
    slot t        reads h_t and the embedding of token t + 1, predicts token t + 2
    step i        reads the drafter's own output of step i - 1 and the embedding of token t + i,
                  and predicts token t + 1 + i
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors import safe_open


def read_weights(folder):
    """Every tensor of a folder's safetensors files."""
    tensors = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        if file.name == "golden.safetensors":
            continue
        with safe_open(file, "pt") as f:
            tensors |= {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
    return {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}


def read_embedding(folder):
    """The one embedding table among a target's files, mapped and not read as a whole."""
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, "pt") as f:
            for name in f.keys():  # noqa: SIM118
                if name.endswith(("embed_tokens.weight", "wte.weight", "word_embeddings.weight")):
                    return f.get_tensor(name)
    raise SystemExit(f"{folder}: no embedding table found")


def read_states(path, taps):
    """Per sequence: tokens [n], the mask of tokens that count [n], tap states [n - 1, taps * H]."""
    with safe_open(path, "pt") as f:
        lengths = f.get_tensor("lengths").tolist()
        tokens = f.get_tensor("tokens").long().split(lengths)
        masks = f.get_tensor("loss_mask").bool().split(lengths)
        row = 0
        for n, x, mask in zip(lengths, tokens, masks, strict=True):
            h = [f.get_slice(f"h[{tap}]")[row : row + n - 1].float() for tap in taps]
            yield x, mask, torch.cat(h, dim=1)
            row += n - 1


class Drafter:
    """An EAGLE-3 drafter in the SpecForge layout, run on one whole sequence at a time."""

    def __init__(self, folder, embedding):
        """Read the weights; ``embedding`` is the target's table."""
        config = json.loads((Path(folder) / "config.json").read_text())
        self.w = read_weights(folder)
        self.embedding = self.w.get("embed_tokens.weight", embedding)
        self.eps = config.get("rms_norm_eps", 1e-6)
        self.heads = config["num_attention_heads"]
        self.size = self.w["midlayer.self_attn.q_proj.weight"].shape[0] // self.heads
        rope = config.get("rope_parameters") or {}
        scaling = (config.get("rope_scaling") or {}) | rope
        if scaling.get("rope_type", scaling.get("type", "default")) != "default":
            raise SystemExit("this file knows plain rope only")
        theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
        self.turns = torch.tensor([theta ** (-2 * i / self.size) for i in range(self.size // 2)])
        self.residual_after_norm = config.get("norm_before_residual", False)
        self.feed_normed = config.get("norm_output", False)
        count = self.w["lm_head.weight"].shape[0]
        d2t = self.w.get("d2t", torch.zeros(count, dtype=torch.long))
        self.target_id = torch.arange(count) + d2t  # draft id i means target id i + d2t[i]

    def norm(self, x, name):
        """Root-mean-square norm."""
        rms = (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()
        return x / rms * self.w[f"{name}.weight"]

    def linear(self, x, name):
        """A matrix product with a weight of the one decoder layer."""
        return x @ self.w[f"midlayer.{name}.weight"].T

    def split_heads(self, x, positions=None):
        """[m, heads * d] -> [heads, m, d], turned by position if positions are given."""
        x = x.view(len(x), -1, self.size).transpose(0, 1)
        if positions is not None:
            z = torch.complex(*x.double().chunk(2, dim=-1))  # channel i pairs with channel i + d/2
            z = z * torch.exp(1j * positions[:, None].double() * self.turns.double())
            x = torch.cat([z.real, z.imag], dim=-1).float()
        return x.repeat_interleave(self.heads // x.shape[0], dim=0)

    def fuse(self, h):
        """The projection of the tap states to one hidden state: [T, taps * H] -> [T, H]."""
        if "input_norm.weight" in self.w:
            h = self.norm(h, "input_norm")
        elif "fc_norm.0.weight" in self.w:
            taps = sum(name.startswith("fc_norm.") for name in self.w)
            parts = enumerate(h.chunk(taps, dim=1))
            h = torch.cat([self.norm(part, f"fc_norm.{i}") for i, part in parts], dim=1)
        return h @ self.w["fc.weight"].T

    def drafts(self, tokens, h, steps):
        """Target ids drafted by every chain, teacher-forced: [steps, T] for the T = n - 1 slots.

        All slots of all steps lie in one long row: step 1's T slots, then step 2's, and so on. A
        slot of step i sees step 1's slots up to its own chain's start, and its chain's own slots.
        """
        count = len(h)
        start = torch.arange(count)
        g, keys, values, rows = self.fuse(h), [], [], []
        for step in range(1, steps + 1):
            read = tokens[(start + step).clamp(max=len(tokens) - 1)]  # beyond the end: not scored
            e = self.norm(self.embedding[read].float(), "midlayer.input_layernorm")
            normed = self.norm(g, "midlayer.hidden_norm")
            u = torch.cat([e, normed], dim=1)
            where = start + step - 1
            q = self.split_heads(self.linear(u, "self_attn.q_proj"), where)
            keys.append(self.split_heads(self.linear(u, "self_attn.k_proj"), where))
            values.append(self.split_heads(self.linear(u, "self_attn.v_proj")))
            scores = q @ torch.cat(keys, dim=1).transpose(1, 2) / math.sqrt(self.size)
            sees = [start[None] <= start[:, None]] + [start[None] == start[:, None]] * (step - 1)
            scores = scores.masked_fill(~torch.cat(sees, dim=1), -math.inf)
            mixed = (
                (scores.softmax(-1) @ torch.cat(values, dim=1)).transpose(0, 1).reshape(count, -1)
            )
            a = (normed if self.residual_after_norm else g) + self.linear(mixed, "self_attn.o_proj")
            y = self.norm(a, "midlayer.post_attention_layernorm")
            gate = torch.nn.functional.silu(self.linear(y, "mlp.gate_proj"))
            o = a + self.linear(gate * self.linear(y, "mlp.up_proj"), "mlp.down_proj")
            final = self.norm(o, "norm")
            rows.append(self.target_id[(final @ self.w["lm_head.weight"].T).argmax(-1)])
            g = final if self.feed_normed else o
        return torch.stack(rows)


def score(drafts, tokens, mask):
    """Counted and right: bool [steps, slots]. A chain ends at the first token that counts not."""
    steps, slots = drafts.shape
    label = torch.arange(slots) + torch.arange(2, steps + 2)[:, None]
    exists, label = label < len(tokens), label.clamp(max=len(tokens) - 1)
    counted = (exists & mask[label]).long().cumprod(0).bool()
    return counted, counted & (drafts == tokens[label])


def walk(counted, right, mask):
    """Rounds and tokens of a decode that would write this text with these drafts.

    The token that the prefill itself predicts counts as neither. A round at slot t accepts the
    drafts that are right in a row and adds the target's own token.
    """
    rounds = tokens = t = 0
    while t < right.shape[1]:
        if not (mask[t + 1] and counted[0, t]):  # the newest token and the next one must count
            t += 1
            continue
        accepted, said = 0, 0
        while accepted < len(right) and right[accepted, t]:
            accepted += 1
        while t + 2 + said < len(mask) and mask[t + 2 + said] and said <= accepted:
            said += 1  # tokens this round emits: accepted and one more, cut at the text's end
        rounds, tokens, t = rounds + 1, tokens + said, t + accepted + 1
    return rounds, tokens


@torch.no_grad()
def main(draft, states, target, taps, steps=5):
    """Replay all sequences of a states file; returns the figures that are printed."""
    drafter = Drafter(draft, read_embedding(target))
    n, hits, joint = (torch.zeros(steps, dtype=torch.long) for _ in range(3))
    rounds = emitted = 0
    for tokens, mask, h in read_states(states, taps):
        counted, right = score(drafter.drafts(tokens, h, steps), tokens, mask)
        n, hits = n + counted.sum(1), hits + right.sum(1)
        joint = joint + right.long().cumprod(0).sum(1)
        walked = walk(counted, right, mask)
        rounds, emitted = rounds + walked[0], emitted + walked[1]
    for i in range(steps):
        share, together = hits[i] / n[i].clamp(min=1), joint[i] / n[i].clamp(min=1)
        print(f"step {i + 1}: right {share:.3f}, with all before {together:.3f}, n {n[i]}")
    print(f"acceptance length {emitted / max(rounds, 1):.3f}: {emitted} tokens in {rounds} rounds")
    return n.tolist(), hits.tolist(), joint.tolist(), (rounds, emitted)


if __name__ == "__main__":
    if len(sys.argv) not in (5, 6):
        raise SystemExit(__doc__)
    main(*sys.argv[1:4], sys.argv[4].split(","), *map(int, sys.argv[5:]))
