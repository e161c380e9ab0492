"""An engine's own loop over a target's layers, run over stand-ins that count.

Layer k is asked for state k and gives state k + 1, split into a branch of one and a residual, as
the engines' layers do; so a captured value is the number of its boundary, and a capture that leaves
out the residual is seen.
"""

import ast
from bisect import bisect_right
from itertools import islice
from types import SimpleNamespace

import torch
from engine_sources import lifted

MARKS = ("_maybe_add_hidden_state", "aux_hidden_state_layers")


class Layer:
    """A stand-in for decoder layer ``number``; ``gives`` what it returns: pair, sum, or alone."""

    use_sequence_parallel_moe = False

    def __init__(self, number, gives):
        self.number, self.gives = number, gives

    def __call__(self, *given, **named):
        states = [
            value
            for value in (*given, *named.values())
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        ]
        total = sum(states)
        assert (total == self.number).all(), f"layer {self.number} is given {total.flatten()}"
        if self.gives == "sum":
            return total + 1
        return (total + 1, None) if self.gives == "alone" else (torch.ones_like(total), total)


def _forward(source):
    """The one ``forward`` of a file that captures."""
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and node.name == "forward"
        and any(mark in ast.unparse(node) for mark in MARKS)
    ]
    assert len(found) == 1
    function = found[0]
    function.decorator_list, function.returns = [], None
    for argument in (*function.args.args, *filter(None, [function.args.kwarg])):
        argument.annotation = None
    scope = {}
    module = ast.fix_missing_locations(ast.Module([function], []))
    exec(compile(module, "forward", "exec"), scope)  # the tests' own purpose
    alone = SimpleNamespace(is_first_rank=True, is_last_rank=True, world_size=1)
    known = {
        "torch": torch,
        "islice": islice,
        "get_pp_group": lambda: alone,
        "fused_allreduce_rms_norm": lambda branch, residual, norm: norm(branch, residual),
    }
    names = scope["forward"].__code__.co_names
    scope.update({name: value for name, value in known.items() if name in names})
    return scope["forward"]


def _model(forward, mixin, layers, gives):
    """A model that has nothing but its layers and vLLM's mixin."""
    methods = ("_set_aux_hidden_state_layers", "_maybe_add_hidden_state")
    methods = {name: lifted(mixin, name, torch=torch) for name in methods}
    remote = lifted(mixin, "collect_remote_aux_hidden_states", bisect_right=bisect_right)
    kind = type(
        "Model",
        (),
        {
            **methods,
            "forward": forward,
            "collect_remote_aux_hidden_states": remote,
            "_cache_aux_pp_layout": lambda self: None,
            "_aux_upstream_total_cached": 0,
        },
    )
    model = kind()
    model.layers = [Layer(number, gives) for number in range(layers)]
    model.start_layer, model.end_layer = 0, layers
    model.embed_input_ids = model.embed_tokens = lambda ids: torch.zeros(len(ids), 1)
    model.norm = model.norm_f = lambda state, residual=None: (
        state if residual is None else (state, residual)
    )
    model.config = SimpleNamespace(embedding_multiplier=12.0, hidden_size=1)
    model.hidden_size = 1
    model.mup_enabled = model.use_sequence_parallel = model.fast_prefill_enabled = False
    model.replicated_embed = False
    model.get_per_layer_inputs = lambda ids: None
    model.project_per_layer_inputs = lambda states, inputs: None
    return model


def captured_by_vllm(source, mixin, ids, layers, gives="pair"):
    """The boundaries that a file's loop captures, in its order, for ids asked through its setter.

    Args:
        source: the model's file; mixin: ``interfaces.py``.
        ids: layers to capture; layers: of the target.
        gives: what its layers return.
    """
    model = _model(_forward(source), mixin, layers, gives)
    own = "self.model.aux_hidden_state_layers = layers" in source
    if own:
        lifted(source, "set_aux_hidden_state_layers")(SimpleNamespace(model=model), tuple(ids))
    else:
        model._set_aux_hidden_state_layers(tuple(ids))
    tokens = torch.arange(3)
    found = model.forward(tokens, tokens, None)
    states = found[1] if isinstance(found, tuple) else []
    return tuple(int(state[0, 0]) for state in states)
