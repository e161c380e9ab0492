"""Lets vLLM's CPU build write a hidden-state dump by its own connector, for tests/test_dumps.py.

    python tests/engines/vllm_dump.py --target TARGET --out FOLDER [--ids 0,2,3,4]
        [--fp8] [--dtype bfloat16]

Needs the engine's own environment, as vllm_first_token.py says (and hs_connectors 0.9.0 for --fp8).
The stock connector cannot write on a machine without an accelerator, since it copies through pinned
memory: one method is replaced, which takes the same rows from the cache with the engine's own
function and hands them to the connector's own writer.

    tests/data/dumps/tiny_target   made by tests/produce_dumps.py, a tiny random Llama
    tests/data/dumps/vllm          --ids 0,2,3,4: three prompts, and what the engine answered
    tests/data/dumps/fp8           --ids 0,2,3,4 --fp8: the same through hs_connectors' FP8 writer
"""

import argparse
import fcntl
import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ |= {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
sys.path.insert(0, str(Path(__file__).parent))
PROMPTS = ([5, 9, 2, 33, 61, 7, 7, 20], [1, 2, 3, 4, 5, 6], list(range(40, 52)))


def on_cpu(stock):
    """A connector class that writes as ``stock`` does, without pinned memory and streams."""
    import torch
    from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as own

    class Connector(stock):
        def _submit_async_write(self, pending):
            blocks = torch.tensor(pending.block_ids, dtype=torch.long)[:, None]
            slots = (blocks * self._block_size + torch.arange(self._block_size)).flatten()
            rows = own.extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids))
            tensors = {
                "hidden_states": rows.clone().contiguous(),
                "token_ids": pending.token_ids.clone(),
            }
            Path(pending.filename).parent.mkdir(parents=True, exist_ok=True)
            lock = self._lock_fds.pop(pending.req_id, None)
            if lock is None and self.use_lock:
                lock = os.open(pending.filename + ".lock", os.O_CREAT | os.O_WRONLY, 0o644)
                fcntl.flock(lock, fcntl.LOCK_EX)
            done = SimpleNamespace(synchronize=lambda: None, query=lambda: True)
            self._write_tensors(tensors, done, pending.filename, lock)
            self._req_copy_events[pending.req_id] = done

    return Connector


def __getattr__(name):
    """The classes that the engine asks this module for by name."""
    stock = {
        "PlainOnCpu": (
            "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector",
            "ExampleHiddenStatesConnector",
        ),
        "Fp8OnCpu": ("hs_connectors.fp8_hidden_states_connector", "FP8HiddenStatesConnector"),
    }
    if name not in stock:
        raise AttributeError(name)
    module, owner = stock[name]
    made = on_cpu(getattr(importlib.import_module(module), owner))
    globals()[name] = made
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--ids", default="0,2,3,4")
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()

    from vllm import LLM, SamplingParams

    ids = [int(entry) for entry in arguments.ids.split(",")]
    llm = LLM(
        model=arguments.target,
        skip_tokenizer_init=True,
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": ids}},
        },
        kv_transfer_config={
            "kv_connector": "Fp8OnCpu" if arguments.fp8 else "PlainOnCpu",
            "kv_connector_module_path": "vllm_dump",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(arguments.out)},
        },
        dtype=arguments.dtype,
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        enable_prefix_caching=False,
    )
    asked = {"kv_transfer_params": {"include_output_tokens": True}}
    sampling = SamplingParams(
        temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False, extra_args=asked
    )
    inputs = [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]
    outputs = llm.generate(inputs, sampling, use_tqdm=False)
    last = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
    llm.generate([{"prompt_token_ids": [0, 1]}], last, use_tqdm=False)  # lets the rest be written
    for number, output in enumerate(outputs):
        written = Path(output.kv_transfer_params["hidden_states_path"])
        name = f"hs_{number}" if arguments.fp8 else f"request_{number}"
        written.rename(arguments.out / f"{name}.safetensors")
    for left in (*arguments.out.glob("*.lock"), *arguments.out.glob("*-*.safetensors")):
        left.unlink()
    print(sorted(path.name for path in arguments.out.iterdir()))


if __name__ == "__main__":
    main()
