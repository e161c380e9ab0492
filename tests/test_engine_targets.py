"""Which target families an engine serves, and which boundaries arrive: the tables against the
engine's own source.

vLLM's registry and classes are read as text, so that no import is needed; its loops are run over
stand-ins for the layers.
"""

import ast
import copy
import re
from types import SimpleNamespace

import pytest
from engine_loops import captured_by_vllm
from engine_sources import lifted, vllm_python, vllm_source, wheel  # noqa: F401 - a fixture
from sglang_loops import captured_by_sglang

from draftprobe.dialects import sglang, vllm, vllm_config
from draftprobe.dialects.engines import parse_engine
from draftprobe.dialects.ids import KEY, Spelling, Unspellable
from draftprobe.dialects.reading import Target
from draftprobe.dialects.vllm_targets import LOOPS, REFUSED, SERVED

MODELS = "model_executor/models"
CUDA, ROCM = (f"models/deepseek_v32/{maker}/model.py" for maker in ("nvidia", "amd"))
GENERIC = f"{MODELS}/deepseek_v2.py"
INTERFACES = f"{MODELS}/interfaces.py"


def target(family, layers=30):
    return Target(family, layers, 64, 128, {}, "target/config.json")


def read(engine, ids, family, layers=30):
    """Every reading of a list that stands where both runners look."""
    return parse_engine(engine).readings({KEY: list(ids)}, target(family, layers))


class Classes:
    """vLLM's classes and their bases, followed through imports without importing."""

    def __init__(self, root):
        self.root, self._files = root, {}
        self.registry = self._registry()

    def _registry(self):
        """Architecture -> file, class."""
        tree = ast.parse((self.root / MODELS / "registry.py").read_text())
        tables = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS")
        found = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and node.targets[0].id in tables:
                found |= ast.literal_eval(node.value)
        return {name: (self._module(module), cls) for name, (module, cls) in found.items()}

    def bases(self, file, name):
        """All names of bases, once for each class that the name may stand for in this file."""
        return [self._up(*found, set()) for found in self._find(file, name, set())]

    def _module(self, dotted):
        inside = (
            dotted.split(".")[1:] if dotted.startswith("vllm.") else [*MODELS.split("/"), dotted]
        )
        return self._file(self.root.joinpath(*inside))

    def _file(self, path):
        plain, package = path.with_suffix(".py"), path / "__init__.py"
        return plain if plain.exists() else package if package.exists() else None

    def _open(self, file):
        if file not in self._files:
            classes, imports = {}, {}
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ClassDef):
                    classes[node.name] = node
                if isinstance(node, ast.ImportFrom) and (source := self._source(file, node)):
                    for alias in node.names:
                        imports.setdefault(alias.asname or alias.name, []).append(
                            (source, alias.name)
                        )
            self._files[file] = classes, imports
        return self._files[file]

    def _source(self, file, node):
        parts = (node.module or "").split(".") if node.module else []
        if not node.level:
            return self._file(self.root.joinpath(*parts[1:])) if parts[:1] == ["vllm"] else None
        return self._file(file.parents[node.level - 1].joinpath(*parts))

    def _find(self, file, name, seen):
        classes, imports = self._open(file)
        if name in classes:
            return [(file, classes[name])]
        steps = [step for step in imports.get(name, []) if step not in seen]
        return [found for step in steps for found in self._find(*step, seen | {step})]

    def _up(self, file, node, above):
        for base in (base for base in node.bases if isinstance(base, ast.Name)):
            if base.id not in above:
                above.add(base.id)
                for found in self._find(file, base.id, set()):
                    self._up(*found, above)
        return above


@pytest.fixture(scope="module")
def classes():
    return Classes(vllm_python()[1])


def supports(classes, architecture):
    """Whether the class of an architecture has SupportsEagle3, on each platform alike."""
    file, name = classes.registry[architecture]
    answers = {"SupportsEagle3" in bases for bases in classes.bases(file, name)}
    assert len(answers) == 1
    return answers.pop()


