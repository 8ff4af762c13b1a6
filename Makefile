# Everything starts here. Needs Python 3.11 or newer, a C++ compiler and the package registries; cmake and ninja come with the build.
#
#   make serve [ARGS="--port 9000"]   set up, fetch the default model, serve it on port 8000
#   make test                         lint, then every test that needs at most the default model
#   make test-all                     the same, then the tests of the other two models
#   make test-native                  the kernels without Python: sanitizers, an emulated ARM processor, clang
#   make test-browser                 the page in headless Chromium, against a real server

# The first interpreter that runs and is new enough (a version manager's shim may exist and not run).
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
DEFAULT_MODEL := smollm2:135m
OTHER_MODELS := qwen2.5-coder:0.5b gemma3:270m

# What the installed copy is made of: a change in any of it installs the package again, so tests never see an old one.
SOURCES := $(shell find src native -type f -not -name '*.pyc' 2>/dev/null) pyproject.toml README.md LICENSE

.DEFAULT_GOAL := help
.PHONY: help setup dev serve test test-models test-all test-native test-sanitizers test-aarch64 test-clang test-tools
.PHONY: test-browser screenshots lint format bench bench-native peers compare accuracy
.PHONY: measure-install measure-ready measure-frontend measure-records clean

help:
	@sed -n '/^#   /s/^# //p' Makefile
	@echo "   make setup | lint | format | screenshots | bench | bench-native | peers | compare | accuracy"
	@echo "   make measure-install | measure-ready | measure-frontend | measure-records | clean"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Stamps: dependencies are resolved only when pyproject.toml changes; the package itself is built again when a source file does.
# A user's build gets its tools in isolation. A developer's has them in the environment, so objects in build/ stay valid and
# only the C++ files that changed are compiled.
BUILD_TOOLS = cmake ninja $(shell sed -n 's/^requires = \[\(.*\)\]/\1/p' pyproject.toml | tr -d ',')
$(VENV)/.base: pyproject.toml | $(BIN)/python
	$(PIP) install .
	@touch $@ $(VENV)/.package

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install $(BUILD_TOOLS)
	$(PIP) install --no-build-isolation '.[dev]'
	@touch $@ $(VENV)/.base $(VENV)/.package

$(VENV)/.package: $(SOURCES) | $(BIN)/python
	$(PIP) install --no-deps --force-reinstall $(if $(wildcard $(VENV)/.dev),--no-build-isolation) .
	@touch $@

setup: $(VENV)/.base
	@$(MAKE) --no-print-directory --quiet $(VENV)/.package

dev: $(VENV)/.dev
	@$(MAKE) --no-print-directory --quiet $(VENV)/.package

serve: setup
	$(BIN)/sojourn serve $(ARGS)

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/sojourn pull $(DEFAULT_MODEL)
	$(BIN)/python -m pytest -m "not models and not browser" $(ARGS)

test-models: dev
	for model in $(DEFAULT_MODEL) $(OTHER_MODELS); do $(BIN)/sojourn pull $$model || exit 1; done
	$(BIN)/python -m pytest -m models $(ARGS)

# The page in a real browser.
test-browser: dev test-tools
	$(PIP) install $(shell sed -n 's/^browser = \[\(.*\)\]/\1/p' pyproject.toml)
	$(BIN)/sojourn pull $(DEFAULT_MODEL)
	$(BIN)/python -m pytest tests/browser $(ARGS)

screenshots: dev test-tools
	$(PIP) install $(shell sed -n 's/^browser = \[\(.*\)\]/\1/p' pyproject.toml)
	$(BIN)/python -m tests.browser.screenshots

test-all: test test-models

# The kernels without Python, each build in a folder of its own under build/. native/tests/self_check.cpp says what is checked.
NATIVE = $(BIN)/cmake -S native -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DSOJOURN_MODULE=OFF
SELF_CHECK = $(NATIVE) -DSOJOURN_CHECK=ON

test-native: test-sanitizers test-aarch64 test-clang

test-sanitizers: dev
	$(SELF_CHECK) -B build/sanitizers -DSOJOURN_SANITIZE=ON
	$(BIN)/cmake --build build/sanitizers
	build/sanitizers/self_check

test-aarch64: dev test-tools
	$(SELF_CHECK) -B build/aarch64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
	$(BIN)/cmake --build build/aarch64
	qemu-aarch64 -L /usr/aarch64-linux-gnu build/aarch64/self_check

# As on a system that is not Linux: without what is called there only.
test-clang: dev test-tools
	$(SELF_CHECK) -B build/clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_CXX_FLAGS=-U__linux__ -DSOJOURN_BENCH=ON
	$(BIN)/cmake --build build/clang
	build/clang/self_check

test-tools:
	@sh tools/install_check_tools.sh

# Each program measures the ceilings it shows shares of in the same run.
bench-native: dev
	$(NATIVE) -B build/bench -DSOJOURN_BENCH=ON -DCMAKE_BUILD_TYPE=Release
	$(BIN)/cmake --build build/bench
	build/bench/bench_matmul --rows 1,8,64
	build/bench/bench_attention
	build/bench/bench_step
	build/bench/bench_vector

bench: setup
	$(BIN)/sojourn pull $(DEFAULT_MODEL)
	$(BIN)/sojourn bench offline $(ARGS)

# What the benchmarks compare with. Built once; `make clean` removes them.
PEERS := build/peers
peers: $(BIN)/python
	sh benchmarks/build_peers.sh $(PEERS) $(BIN)/python

compare: setup
	$(BIN)/python benchmarks/compare.py --llama-server $(PEERS)/bin/llama-server \
		--openvino-python $(PEERS)/openvino/bin/python $(ARGS)

accuracy: setup
	$(BIN)/python benchmarks/accuracy.py --llama-python $(PEERS)/llama/bin/python $(ARGS)

measure-install:
	$(PYTHON) tools/measure_install.py

measure-ready: setup
	$(BIN)/sojourn pull $(DEFAULT_MODEL)
	$(BIN)/python tools/measure_ready.py $(ARGS)

measure-frontend: setup
	$(BIN)/sojourn pull $(DEFAULT_MODEL)
	$(BIN)/python benchmarks/frontend_cpu.py $(ARGS)

measure-records: setup
	$(BIN)/sojourn pull $(DEFAULT_MODEL)
	$(BIN)/python benchmarks/records_beside_client.py $(ARGS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
