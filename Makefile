# Each target sets up what it needs in .venv by itself.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test small-studies lint format bench studies docs clean

demo: .venv/core
	$(BIN)/attnflow demo --out demo --overwrite

test: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 30 -m "not slow and not study and not long"

small-studies: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "(study or long) and not slow"

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/dev
	$(BIN)/python -m benchmarks

studies: .venv/dev
	$(BIN)/attnflow claims --run --out results/studies --resume
	$(BIN)/python -m pytest -n 2 -m slow

docs: .venv/docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean:
	rm -rf .venv demo docs/_build docs/api

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnflow needs Python 3.11 or later, got " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv

.venv/core: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	$(BIN)/python -m attnflow.sums.native
	touch $@

.venv/dev: .venv/core
	$(PIP) --editable ".[dev]"
	touch $@

.venv/docs: .venv/core
	$(PIP) --editable ".[docs]"
	touch $@