def test_every_family_that_is_called_served_is_served_by_vllms_registry(classes):
    for families in LOOPS.values():
        for family, architecture in families.items():
            assert supports(classes, architecture), family


def test_every_family_that_is_called_refused_is_refused_by_vllms_registry(classes):
    for family, architecture in REFUSED.items():
        assert not supports(classes, architecture), family


# Model types that transformers does not write with this architecture: wrapped text parts, and
# checkpoints with code of their own.
NOT_IN_TRANSFORMERS = {"kimi_k2", "kimi_k25", "kimi_vl", "internlm3", "minicpm", "bailing_moe"} | {
    "phimoe"
}


def test_the_architecture_is_the_one_that_transformers_writes_for_the_family():
    from transformers.models.auto import modeling_auto as auto

    written = {}
    for name, mapping in vars(auto).items():
        if name.endswith("_MAPPING_NAMES"):
            for family, architectures in mapping.items():
                found = architectures if isinstance(architectures, tuple) else (architectures,)
                written.setdefault(family, set()).update(found)
    tables = [*LOOPS.values(), REFUSED]
    for family, architecture in (pair for table in tables for pair in table.items()):
        wrapper = family.removesuffix("_text")
        both = written.get(family, set()) | written.get(wrapper, set())
        assert (architecture in both) == (family not in NOT_IN_TRANSFORMERS), family


GIVES = {f"{MODELS}/granite.py": "sum", f"{MODELS}/gemma4.py": "alone"}
LISTS = [(0, 3, 5), (5, 2, 7), (2, 5, 8), (1, 1, 4), (-1, 3, 6), (3, 6, 9)]


@pytest.mark.parametrize("ids", LISTS)
@pytest.mark.parametrize("file", [file for file in LOOPS if file != CUDA])
def test_vllms_own_loop_captures_what_is_read(file, ids):
    family = next(iter(LOOPS[file]))
    [taps] = {reading.taps for reading in read("vllm", ids, family, 8)}
    source, mixin = vllm_source(file), vllm_source(INTERFACES)
    try:
        fed = captured_by_vllm(source, mixin, ids, 8, GIVES.get(file, "pair"))
    except TypeError:
        fed = ()
    assert taps == (fed if len(fed) == len(ids) else None)


@pytest.mark.parametrize("ids", LISTS)
def test_vllms_loops_for_sparse_deepseek_differ_by_platform(ids):
    mixin, fed = vllm_source(INTERFACES), set()
    for file in (CUDA, ROCM, GENERIC):
        try:
            got = captured_by_vllm(vllm_source(file), mixin, ids, 8)
        except TypeError:
            got = ()
        fed.add(got if len(got) == len(ids) else None)
    for family in LOOPS[CUDA]:
        for reading in read("vllm", ids, family, 8):
            assert reading.taps == (fed.copy().pop() if len(fed) == 1 else None)
            assert reading.outcome == (
                "unknown" if len(fed) > 1 else "feeds" if reading.taps else "fails"
            )


def test_a_loop_that_leaves_out_the_residual_is_seen():
    source, mixin = vllm_source(f"{MODELS}/llama.py"), vllm_source(INTERFACES)
    broken = mixin.replace(
        "hidden_states + residual if residual is not None else hidden_states", "hidden_states"
    )
    assert broken != mixin
    assert captured_by_vllm(source, mixin, (2, 4), 8) == (2, 4)
    assert captured_by_vllm(source, broken, (2, 4), 8) == (1, 1)


@pytest.mark.parametrize("family", sorted(SERVED))
def test_what_vllm_serves_is_executed(family):
    for reading in read("vllm", (2, 15, 27), family):
        assert (reading.taps, reading.outcome) == ((2, 15, 27), "feeds")
        assert reading.rule.how == "executed"
        assert SERVED[family] in reading.rule.source
    spelling = parse_engine("vllm").spell((2, 15, 27), family, 30)
    assert isinstance(spelling, Spelling)


