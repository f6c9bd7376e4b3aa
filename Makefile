# The two commands of the README, and those behind them. `make help` lists them all.
#
# Everything lives in .venv, made on first use and brought up to date when pyproject.toml or
# constraints.txt change. Paths are relative, so a clone may lie in any folder.

SHELL := /bin/sh
.DEFAULT_GOAL := help
PY := .venv/bin/python

# Further options for `make train` and `make bench`, such as ARGS="--seed 1".
ARGS ?=
# Test processes; one file's tests stay in one of them.
WORKERS ?= 2
# Options for pytest, such as TESTS=tests/ops or TESTS="-k conv".
TESTS ?=

READY := .venv/.ready
READY_TEST := .venv/.ready-test

# An environment counts only if its convloom is this folder's.
HEALTHY := $(shell $(PY) -c "import importlib.util as u, os; s = u.find_spec('convloom'); \
	print(os.path.samefile(s.origin, 'src/convloom/__init__.py'))" 2>/dev/null)
ifneq ($(HEALTHY),True)
.PHONY: $(READY)
endif

$(READY): pyproject.toml constraints.txt tools/setup.sh
	@sh tools/setup.sh
	@touch $@

$(READY_TEST): $(READY)
	@sh tools/setup.sh test
	@touch $@

RUFF := $(PY) -m ruff
LINT := $(RUFF) check && $(RUFF) format --check
TYPES := $(PY) -m mypy
# The processes share the cores; one thread each for the libraries that would take all of them.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --dist loadfile

.PHONY: train test lint types test-fast test-full bench format clean help

train: $(READY) ## train the seed network on Fashion-MNIST for 5 epochs (ARGS="--seed 1")
	.venv/bin/convloom train lenet --data fashion-mnist --epochs 5 $(ARGS)

test: $(READY_TEST) ## lint, types, import contract and the fast tests
	$(LINT)
	$(TYPES)
	$(PYTEST) -m "not slow and not network" $(TESTS)

lint: $(READY_TEST) ## ruff: rules and formatting
	$(LINT)

types: $(READY_TEST) ## mypy, strict
	$(TYPES)

test-fast: $(READY_TEST) ## the fast tests alone (TESTS="tests/ops -k conv")
	$(PYTEST) -m "not slow and not network" $(TESTS)

test-full: $(READY_TEST) ## every test, slow ones and whole shape products included
	$(LINT)
	$(TYPES)
	$(PYTEST) -m "not network" $(TESTS)

bench: $(READY_TEST) ## training throughput against PyTorch on this CPU
	$(PY) benchmarks/cpu_vs_pytorch.py $(ARGS)

format: $(READY_TEST) ## let ruff format and fix what it can
	$(RUFF) check --fix
	$(RUFF) format

clean: ## remove .venv, caches and builds; runs/ and downloaded data stay
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile
