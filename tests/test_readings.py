"""Which boundaries arrive at fc's slots in each engine, and what is written to have others arrive.

Expected boundaries are counted by hand from each engine's rule (conventions of the stacks, measured
captures of a 30-layer Llama for vLLM and OpenVINO); the last tests run the engines' own functions.
"""

from types import SimpleNamespace

import pytest
from engine_sources import lifted, vllm_source, wheel  # noqa: F401 - a fixture
from hypothesis import given, settings
from hypothesis import strategies as st

from draftprobe.dialects import sglang, vllm
from draftprobe.dialects.engines import ENGINES, parse_engine
from draftprobe.dialects.ids import KEY, Spelling, Unspellable
from draftprobe.dialects.reading import Target


def nested(*ids):
    return {"eagle_config": {KEY: list(ids)}}


def top(*ids):
    return {KEY: list(ids)}


def target(family="llama", layers=30, hidden=64, vocabulary=128):
    return Target(family, layers, hidden, vocabulary, {}, "target/config.json")


def fed(engine, config, *where, **options):
    """Taps and where the ids stand, by variant."""
    found = parse_engine(engine).readings(config, target(*where), options)
    return {reading.variant: (reading.taps, reading.found) for reading in found}


KIMI = ("kimi_k25", 61)
DEFAULT = ((2, 30, 58), "default")


@pytest.mark.parametrize(
    ("engine", "of_nested", "of_top"),
    [
        ("sglang@0.5.12.post1", {"": ((3, 31, 59), "nested")}, {"": DEFAULT}),
        ("sglang@0.5.13", {"": ((2, 30, 58), "nested")}, {"": DEFAULT}),
        ("sglang", {"": ((2, 30, 58), "nested")}, {"": DEFAULT}),
        (
            "vllm",
            {"V1": ((2, 30, 58), "nested"), "V2": DEFAULT},
            {"V1": ((2, 30, 58), "top"), "V2": ((2, 30, 58), "top")},
        ),
        ("tensorrt_llm", {"": DEFAULT}, {"": DEFAULT}),
        ("openvino", {"": (None, "default")}, {"": (None, "default")}),
        ("llamacpp", {"": (None, "default")}, {"": (None, "default")}),
    ],
)
def test_the_founding_case(engine, of_nested, of_top):
    assert fed(engine, nested(2, 30, 58), *KIMI) == of_nested
    assert fed(engine, top(2, 30, 58), *KIMI) == of_top


@pytest.mark.parametrize(
    ("engine", "level", "ids", "patched"),
    [
        ("sglang@0.5.12.post1", "nested", (-1, 2, 30), True),
        ("sglang", "nested", (0, 3, 31), False),
    ],
)
def test_what_to_write_for_what_the_founding_case_wanted(engine, level, ids, patched):
    spelling = parse_engine(engine).spell((0, 3, 31), *KIMI)
    assert (spelling.level, spelling.ids, bool(spelling.patch)) == (level, ids, patched)
    assert spelling.rule.source


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("vllm", "TypeError"),
        ("tensorrt_llm", "cannot feed h[0]"),
        ("openvino", "no layer's output"),
        ("llamacpp", "not known for kimi_k25"),
    ],
)
def test_what_the_founding_case_wanted_cannot_be_expressed_there(engine, told):
    answer = parse_engine(engine).spell((0, 3, 31), *KIMI)
    assert isinstance(answer, Unspellable)
    assert told in answer.reason


def test_an_option_says_what_to_do():
    spelling = parse_engine("tensorrt_llm").spell((3, 31, 59), *KIMI)
    assert (spelling.name, spelling.ids) == ("eagle3_layers_to_capture", (2, 30, 58))
    assert "set eagle3_layers_to_capture={2, 30, 58}" in spelling.text
    spelling = parse_engine("openvino").spell((2, 15, 27), "llama", 30)
    assert (spelling.name, spelling.ids) == ("hidden_layers_list", (1, 14, 26))
    spelling = parse_engine("llamacpp").spell((16, 3, 0), "llama", 30)
    assert (spelling.name, spelling.ids) == ("eagle3.extract_layers", (16, 3, 0))


