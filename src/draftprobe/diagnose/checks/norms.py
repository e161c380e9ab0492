"""Checks of the norms before fc: tensors against flags, and their number against fc's slots.

Knows what every engine needs (the flag, with the tensor), not what a certain one ignores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from draftprobe.diagnose.checks.catalogue import finding
from draftprobe.diagnose.checks.subject import Subject
from draftprobe.diagnose.checks.taps import slots
from draftprobe.diagnose.verdict import Finding

_FLAGS = {
    "input_norm": ("norm_before_fc",),
    "fc_norm": ("fc_norm", "use_aux_norm", "enable_fc_norm"),
}


def check(subject: Subject) -> Iterator[Finding]:
    """W201, W202, W205."""
    per_tap = [
        name for name in subject.layout.sources if re.fullmatch(r"fc_norm\.\d+\.weight", name)
    ]
    whole = [name for name in subject.layout.sources if name == "input_norm.weight"]
    for kind, names in (("input_norm", whole), ("fc_norm", per_tap)):
        flag = _flag(subject, _FLAGS[kind])
        if names and not flag:
            yield finding(
                "W201",
                f"{', '.join(map(subject.file_name, sorted(names)))} in the weights, but "
                f"{' or '.join(_FLAGS[kind])} is not true in the config: SGLang and vLLM then feed "
                "fc without the norm",
            )
        if flag and not names:
            yield finding(
                "W202",
                f"{flag} is true in the config, but the weights hold no {kind}: SGLang and vLLM "
                "leave such a norm at ones, and norm what was trained un-normed",
            )
    yield from _sizes(subject, per_tap, whole)


def _flag(subject: Subject, keys: tuple[str, ...]) -> str | None:
    """The first of these keys that is true, at top level or in eagle_config."""
    nested: Any = subject.checkpoint.config.get("eagle_config")
    for key in keys:
        if subject.config.get(key) is True:
            return key
        if isinstance(nested, dict) and nested.get(key) is True:
            return f"eagle_config.{key}"
    return None


def _sizes(subject: Subject, per_tap: list[str], whole: list[str]) -> Iterator[Finding]:
    count, hidden = slots(subject), subject.target_hidden
    if count is None or hidden is None:
        return
    numbers = sorted(int(name.split(".")[1]) for name in per_tap)
    if per_tap and numbers != list(range(count)):
        yield finding("W205", f"fc has {count} slots, the weights hold fc_norm of slots {numbers}")
    for name in sorted(per_tap + whole):
        width, shape = (hidden if name in per_tap else count * hidden), subject.shape(name)
        if shape != (width,):
            yield finding(
                "W205",
                f"{subject.file_name(name)} is {list(shape or ())}: expected [{width}] "
                f"({count} slots of {hidden})",
            )
