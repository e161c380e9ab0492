# install, demo, test, check: everything happens in .venv, through the pins of constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -c constraints.txt

# Only the tests need speculators, an independent EAGLE-3 implementation to compare with. Its
# declared dependencies would replace torch by another build, so it goes in without them.
SPECULATORS := speculators hs-connectors
SPECULATORS_NEEDS := aiohttp "datasets>=4,<=5.1.0" httpx loguru "openai>=2" protobuf psutil \
	pydantic-settings

.PHONY: install demo test check

install: .venv/.installed-dev

demo test: export OMP_NUM_THREADS = 1

demo: .venv/.installed
	$(BIN)/draftprobe demo

test: .venv/.installed-dev
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# A stamp is the last thing an install writes: what failed half-way runs again.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e ".[gguf]"
	touch $@

.venv/.installed-dev: .venv/.installed
	$(PIP) -e ".[dev,gguf]" $(SPECULATORS_NEEDS)
	$(PIP) --no-deps $(SPECULATORS)
	touch $@
