"""SGLang's own setters and loops over a target's layers, run over stand-ins that count.

Layer k is asked for state k. Where the loop itself adds branch and residual (older releases), the
stand-in gives state k + 1 in these two parts; where the layer is handed what captures (newer ones),
it captures k, as the boundary in front of its attention does. Everything else is a mock.
"""

import ast
import builtins
import re
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

SETTER = "set_eagle3_layers_to_capture"
TOKENS = 3


def _functions(source, name):
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]


def _plain(function):
    """Without decorators and annotations, which name what is not here."""
    function.decorator_list, function.returns = [], None
    given = function.args
    for argument in (*given.args, *given.kwonlyargs, *filter(None, [given.kwarg, given.vararg])):
        argument.annotation = None
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.fix_missing_locations(ast.Module([function], []))


def _made(function, known):
    """The function, whose other global names are mocks."""
    scope = {}
    exec(compile(_plain(function), function.name, "exec"), scope)  # the tests' own purpose
    made = scope[function.name]
    for name in made.__code__.co_names:
        if name in known:
            scope[name] = known[name]
        elif not hasattr(builtins, name):
            scope[name] = MagicMock()
    return made


def _collectors(source):
    scope = {}
    if source:
        exec(compile(source, "aux_hidden_states", "exec"), scope)  # the tests' own purpose
    return {name: value for name, value in scope.items() if name.startswith("Aux")}


def _layer(number):
    def run(*given, **named):
        capture = next((v for k, v in named.items() if "captur" in k and v is not None), None)
        floats = [
            value
            for value in (*given, *named.values())
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        ]
        if capture is not None and not isinstance(capture, list):
            capture = getattr(capture, "capture", capture)
            capture(torch.full((TOKENS, 1), float(number)))
        elif capture is not None:
            capture.append(torch.full((TOKENS, 1), float(number)))
        total = sum(floats[:2], torch.zeros(TOKENS, 1))
        return torch.ones_like(total), total

    layer = MagicMock()
    layer.side_effect = run
    layer._is_layer_to_capture = False
    return layer


def _residual_batch(layers):
    def final_norm(states, batch, norm, capture=None, **_):
        if capture:
            capture(torch.full((TOKENS, 1), float(layers)))
        return states

    return SimpleNamespace(
        start=lambda batch: None,
        complete_output=lambda states, batch: states[0] if isinstance(states, tuple) else states,
        final_norm=final_norm,
        snapshot=lambda states, batch: states,
    )


def captured_by_sglang(loop, setter, ids, layers, inner="", collectors=""):
    """The boundaries that arrive of ids that are asked through the setter, in the loop's order.

    Args:
        loop, setter: sources of the files with the loop, and with the target's setter.
        ids: as in ``eagle_config``; layers: of the target.
        inner: source of the file whose model has a setter of its own, if any.
        collectors: source of ``layers/aux_hidden_states``, where there is one.

    Raises:
        Exception: whatever the engine's code raises.
    """
    [forward] = [
        node
        for node in _functions(loop, "forward")
        if "layers_to_capture" in ast.unparse(node) or "AuxHiddenStateList(" in ast.unparse(node)
    ]
    group = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    known = {
        "torch": torch,
        "nullcontext": nullcontext,
        "dsa_use_prefill_cp": lambda *_: False,
        "mla_use_prefill_cp": lambda *_: False,
        "nsa_use_prefill_cp": lambda *_: False,
        "is_dp_attention_enabled": lambda: False,
        "residual_batch": _residual_batch(layers),
        "get_parallel": lambda: SimpleNamespace(pp_group=group),
        **_collectors(collectors),
    }
    newer = bool(collectors)
    model = MagicMock(
        start_layer=0,
        end_layer=layers,
        pp_group=group,
        layers_to_capture=[],
        first_k_dense_replace=layers,
        gemm_output_zero_allocator_size=0,
        llama_4_scaling_config=None,
        attn_cp_size=1,
        enable_a2a_moe=False,
        config=SimpleNamespace(num_hidden_layers=layers, first_k_dense_replace=layers),
    )
    model.layers = [_layer(number) for number in range(layers)]
    model.embed_tokens = model.word_embeddings = lambda tokens, *_, **__: torch.zeros(TOKENS, 1)
    model.norm = lambda state, residual=None, **_: state if residual is None else (state, residual)
    shape = "one" if newer else "two"
    text = ast.unparse(forward)
    shape += " and topk" if re.search(r"(states|residual), topk_indices = layer\(", text) else ""
    for layer in model.layers:
        layer.side_effect = _shaped(layer.side_effect, shape)
    _ask(setter, inner, model, known, ids, layers, group)
    batch = MagicMock(can_run_tbo=False)
    batch.forward_mode.is_idle.return_value = False
    tokens = torch.arange(TOKENS)
    found = _made(forward, known)(model, tokens, tokens, batch)
    states = found[1] if isinstance(found, tuple) else []
    if isinstance(states, torch.Tensor):
        states = states.split(1, dim=-1)
    return tuple(int(state[0, 0]) for state in states)


def _shaped(run, shape):
    """What a layer gives: branch and residual or one tensor for both, perhaps indices besides."""

    def give(*given, **named):
        parts = run(*given, **named)
        if shape.startswith("one"):
            return (torch.zeros(TOKENS, 1), None) if "topk" in shape else torch.zeros(TOKENS, 1)
        return (*parts, None) if "topk" in shape else parts

    return give


def _ask(setter, inner, model, known, ids, layers, group):
    outer = _functions(setter, SETTER)[-1]
    own = [node for node in _functions(inner or setter, SETTER) if node is not outer]
    own = [node for node in own if "self.model" not in ast.unparse(node)]
    if own and f"self.model.{SETTER}(" in ast.unparse(outer):
        made = _made(own[0], known)
        setattr(model, SETTER, lambda asked: made(model, asked))
    target = SimpleNamespace(
        model=model, pp_group=group, config=SimpleNamespace(num_hidden_layers=layers)
    )
    _made(outer, known)(target, list(ids))
