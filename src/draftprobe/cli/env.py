"""`draftprobe env`: what one pastes into an issue.

Versions come from the packages' metadata, so that a broken installation can still be described;
torch is loaded for what only it knows. It knows nothing of drafters.
"""

from pathlib import Path
from typing import Annotated

import typer

Fact = str | int | list[str] | None

PACKAGES = ("draftprobe", "torch", "transformers", "safetensors", "numpy")


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what to paste into an issue: versions, machine, cache."""
    facts = {"python": _python(), **_versions(), **_machine(), **_cache()}
    if as_json:
        import json

        print(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for name, fact in facts.items():
        print(f"{name:{width}}  {_told(fact)}")


def _told(fact: Fact) -> str:
    if isinstance(fact, list):
        return ", ".join(fact) or "none"
    return "none" if fact is None else str(fact)


def _python() -> str:
    import platform

    return f"{platform.python_implementation()} {platform.python_version()}"


def _versions() -> dict[str, str | None]:
    from importlib.metadata import PackageNotFoundError, version

    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    return {package: installed(package) for package in PACKAGES}


def _machine() -> dict[str, Fact]:
    import os
    import platform

    import torch

    return {
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _cpu_model() -> str:
    import platform

    table = Path("/proc/cpuinfo")
    lines = table.read_text().splitlines() if table.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cache() -> dict[str, object]:
    from draftprobe.demo.target import cache_folder, demo_target

    there = (demo_target() / "config.json").is_file()
    return {"cache": str(cache_folder()), "demo_target": str(demo_target()) if there else None}