@pytest.mark.parametrize(
    ("family", "outcome", "told"),
    [
        ("gemma2", "fails", "does not support EAGLE-3"),
        ("gemma3_text", "fails", "Gemma3ForCausalLM"),
        ("glm4_moe", "fails", "refuses"),
        ("kimi_vl", "fails", "refuses"),
        ("longcat_flash", "fails", "refuses"),
        ("kimi_k3", "feeds no boundary", "one of two streams"),
        ("deepseek_v4", "feeds no boundary", "mean over"),
        ("mllama", "unknown", "not known here"),
        ("some_new_family", "unknown", "not known here"),
    ],
)
def test_what_vllm_does_not_serve_feeds_nothing_and_is_not_mended(family, outcome, told):
    for reading in read("vllm", (2, 15, 27), family):
        assert (reading.taps, reading.outcome) == (None, outcome)
        assert told in reading.problem
        assert (reading.rule is None) == (outcome == "unknown")
        assert reading.rule is None or reading.rule.how == "read"
    answer = parse_engine("vllm").spell((2, 15, 27), family, 30)
    assert isinstance(answer, Unspellable)
    assert told in answer.reason


@pytest.mark.parametrize(
    ("taps", "told"), [((0, 3, 31), "CUDA alone"), ((3, 31, 61), "CPU and XPU")]
)
@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa"])
def test_sparse_deepseek_at_either_end_depends_on_the_platform(family, taps, told):
    answer = parse_engine("vllm").spell(taps, family, 61)
    assert isinstance(answer, Unspellable)
    assert told in answer.reason


def test_no_family_stands_in_two_tables():
    assert not set(SERVED) & set(REFUSED)
    assert vllm.READ == "0.32.0"


class Written(SimpleNamespace):
    """A drafter's config as transformers hands it on."""

    def update(self, values):
        self.__dict__.update(values)

    def get_text_config(self):
        return self.text_config


def test_vllms_own_override_makes_an_mtp_head_of_these_model_types():
    source = vllm_source("config/speculative.py")
    scope = {"copy": copy, "get_hf_text_config": lambda config: config}
    override = lifted(source, "hf_config_override", **scope)
    [function] = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "hf_config_override"
    ]
    kinds = {
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Constant) and re.fullmatch("[a-z0-9]+_[a-z0-9_]+", str(node.value))
    }
    assert kinds >= vllm_config.MTP - {"step3p5", "step3p7"}
    for layers in (0, 1):
        for kind in kinds | {"step3p5", "step3p7", "llama", "qwen3", "deepseek_v2", "gpt_oss"}:
            config = {
                "model_type": kind,
                "architectures": ["LlamaForCausalLMEagle3"],
                "num_nextn_predict_layers": layers,
            }
            extra = {
                "layer_types": [],
                "hc_count": 1,
                "mtp_num_experts": 1,
                "mtp_num_experts_per_tok": 1,
                "mtp_config": {"num_nextn_predict_layers": 1},
            }
            hf = Written(**config, **extra)
            hf.text_config = hf
            made = override(hf).architectures
            assert (made != config["architectures"]) == (vllm_config.class_file(config) is None)


# SGLang: its setters and loops, out of its wheels.

LOOP_ELSEWHERE = {"qwen3_moe": "qwen2_moe", "qwen2_5_vl": "qwen2"}
SETTER_ELSEWHERE = {"llama4": "llama"}


