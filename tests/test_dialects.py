"""What SGLang and vLLM make of layer ids, and how taps are written for them.

Expected lists are those of the engines' own functions, of measured captures and of hand counts;
the last tests run the engines' functions themselves, out of their wheels.
"""

from functools import partial
from types import SimpleNamespace

import pytest
from engine_sources import lifted, vllm_source, wheel  # noqa: F401 - a fixture
from hypothesis import given, settings
from hypothesis import strategies as st

from draftprobe.dialects import sglang, vllm
from draftprobe.dialects.engines import ENGINES, parse_engine
from draftprobe.dialects.families import family_of
from draftprobe.dialects.ids import KEY, Spelling, Unspellable
from draftprobe.errors import InputError

DEEPSEEK_V3 = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168}
KIMI_K25 = {
    "model_type": "kimi_k25",
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {**DEEPSEEK_V3, "model_type": "kimi_k2"},
    "vision_config": {"model_type": "moonvit"},
}


def nested(*ids):
    return {"eagle_config": {KEY: list(ids)}}


def top(*ids):
    return {KEY: list(ids)}


def feeds(engine, config, family, layers):
    return parse_engine(engine).delivered(config, family, layers, "config.json")


@pytest.mark.parametrize("target", [DEEPSEEK_V3, KIMI_K25], ids=["deepseek_v3", "kimi_k25"])
@pytest.mark.parametrize(
    ("engine", "taps", "ids", "patched"),
    [
        ("sglang@0.5.12", (0, 3, 31), (-1, 2, 30), True),
        ("sglang@before-2026-05", (0, 3, 31), (-1, 2, 30), True),
        ("sglang@0.5.12.post1", (3, 31, 59), (2, 30, 58), False),
        ("sglang@0.5.13", (0, 3, 31), (0, 3, 31), True),
        ("sglang@0.5.14", (0, 3, 31), (0, 3, 31), False),
        ("sglang", (0, 3, 31), (0, 3, 31), False),
        ("sglang", (3, 31, 59), (3, 31, 59), False),
        ("sglang", (1, 3, 31), (3, 1, 31), False),  # a list that starts with 1 would be moved up
        ("sglang", (2, 30, 58), (1, 29, 57), False),  # holds under both rules
        ("sglang@0.5.12", (2, 30, 58), (1, 29, 57), False),
    ],
)
def test_the_deepseek_family_has_two_spellings_by_version(target, engine, taps, ids, patched):
    spelling = parse_engine(engine).spell(taps, family_of(target, "config.json"), 61)
    assert (spelling.level, spelling.ids) == ("nested", ids)
    assert bool(spelling.patch) == patched


@pytest.mark.parametrize("target", [DEEPSEEK_V3, KIMI_K25], ids=["deepseek_v3", "kimi_k25"])
@pytest.mark.parametrize(
    ("engine", "ids", "taps"),
    [
        ("sglang@0.5.12", (2, 30, 58), (3, 31, 59)),  # the founding case
        ("sglang@0.5.13", (2, 30, 58), (2, 30, 58)),  # moved one layer down at the upgrade
        ("sglang@0.5.12", (1, 29, 57), (2, 30, 58)),
        ("sglang", (1, 29, 57), (2, 30, 58)),
        ("sglang", (0, 3, 31), (0, 3, 31)),
        ("sglang", (31, 3, 0), (0, 3, 31)),
    ],
)
def test_what_the_deepseek_family_is_fed_by_version(target, engine, ids, taps):
    assert feeds(engine, nested(*ids), family_of(target, "config.json"), 61) == taps


@pytest.mark.parametrize(
    ("engine", "ids"), [("sglang", (-1, 2, 30)), ("sglang@0.5.12", (-1, 2, 30))]
)
def test_minus_one_fails_on_the_deepseek_family(engine, ids):
    with pytest.raises(InputError, match=r"would capture h\[.*expected 3 distinct"):
        feeds(engine, nested(*ids), "deepseek_v3", 61)


