"""What vLLM's own drafter class makes of drafter folders: run by tests/test_effects.py.

    VLLM_PYTHON tests/engines/vllm_load.py TARGET FOLDER [FOLDER ...]

In vLLM's own environment (see vllm_first_token.py); nothing of draftprobe is imported. The target
is a folder with a ``config.json`` alone. For each folder vLLM builds its config and its drafter,
whose parameters are filled with a marker; then it loads the weights. One JSON line per folder:

    error     what was raised, or null
    unfilled  parameters that still hold the marker
    dropped   tensors of the file whose values no parameter holds
    config    a few keys as the drafter's class sees them
    ids       what each runner finds for the layers to capture, or null
"""

import json
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
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
}

# The environment above is read when torch and vLLM are imported.
import torch
from safetensors.torch import load_file
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import ModelRegistry
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

MARKER = -77.0
KEYS = (
    "architectures", "draft_vocab_size", "norm_before_residual", "norm_before_fc", "fc_norm",
    "norm_output", "target_hidden_size", "eagle_aux_hidden_state_layer_ids",
)  # fmt: skip


def main(target, folders):
    """One line per folder."""
    init_distributed_environment(1, 0, "tcp://127.0.0.1:29577", 0, "gloo")
    first = True
    for folder in folders:
        answer = dict.fromkeys(("error", "unfilled", "dropped", "config", "ids"))
        try:
            config = vllm_config(target, folder)
            with set_current_vllm_config(config):
                if first:
                    initialize_model_parallel(1, 1)
                    first = False
                answer |= seen(config.speculative_config)
                answer |= loaded(config, Path(folder))
        except Exception as error:  # whatever the engine raises is the answer
            answer["error"] = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(answer), flush=True)


def vllm_config(target, folder):
    """vLLM's own configuration of a target with a drafter."""
    return EngineArgs(
        model=target,
        tokenizer=target,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=64,
        speculative_config={"method": "eagle3", "model": folder, "num_speculative_tokens": 1},
    ).create_engine_config()


def seen(speculative):
    """The drafter's config as its class and the two runners see it."""
    hf = speculative.draft_model_config.hf_config
    runner = SimpleNamespace(speculative_config=speculative)
    ids = {
        "V1": GPUModelRunner._get_eagle3_aux_layers_from_config(runner),
        "V2": get_eagle3_aux_layers_from_config(speculative),
    }
    return {"config": {key: getattr(hf, key, None) for key in KEYS}, "ids": ids}


def loaded(config, folder):
    """What loading fills and what it leaves out."""
    draft = config.speculative_config.draft_model_config
    kind, _ = ModelRegistry.resolve_model_cls(draft.architectures, model_config=draft)
    model = kind(vllm_config=config, prefix="model")
    for parameter in model.parameters():
        parameter.data.fill_(MARKER)
    tensors = load_file(folder / "model.safetensors")
    model.load_weights(iter(tensors.items()))
    unfilled = [name for name, parameter in model.named_parameters() if (parameter == MARKER).any()]
    held = {
        float(value)
        for parameter in model.parameters()
        for value in parameter.detach().flatten().unique()
    }
    dropped = [name for name, tensor in tensors.items() if float(tensor.flatten()[0]) not in held]
    return {"unfilled": sorted(unfilled), "dropped": sorted(dropped)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2:])
