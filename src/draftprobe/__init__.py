"""Tests EAGLE-3 drafters: is a low acceptance length the drafter's fault or the wiring's?

Importing the package loads nothing else; each part is imported by its own name.
"""

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # a tenth of the time that --help takes

    return version(__name__)