@pytest.mark.parametrize(
    ("engine", "config", "family", "layers", "taps"),
    [
        # measured or run on a stub, L = 30
        ("sglang", {}, "llama", 30, (2, 15, 27)),
        ("sglang", nested(2, 15, 27), "llama", 30, (3, 16, 28)),
        ("sglang", nested(1, 14, 26), "qwen2", 30, (2, 15, 27)),
        ("sglang", nested(0, 14, 26), "qwen3", 30, (1, 15, 27)),
        ("sglang", nested(-1, 14, 26), "llama", 30, (0, 15, 27)),
        ("sglang", nested(1, 14, 26), "deepseek_v2", 30, (2, 15, 27)),
        ("sglang", nested(0, 14, 26), "deepseek_v2", 30, (0, 14, 26)),
        ("sglang", top(3, 10, 20), "llama", 30, (2, 15, 27)),  # ignored
        ("vllm", {}, "llama", 30, (2, 15, 27)),
        ("vllm", top(3, 10, 20), "llama", 30, (3, 10, 20)),
        ("vllm", top(0, 15, 27), "llama", 30, (0, 15, 27)),
        ("vllm", top(2, 15, 30), "llama", 30, (2, 15, 30)),
        ("vllm", top(27, 15, 2), "llama", 30, (2, 15, 27)),
        ("vllm", top(3, 10, 20) | nested(2, 9, 19), "llama", 30, (3, 10, 20)),
        # configs seen in the wild
        ("sglang", nested(1, 29, 57), "deepseek_v3", 61, (2, 30, 58)),
        ("sglang", nested(1, 17, 33), "gpt_oss", 36, (2, 18, 34)),
        ("sglang", nested(24, 30, 36), "gpt_oss", 36, (24, 30, 36)),
        ("sglang", nested(1, 46, 90), "qwen3_moe", 94, (2, 47, 91)),
        ("sglang", nested(1, 30, 58), "minimax_m2", 62, (2, 31, 59)),
    ],
)
def test_what_is_fed(engine, config, family, layers, taps):
    assert feeds(engine, config, family, layers) == taps


@pytest.mark.parametrize(
    ("engine", "config", "family", "told"),
    [
        ("vllm", top(-1, 15, 27), "llama", "would capture"),
        ("vllm", top(2, 2, 27), "llama", "would capture"),
        ("vllm", top(2, 15, 31), "llama", "would capture"),
        ("vllm", top(0, 15, 27), "deepseek_v3", "TypeError"),
        ("vllm", nested(3, 10, 20), "llama", r"V2 runner feeds h\[2\].*default"),
        ("vllm", {"target_layer_ids": [1, 2, 9]}, "llama", "ids: target_layer_ids"),
        ("vllm@0.9.0", top(3, 10, 20), "llama", "not known here"),
        ("sglang", nested(2, 15, 29), "llama", "would capture"),
        ("sglang", nested(2, 2, 27), "llama", "would capture"),
        ("sglang@0.5.21", nested(-1, 15, 27), "llama", "would capture"),
        ("sglang", nested(), "llama", "expected a list of integers"),
        ("sglang", {}, "some_new_family", "not known here"),
        ("sglang", {}, "gemma3_text", "without the residual"),
        ("sglang@0.5.9", {}, "kimi_k25", "first seen in 0.5.10"),
        ("sglang@0.4.0", {}, "llama", "not known here"),
        ("sglang", {"eagle_config": {"use_aux_hidden_state": False}}, "llama", "captures no"),
    ],
)
def test_what_would_fail_or_is_not_known_is_an_error(engine, config, family, told):
    with pytest.raises(InputError, match=told):
        feeds(engine, config, family, 30)


def by_runner(config, family="llama", layers=30):
    read = vllm.readings(config, family, layers, vllm.READ, {})
    return {reading.variant: reading.taps for reading in read}


def test_the_two_runners_of_vllm_differ_on_a_nested_list():
    assert by_runner(nested(3, 10, 20)) == {"V1": (3, 10, 20), "V2": (2, 15, 27)}


# h[a], h[b], h[c] and what is written, by hand from each engine's rule
@pytest.mark.parametrize(
    ("engine", "family", "layers", "taps", "level", "ids"),
    [
        ("sglang", "llama", 30, (0, 3, 16), "nested", (-1, 2, 15)),
        ("sglang", "llama", 30, (1, 3, 16), "nested", (0, 2, 15)),
        ("sglang", "qwen3", 30, (2, 15, 27), "nested", (1, 14, 26)),
        ("sglang", "glm4_moe_lite", 47, (0, 3, 16), "nested", (0, 3, 16)),
        ("sglang", "gpt_oss", 36, (0, 3, 16), "nested", (-1, 2, 15)),
        ("sglang", "gpt_oss", 36, (3, 16, 36), "nested", (3, 16, 36)),
        ("vllm", "llama", 30, (0, 3, 16), "top", (0, 3, 16)),
        ("vllm", "llama", 30, (3, 16, 30), "top", (3, 16, 30)),
        ("vllm", "deepseek_v3", 61, (3, 31, 61), "top", (3, 31, 61)),
    ],
)
def test_spelling(engine, family, layers, taps, level, ids):
    spelling = parse_engine(engine).spell(taps, family, layers)
    assert (spelling.level, spelling.ids, spelling.patch) == (level, ids, "")