FAILS = (None, "nested")
# ids nested in eagle_config, L = 30 llama: SGLang, vLLM's V1; its V2 takes the defaults
ODD = [
    ([27, 15, 2], ((3, 16, 28), "nested"), ((2, 15, 27), "nested")),
    ([-1, 15, 27], ((0, 16, 28), "nested"), FAILS),
    ([2, 2, 27], FAILS, FAILS),
    ([2, 15, 31], FAILS, FAILS),
    ([2, 15, 30], FAILS, ((2, 15, 30), "nested")),
    ([0, 14, 26], ((1, 15, 27), "nested"), ((0, 14, 26), "nested")),
    ([1, 14], ((2, 15), "nested"), ((1, 14), "nested")),
]


@pytest.mark.parametrize(("ids", "by_sglang", "by_v1"), ODD)
def test_odd_lists_nested(ids, by_sglang, by_v1):
    assert fed("sglang", nested(*ids)) == {"": by_sglang}
    assert fed("vllm", nested(*ids)) == {"V1": by_v1, "V2": ((2, 15, 27), "default")}


@pytest.mark.parametrize(("ids", "_", "by_v1"), ODD)
def test_odd_lists_at_top_level(ids, _, by_v1):
    assert fed("sglang", top(*ids)) == {"": ((2, 15, 27), "default")}
    assert fed("vllm", top(*ids)) == dict.fromkeys(("V1", "V2"), (by_v1[0], "top"))


def test_layer_ids_inside_eagle_config_are_read_by_one_runner_alone():
    config = {"eagle_config": {"layer_ids": [3, 10, 20]}}
    default = ((2, 15, 27), "default")
    assert fed("sglang", config) == {"": default}
    assert fed("vllm", config) == {
        "V1": default,
        "V2": ((3, 10, 20), "eagle_config.layer_ids"),
    }


@pytest.mark.parametrize(
    ("config", "by_v1", "by_v2"),
    [
        # output ids of other draft families are moved up by one
        ({"dflash_config": {"target_layer_ids": [2, 9, 19]}}, (3, 10, 20), (3, 10, 20)),
        ({"dspark_target_layer_ids": [2, 9, 19]}, (2, 15, 27), (3, 10, 20)),
        ({"target_layer_ids": [2, 9, 19]}, (2, 15, 27), (3, 10, 20)),
        (
            {"dspark_target_layer_ids": [2, 9, 19], "model_type": "deepseek_v41"},
            (2, 15, 27),
            (2, 9, 19),
        ),
        # an eagle_config without the list hides a dflash_config from V1
        (
            {"dflash_config": {"target_layer_ids": [2, 9, 19]}, "eagle_config": {"a": 1}},
            (2, 15, 27),
            (3, 10, 20),
        ),
        # a value that is no list counts as none; an empty list too
        ({KEY: 7}, (2, 15, 27), (2, 15, 27)),
        ({KEY: []} | nested(3, 10, 20), (3, 10, 20), (2, 15, 27)),
        # in speculators format the nested list is out of sight
        (
            {"speculators_config": {}, "transformer_layer_config": {}} | nested(3, 10, 20),
            (2, 15, 27),
            (2, 15, 27),
        ),
        (
            {"speculators_config": {}, "transformer_layer_config": {}} | top(3, 10, 20),
            (3, 10, 20),
            (3, 10, 20),
        ),
    ],
)
def test_other_keys_of_vllm(config, by_v1, by_v2):
    found = fed("vllm", config)
    assert {runner: taps for runner, (taps, _) in found.items()} == {"V1": by_v1, "V2": by_v2}


# lists seen in public configs: family, layers, SGLang's reading, then vLLM's V1 and V2
WILD = [
    ("deepseek_v3", 61, [1, 29, 57], (2, 30, 58), (1, 29, 57), (2, 30, 58)),
    ("kimi_k25", 61, [1, 29, 57], (2, 30, 58), (1, 29, 57), (2, 30, 58)),
    ("gpt_oss", 36, [1, 17, 33], (2, 18, 34), (1, 17, 33), (2, 18, 33)),
    ("gpt_oss", 24, [1, 11, 21], (2, 12, 22), (1, 11, 21), (2, 12, 21)),
    ("gpt_oss", 36, [24, 30, 36], (24, 30, 36), (24, 30, 36), (2, 18, 33)),
    ("gpt_oss", 36, [1, 17, 32], (2, 18, 33), (1, 17, 32), (2, 18, 33)),
    ("qwen3_moe", 94, [1, 46, 90], (2, 47, 91), (1, 46, 90), (2, 47, 91)),
    ("qwen3", 36, [1, 17, 32], (2, 18, 33), (1, 17, 32), (2, 18, 33)),
    ("qwen3", 64, [3, 31, 59], (4, 32, 60), (3, 31, 59), (2, 32, 61)),
    ("minimax_m2", 62, [1, 30, 58], (2, 31, 59), (1, 30, 58), (2, 31, 59)),
]


@pytest.mark.parametrize(("family", "layers", "ids", "by_sglang", "by_v1", "by_v2"), WILD)
def test_lists_of_the_wild(family, layers, ids, by_sglang, by_v1, by_v2):
    assert fed("sglang", nested(*ids), family, layers)[""][0] == by_sglang
    found = fed("vllm", nested(*ids), family, layers)
    assert (found["V1"][0], found["V2"][0]) == (by_v1, by_v2)


def test_a_list_at_top_level_of_the_wild():
    assert fed("vllm", top(2, 18, 33), "qwen3", 36)["V2"] == ((2, 18, 33), "top")
    assert fed("sglang", top(1, 23, 44), "qwen3", 48) == {"": ((2, 24, 45), "default")}
    assert fed("vllm", top(1, 23, 44), "qwen3", 48)["V1"] == ((1, 23, 44), "top")


@pytest.mark.parametrize(
    ("engine", "name", "ids", "taps"),
    [
        ("openvino", "hidden_layers_list", [1, 14, 26], (2, 15, 27)),  # measured
        ("openvino", "hidden_layers_list", [27, 15, 2], (3, 16, 28)),  # in the graph's order
        ("openvino", "hidden_layers_list", [-1, 15, 27], None),
        ("openvino", "hidden_layers_list", [2, 2, 27], None),
        ("openvino", "hidden_layers_list", [2, 15, 30], None),
        ("openvino", "hidden_layers_list", [2, 15], None),
        ("tensorrt_llm", "eagle3_layers_to_capture", {1, 14, 26}, (2, 15, 27)),
        ("tensorrt_llm", "eagle3_layers_to_capture", [27, 15, 2], (3, 16, 28)),
        ("tensorrt_llm", "eagle3_layers_to_capture", [29], (30,)),
        ("tensorrt_llm", "eagle3_layers_to_capture", [-1, 15, 27], None),
        ("tensorrt_llm", "eagle3_layers_to_capture", [2, 15, 30], None),
        ("llamacpp", "eagle3.extract_layers", [27, 15, 2], (27, 15, 2)),
        ("llamacpp", "eagle3.extract_layers", [0, 15, 27], (0, 15, 27)),
        ("llamacpp", "eagle3.extract_layers", [2, 15, 30], None),
        ("llamacpp", "eagle3.extract_layers", [2, 15], None),
    ],
)
def test_options_beside_the_config(engine, name, ids, taps):
    [reading] = parse_engine(engine).readings(top(5, 6, 7), target(), {name: ids})
    assert (reading.taps, reading.found) == (taps, name)
    assert bool(reading.problem) == (taps is None)


@pytest.mark.parametrize(
    ("engine", "layers", "taps"),
    [
        ("openvino", 30, (3, 16, 28)),  # measured: one layer above the others
        ("openvino", 10, (3, 6, 8)),
        ("openvino", 9, None),
        ("tensorrt_llm", 5, None),
        ("tensorrt_llm", 6, None),  # 1, 2, 2: one slot stays unfilled
        ("tensorrt_llm", 7, (2, 3, 4)),
        ("llamacpp", 30, (2, 15, 27)),
        ("sglang", 5, None),
        ("sglang", 7, (2, 3, 4)),
        ("vllm", 5, None),
        ("vllm", 7, (2, 3, 4)),
    ],
)
def test_without_ids(engine, layers, taps):
    for reading in parse_engine(engine).readings({}, target("llama", layers)):
        assert (reading.taps, reading.found) == (taps, "default")
        assert bool(reading.problem) == (taps is None)


def test_a_switch_that_captures_nothing_is_a_problem():
    config = {"eagle_config": {"use_aux_hidden_state": False}}
    for name in ("sglang", "vllm"):
        for reading in parse_engine(name).readings(config, target()):
            assert reading.taps is None
            assert "captures no states" in reading.problem


FAMILIES = sorted(sglang.FAMILIES)


@st.composite
def triples(draw):
    layers = draw(st.integers(3, 94))
    taps = draw(st.lists(st.integers(0, layers), min_size=3, max_size=3, unique=True).map(sorted))
    engine = draw(st.sampled_from(sorted(ENGINES)))
    return engine, draw(st.sampled_from(FAMILIES)), layers, tuple(taps)


@settings(deadline=None, max_examples=400)
@given(triples())
def test_property_an_ascending_triple_is_spelled_and_read_back_or_refused(order):
    name, family, layers, taps = order
    engine = parse_engine(name)
    spelling = engine.spell(taps, family, layers)
    if isinstance(spelling, Unspellable):
        assert spelling.reason
        return
    assert isinstance(spelling, Spelling)
    ids = list(spelling.ids)
    config = {"top": {KEY: ids}, "nested": nested(*ids), "option": {}}[spelling.level]
    options = {spelling.name: ids} if spelling.level == "option" else {}
    for reading in engine.readings(config, target(family, layers), options):
        assert reading.taps == taps
        assert reading.found in ("top", "nested", spelling.name)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
KEYS = (KEY, "eagle_config", "dflash_config", "target_layer_ids", "dspark_target_layer_ids")
INNER = (KEY, "layer_ids", "target_layer_ids", "use_aux_hidden_state")
CONFIGS = st.dictionaries(
    st.sampled_from((*KEYS, "speculators_config", "transformer_layer_config", "model_type")),
    JUNK | st.dictionaries(st.sampled_from(INNER), JUNK, max_size=4),
)


@settings(deadline=None, max_examples=300)
@given(CONFIGS, st.sampled_from(sorted(ENGINES)), st.integers(1, 40), JUNK)
def test_fuzz_no_config_makes_a_reading_raise(config, name, layers, option):
    options = {"eagle3_layers_to_capture": option, "hidden_layers_list": option}
    options["eagle3.extract_layers"] = option
    for reading in parse_engine(name).readings(config, target("llama", layers), options):
        assert (reading.taps is None) == bool(reading.problem)


# What the engines' own functions make of configs.

CASES = [
    {},
    *(case for ids in ([3, 10, 20], [27, 15, 2], [-1, 15, 27], []) for case in (
        top(*ids), nested(*ids)
    )),
    top(3, 10, 20) | nested(2, 9, 19),
    {"eagle_config": {"layer_ids": [3, 10, 20]}},
    {"eagle_config": {}},
    {"eagle_config": 7},
    {KEY: 7},
    {"dflash_config": {"target_layer_ids": [2, 9, 19]}},
    {"dflash_config": {"target_layer_ids": [2, 9, 19]}, "eagle_config": {"a": 1}},
    {"dflash_config": {"layer_ids": [2, 9, 19]}},
    {"dspark_target_layer_ids": [2, 9, 19]},
    {"dspark_target_layer_ids": [2, 9, 19], "model_type": "deepseek_v41"},
    {"target_layer_ids": [2, 9, 19]},
]  # fmt: skip


@pytest.mark.parametrize("config", CASES)
def test_vllms_own_functions_find_the_same_ids(config):
    spec = SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=SimpleNamespace(**config)))
    v1 = lifted(vllm_source("v1/worker/gpu_model_runner.py"), "_get_eagle3_aux_layers_from_config")
    v2 = lifted(
        vllm_source("v1/worker/gpu/spec_decode/eagle/eagle3_utils.py"),
        "get_eagle3_aux_layers_from_config",
    )
    asked = {"V1": v1(SimpleNamespace(speculative_config=spec)), "V2": v2(spec)}
    for reading in vllm.readings(config, "llama", 30, vllm.READ, {}):
        ids = asked[reading.variant] or (2, 15, 27)
        arrive = tuple(sorted(set(ids) & set(range(31))))
        assert reading.taps == (arrive if len(arrive) == len(ids) else None)
        assert (reading.found == "default") == (asked[reading.variant] is None)