@pytest.mark.parametrize("ids", [(1, 3, 5), (-1, 2, 6), (0, 2, 6), (2, 5, 7), (2, 5, 8), (3, 1, 6)])
@pytest.mark.parametrize(
    ("version", "file"),
    [(version, file) for version, files in sglang.LOOPED.items() for file in sorted(files)],
)
def test_sglangs_own_setter_and_loop_capture_what_is_read(wheel, version, file, ids):  # noqa: F811
    loop = wheel(version, f"models/{LOOP_ELSEWHERE.get(file, file)}")
    setter = wheel(version, f"models/{SETTER_ELSEWHERE.get(file, file)}")
    try:
        collectors = wheel(version, "layers/aux_hidden_states")
    except KeyError:
        collectors = ""
    inner = loop if file in LOOP_ELSEWHERE else ""
    try:
        fed = captured_by_sglang(loop, setter, ids, 8, inner, collectors)
    except (IndexError, RuntimeError, TypeError):
        fed = ()
    family = sglang._TABLE[file][0][0]
    config = {"eagle_config": {KEY: list(ids)}}
    [reading] = parse_engine(f"sglang@{version}").readings(config, target(family, 8))
    assert reading.taps == (fed if len(fed) == 3 else None)
    assert reading.rule.how == "executed"


@pytest.mark.parametrize("version", sorted(sglang.EXECUTED))
@pytest.mark.parametrize(
    ("family", "file", "name", "base"),
    [
        ("mistral", "mistral", "MistralForCausalLM", "LlamaForCausalLM"),
        ("ministral3", "ministral3", "Ministral3ForCausalLM", "LlamaForCausalLM"),
        ("internlm3", "llama", "InternLM3ForCausalLM", "LlamaForCausalLM"),
        ("phi3", "llama", "Phi3ForCausalLM", "LlamaForCausalLM"),
        ("glm_moe_dsa", "glm4_moe", "GlmMoeDsaForCausalLM", "DeepseekV2ForCausalLM"),
        ("llama4_text", "llama4", "Llama4ForCausalLM", "LlamaForCausalLM"),
    ],
)
def test_sglangs_families_that_inherit_have_no_setter_of_their_own(
    wheel,  # noqa: F811
    version,
    family,
    file,
    name,
    base,
):
    tree = ast.parse(wheel(version, f"models/{file}"))
    [cls] = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    assert [n.id for n in cls.bases] == [base]
    assert not any(isinstance(n, ast.FunctionDef) and "capture" in n.name for n in cls.body)
    [reading] = parse_engine(f"sglang@{version}").readings({}, target(family))
    assert reading.taps == (2, 15, 27)


def test_what_of_sglang_was_read_alone_says_so():
    for version, file, family in (
        ("0.5.23", "longcat_flash", "longcat_flash"),
        ("0.5.13", "qwen3", "qwen3"),
        ("0.5.12.post1", "qwen3_moe", "qwen3_moe"),
        ("0.5.17", "llama", "llama"),
    ):
        assert file not in sglang.LOOPED.get(version, ())
        [reading] = parse_engine(f"sglang@{version}").readings({}, target(family))
        assert reading.rule.how == "read"


@pytest.mark.parametrize(
    ("engine", "family", "file"),
    [
        ("tensorrt_llm", "llama", "modeling_llama.py"),
        ("tensorrt_llm", "kimi_k25", "modeling_deepseekv3.py"),
        ("tensorrt_llm", "gemma3_text", ""),
        ("tensorrt_llm", "some_new_family", ""),
        ("llamacpp", "qwen3_moe", "qwen3moe.cpp"),
        ("llamacpp", "gpt_oss", "openai-moe.cpp"),
        ("llamacpp", "deepseek_v3", ""),
        ("llamacpp", "mistral", ""),
        ("openvino", "gemma2", ""),
    ],
)
def test_a_family_whose_model_file_was_not_read_is_not_known(engine, family, file):
    [reading] = parse_engine(engine).readings({}, target(family))
    assert (reading.taps, reading.outcome) == (
        ((2, 15, 27), "feeds") if file else (None, "unknown")
    )
    assert file in reading.rule.source
    answer = parse_engine(engine).spell((3, 15, 27), family, 30)
    assert isinstance(answer, Spelling if file else Unspellable)
