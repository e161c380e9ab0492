"""Makes the dumps under tests/data/dumps that need no engine: by the producers' own code where it
installs, else in their documented layout.

    python tests/produce_dumps.py        # in the project's environment

Written once and kept: tests/test_dumps.py reads them. What each is, and what wrote it, stands in
tests/data/dumps/README.md. The states of vLLM are made by tests/engines/vllm_dump.py from the
target that a first run of this makes; a second run puts them beside speculators' dataset.
"""

import gzip
import io
import json
import shutil
from pathlib import Path

import tiny_targets
import torch
import transformers
from safetensors.torch import load_file, save_file

DUMPS = Path(__file__).parent / "data" / "dumps"
PROMPTS = (8, 6, 12)
"""Prompt tokens of the three requests in vllm_dump.py."""


def target() -> Path:
    """A Llama of 4 layers whose heads are wide enough for vLLM's attention on CPUs."""
    folder = DUMPS / "tiny_target"
    if not folder.exists():
        torch.manual_seed(0)
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
        config = transformers.LlamaConfig(**tiny_targets.TEXT | heads)
        transformers.LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder


def requests() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and answer masks of vLLM's files."""
    found = []
    for number, prompt in enumerate(PROMPTS):
        tokens = load_file(DUMPS / "vllm" / f"request_{number}.safetensors")["token_ids"]
        found.append((tokens, (torch.arange(len(tokens)) >= prompt).long()))
    return found


@torch.no_grad()
def tuples(model, tokens) -> list[torch.Tensor]:
    """transformers' hidden_states of one sequence, each [S, H]: h[0]..h[3], then h[N]."""
    return [h[0] for h in model(tokens[None], output_hidden_states=True).hidden_states]


def speculators(folder: Path) -> None:
    """Rows through speculators' own preprocessing, shuffled and saved; files as it names them."""
    import datasets
    from speculators.data_generation.preprocessing import _preprocess_batch

    rows = [{"input_ids": t.tolist(), "loss_mask": m.tolist()} for t, m in requests()]
    made = datasets.Dataset.from_list(rows).map(
        lambda batch: _preprocess_batch(batch, False, None, 128), batched=True
    )
    made = made.with_format("torch").shuffle(seed=1)
    made.save_to_disk(folder)
    states = folder / "hidden_states"
    states.mkdir()
    for index, row in enumerate(made):
        tokens = row["input_ids"]
        number = next(i for i, (t, _) in enumerate(requests()) if torch.equal(t, tokens))
        source = DUMPS / "vllm" / f"request_{number}.safetensors"
        shutil.copy(source, states / f"hs_{index}.safetensors")


def specforge(folder: Path, model) -> None:
    """The keys and shapes of scripts/prepare_hidden_states.py, bfloat16; the third gzipped."""
    rows = folder / "rows_0-5000"
    rows.mkdir(parents=True)
    for index, (tokens, mask) in enumerate(requests()):
        h = tuples(model, tokens)
        aux = torch.cat([h[1], h[2], h[3]], dim=-1)  # aux_hidden_state_layer_ids: [0, 1, 2]
        data = {
            "input_ids": tokens,
            "loss_mask": mask,
            "hidden_state": h[-1][None].bfloat16(),
            "aux_hidden_state": aux[None].bfloat16(),
        }
        buffer = io.BytesIO()
        torch.save(data, buffer)
        name, content = f"data_{index}.ckpt", buffer.getvalue()
        if index == 2:
            name, content = name + ".gz", gzip.compress(content)
        (rows / name).write_bytes(content)


def modelopt(folder: Path, model) -> None:
    """The keys and shapes of compute_hidden_states_hf.py."""
    folder.mkdir()
    for index, (tokens, mask) in enumerate(requests()):
        h = tuples(model, tokens)
        data = {
            "input_ids": tokens,
            "hidden_states": h[-1],
            "aux_hidden_states": torch.cat([h[1], h[2], h[3]], dim=-1),
            "loss_mask": mask,
            "conversation_id": f"conversation-{index}",
        }
        torch.save(data, folder / f"conversation-{index}.pt")


def sglang(path: Path, model) -> None:
    """/generate responses as 0.5.23 builds them: the prompt's rows in chunks, then row by row."""
    with path.open("w") as file:
        for index, (tokens, _) in enumerate(requests()):
            prompt = PROMPTS[index]
            h = tuples(model, tokens)
            rows = torch.cat([h[1], h[2], h[3]], dim=-1)[:-1].tolist()
            info = {
                "id": f"{index:032x}",
                "prompt_tokens": prompt,
                "completion_tokens": len(tokens) - prompt,
                "hidden_states": [rows[:4], rows[4:prompt], *rows[prompt:]],
                "input_token_logprobs": [[None, t, None] for t in tokens[:prompt].tolist()],
            }
            answer = tokens[prompt:].tolist()
            file.write(json.dumps({"text": "", "output_ids": answer, "meta_info": info}) + "\n")


def founding(path: Path, model) -> None:
    """The story's training sample on this target: embedding, two middle layers, final."""
    tokens, mask = requests()[0]
    h = tuples(model, tokens)
    states = torch.stack([h[0], h[1], h[3], h[-1]], dim=1)  # [T, 4, H]
    torch.save({"input_ids": tokens, "loss_mask": mask, "hidden_states": states}, path)


def plain(folder: Path, model) -> None:
    """[T, n * H] in safetensors, and in .npy with the ids in a file of their own."""
    import numpy

    folder.mkdir()
    tokens, _ = requests()[1]
    h = tuples(model, tokens)
    states = torch.cat([h[0], h[3]], dim=-1)
    save_file({"states": states, "tokens": tokens}, folder / "two.safetensors")
    numpy.save(folder / "two.npy", states.numpy())
    numpy.save(folder / "two.tokens.npy", tokens.numpy())


def main() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(target()).float().eval()
    if not (DUMPS / "vllm").exists():
        print("now run tests/engines/vllm_dump.py, then this again")
        return
    for name, make in (("specforge", specforge), ("modelopt", modelopt), ("plain", plain),
                       ("sglang.jsonl", sglang), ("founding.pt", founding)):  # fmt: skip
        if not (DUMPS / name).exists():
            make(DUMPS / name, model)
    if not (DUMPS / "speculators").exists():
        speculators(DUMPS / "speculators")
    print(*sorted(str(p.relative_to(DUMPS)) for p in DUMPS.rglob("*") if p.is_file()), sep="\n")


if __name__ == "__main__":
    main()