@pytest.mark.parametrize("config", CASES)
def test_sglangs_own_function_reads_the_nested_list_alone(wheel, config):  # noqa: F811
    source = wheel("0.5.23", "model_executor/model_runner_components/spec_aux_hidden_state")
    draft = SimpleNamespace(
        hf_config=SimpleNamespace(**config),
        num_nextn_predict_layers=None,
        num_hidden_layers=1,
        num_attention_layers=1,
        is_hybrid_swa=False,
    )
    spec = SimpleNamespace(
        speculative_draft_model_path="draft", speculative_draft_model_revision=None
    )
    function = lifted(
        source,
        "_resolve_eagle_aux_hidden_state",
        ModelConfig=SimpleNamespace(from_server_args=lambda *_, **__: draft),
        get_spec=lambda: spec,
    )
    found = SimpleNamespace()
    function(
        config=found,
        server_args=None,
        model_config=None,
        spec_algorithm=SimpleNamespace(is_eagle=lambda: True, is_eagle3=lambda: True),
        is_draft_worker=False,
    )
    [reading] = parse_engine("sglang").readings(config, target())
    assert (reading.found == "default") == (found.eagle_aux_hidden_state_layer_ids is None)
    written = config.get("eagle_config")
    expected = written.get(KEY) if isinstance(written, dict) else None
    assert found.eagle_aux_hidden_state_layer_ids == expected


@pytest.mark.parametrize(
    ("engine", "config", "where", "outcome"),
    [
        ("vllm@0.11", {}, ("llama", 30), "unknown"),
        ("vllm@0.31.0", {}, ("llama", 30), "unknown"),
        ("openvino", {}, ("kimi_k25", 61), "unknown"),
        ("openvino@2026.1.0", {}, ("llama", 30), "unknown"),
        ("sglang@0.4.0", {}, ("llama", 30), "unknown"),
        ("sglang", {}, ("some_new_family", 30), "unknown"),
        ("sglang", {}, ("gemma3_text", 30), "feeds no boundary"),
        ("sglang", nested(2, 2, 27), ("llama", 30), "fails"),
        ("vllm", top(2, 15, 31), ("llama", 30), "fails"),
        ("vllm", top(0, 15, 27), ("kimi_k25", 61), "fails"),
        ("sglang", nested(2, 15, 27), ("llama", 30), "feeds"),
        ("sglang@9.9.0", nested(2, 15, 27), ("llama", 30), "feeds"),
    ],
)
def test_what_is_not_known_is_no_failure(engine, config, where, outcome):
    readings = parse_engine(engine).readings(config, target(*where))
    assert {reading.outcome for reading in readings} == {outcome}
    assert all((reading.taps is not None) == (outcome == "feeds") for reading in readings)


@pytest.mark.parametrize(
    ("engine", "age"),
    [
        ("sglang", "read"),
        ("sglang@0.5.4.post2", "read"),
        ("sglang@0.5.4", "older"),
        ("sglang@9.9", "newer"),
        ("vllm@0.31.9", "older"),
        ("vllm@0.32.1", "newer"),
        ("llamacpp", "read"),
    ],
)
def test_a_version_stands_inside_the_span_that_was_read_or_not(engine, age):
    assert parse_engine(engine).age == age


@pytest.mark.parametrize(
    ("ids", "where", "meanings"),
    [
        ((1, 5, 8), ("llama", 12), {(2, 6, 9)}),
        ((2, 30, 58), ("deepseek_v3", 61), {(2, 30, 58), (3, 31, 59)}),
        ((1, 29, 57), ("deepseek_v3", 61), {(2, 30, 58)}),
        ((1, 17, 33), ("gpt_oss", 36), {(2, 18, 34)}),
        ((24, 30, 36), ("gpt_oss", 36), {(24, 30, 36), (25, 31, 37)}),
        ((1, 5, 8), ("some_new_family", 12), set()),
    ],
)
def test_what_ids_have_meant_under_sglangs_rules(ids, where, meanings):
    assert set(sglang.meanings(ids, *where)) == meanings
