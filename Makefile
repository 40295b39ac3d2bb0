# Two commands: `make demo` and `make test`. Both set up everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: demo test test-all bench docs lint clean

$(STAMP): pyproject.toml
	@tools/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/sylvite demo

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

test: lint
	@$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

test-all: lint
	@$(BIN)/python -m pytest -n $(JOBS)

bench: $(STAMP)
	@$(BIN)/python -m benchmarks

docs: $(STAMP)
	@$(BIN)/python tools/build_docs.py

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