@pytest.mark.parametrize(
    ("engine", "family", "layers", "taps", "told"),
    [
        ("sglang", "llama", 30, (3, 16, 30), "never reaches h"),
        ("sglang", "deepseek_v3", 61, (3, 31, 61), "never reaches h"),
        ("sglang@0.5.16", "gpt_oss", 36, (3, 16, 36), "never reaches h"),
        ("sglang", "llama", 30, (16, 3, 0), "order of the layers"),
        ("sglang", "llama", 30, (3, 3, 16), "order of the layers"),
        ("sglang", "deepseek_v3", 61, (1,), "no list of ids"),
        ("sglang", "gemma3_text", 30, (0, 3, 16), "without the residual"),
        ("vllm", "llama", 30, (3, 16, "N"), "final norm"),
        ("vllm", "llama", 30, (16, 3, 0), "order of the layers"),
        ("vllm", "kimi_k25", 61, (0, 3, 31), "TypeError"),
    ],
)
def test_what_cannot_be_spelled_says_why(engine, family, layers, taps, told):
    answer = parse_engine(engine).spell(taps, family, layers)
    assert isinstance(answer, Unspellable)
    assert told in answer.reason


VERSIONS = {
    "sglang": ("0.5.4.post2", "0.5.9", "0.5.12.post1", "0.5.13", "0.5.14", "0.5.17", "0.5.23"),
    "vllm": ("0.32.0", "0.33.0"),
}


@st.composite
def orders(draw):
    name = draw(st.sampled_from(sorted(VERSIONS)))
    engine = parse_engine(f"{name}@{draw(st.sampled_from(VERSIONS[name]))}")
    layers = draw(st.integers(3, 94))
    tap = st.integers(0, layers) | st.just("N")
    taps = draw(
        st.lists(st.integers(0, layers), min_size=1, max_size=5, unique=True).map(sorted)
        | st.lists(tap, min_size=1, max_size=5)
    )
    return engine, tuple(taps), draw(st.sampled_from(sorted(sglang.FAMILIES))), layers


@settings(deadline=None)
@given(orders())
def test_property_what_is_spelled_is_fed_or_a_reason_is_given(order):
    engine, taps, family, layers = order
    answer = engine.spell(taps, family, layers)
    if isinstance(answer, Unspellable):
        assert answer.reason
        return
    assert answer.rule.source
    config = top(*answer.ids) if answer.level == "top" else nested(*answer.ids)
    if answer.patch:
        assert taps[0] == 0
        with pytest.raises(InputError, match="would capture"):
            engine.delivered(config, family, layers, "config.json")
    else:
        assert engine.delivered(config, family, layers, "config.json") == taps


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("sglang", "sglang", "0.5.23"),
        ("vllm", "vllm", "0.32.0"),
        ("sglang@0.5.12.post1", "sglang", "0.5.12.post1"),
        ("sglang@before-2026-05", "sglang", "0.5.12.post1"),
    ],
)
def test_an_engine_is_a_name_and_a_version(text, name, version):
    engine = parse_engine(text)
    assert (engine.name, engine.version, str(engine)) == (name, version, f"{name}@{version}")


@pytest.mark.parametrize(
    "text", ["", "SGLang", "trtllm", "sglang@", "sglang@main", "vllm@1", "llamacpp@1.2.3"]
)
def test_another_engine_or_version_is_bad_input(text):
    with pytest.raises(InputError, match="expected"):
        parse_engine(text)


def test_a_later_version_is_inferred_and_says_so():
    assert parse_engine("sglang@0.6.0").spell((0, 3, 16), "llama", 30).rule.how == "inferred"
    assert parse_engine("vllm@0.40.1").spell((0, 3, 16), "llama", 30).rule.how == "inferred"
    assert parse_engine("sglang").spell((0, 3, 16), "llama", 30).rule.how == "executed"


@pytest.mark.parametrize(
    ("config", "family"),
    [
        (DEEPSEEK_V3, "deepseek_v3"),
        (KIMI_K25, "kimi_k25"),
        ({"model_type": "llama4", "text_config": {"model_type": "llama4_text"}}, "llama4_text"),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, "llava"),
    ],
)
def test_family(config, family):
    assert family_of(config, "config.json") == family


@pytest.mark.parametrize(
    "config",
    [
        {"text_config": {"model_type": "llama"}},
        {"model_type": ["gemma3"]},
        {"model_type": {"a": 1}},
        {"model_type": "gemma3", "text_config": {"model_type": ["gemma3_text"]}},
    ],
)
def test_a_target_without_a_name_for_a_model_type_has_no_family(config):
    with pytest.raises(InputError, match="model_type"):
        family_of(config, "config.json")


# The engines' own functions, lifted out of their source and run on a stub.


class Layers(dict):
    """Stands for a model's list of layers: any layer is there, and may be marked."""

    def __missing__(self, layer):
        return self.setdefault(layer, SimpleNamespace())


SETTER = "set_eagle3_layers_to_capture"


def setter(source):
    """The engine's own setter, as a function from ids and layers to capture indices."""
    group = SimpleNamespace(is_last_rank=True)
    parallel = SimpleNamespace(pp_group=group)
    function = lifted(source, SETTER, get_parallel=lambda: parallel)
    guarded = f'hasattr(self.model, "{SETTER}")' in source

    def asked_for(ids, layers):
        inner = SimpleNamespace(layers=Layers())
        if f"self.model.{SETTER}(" in source and not guarded:
            setattr(inner, SETTER, partial(setattr, inner, "layers_to_capture"))
        config = SimpleNamespace(num_hidden_layers=layers)
        function(SimpleNamespace(model=inner, pp_group=group, config=config), ids)
        return inner.layers_to_capture

    return asked_for


SETTERS = [
    ("0.5.12.post1", "llama", "llama"),
    ("0.5.12.post1", "qwen3", "qwen3"),
    ("0.5.12.post1", "gpt_oss", "gpt_oss"),
    ("0.5.12.post1", "deepseek_v2", "deepseek_v3"),
    ("0.5.13", "deepseek_v2", "deepseek_v3"),
    ("0.5.13", "glm4_moe_lite", "glm4_moe_lite"),
    *(
        ("0.5.23", file, families[0])
        for file, (families, _) in sglang._TABLE.items()
        if file not in ("kimi_k25", "llama4")  # these pass the list on, tested below
    ),
]


@pytest.mark.parametrize(("version", "file", "family"), SETTERS)
def test_sglangs_own_function_asks_for_what_the_table_says(wheel, version, file, family):  # noqa: F811
    asked_for, layers = setter(wheel(version, f"models/{file}")), 36
    for ids in ([1, 14, 26], [2, 15, 27], [0, 14, 26], [24, 30, 35], [24, 30, 36], [3, 1, 20]):
        asked = tuple(sorted(asked_for(list(ids), layers)))
        try:
            assert feeds(f"sglang@{version}", nested(*ids), family, layers) == asked
        except InputError:  # an index that this version's loop does not capture
            assert asked[0] == 0 or asked[-1] >= layers
    assert asked_for(None, layers) == [2, 18, 33]


@pytest.mark.parametrize("version", ["0.5.12.post1", "0.5.13", "0.5.23"])
def test_sglangs_kimi_wrapper_passes_the_list_on(wheel, version):  # noqa: F811
    passed = []
    inner = SimpleNamespace(set_eagle3_layers_to_capture=passed.append)
    function = lifted(wheel(version, "models/kimi_k25"), SETTER)
    function(SimpleNamespace(language_model=inner), [2, 30, 58])
    assert passed == [[2, 30, 58]]


@pytest.mark.parametrize(
    "config", [{}, top(3, 10, 20), nested(3, 10, 20), top(3, 10, 20) | nested(2, 9, 19)]
)
def test_vllms_own_functions_read_what_the_dialect_reads(config):
    hf = SimpleNamespace(**config)
    spec = SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=hf))
    read_v1 = lifted(
        vllm_source("v1/worker/gpu_model_runner.py"), "_get_eagle3_aux_layers_from_config"
    )
    read_v2 = lifted(
        vllm_source("v1/worker/gpu/spec_decode/eagle/eagle3_utils.py"),
        "get_eagle3_aux_layers_from_config",
    )
    found = {"V1": read_v1(SimpleNamespace(speculative_config=spec)), "V2": read_v2(spec)}
    assert by_runner(config) == {runner: ids or (2, 15, 27) for runner, ids in found.items()}


def test_every_engine_spells_and_reads():
    for name in ENGINES:
        assert isinstance(parse_engine(name).spell((3, 16, 20), "llama", 30), Spelling)
