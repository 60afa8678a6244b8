# Each target sets up what it needs in .venv by itself.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Two workers: libraries that wait for each other's threads (FINUFFT, torch) get one thread each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2
# Compiled programs, which the workers and the next run share.
KEPT := JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.pytest_cache/compiled JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
  JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

.PHONY: demo test check coverage lint format bench studies docs bite clean
# One environment, which two targets must not set up at once.
.NOTPARALLEL:

demo: .venv/core
	$(BIN)/attnflow demo --out demo --overwrite

# XLA optimizes little: what is compiled here runs once or twice.
test: .venv/dev
	$(KEPT) JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(PYTEST) --dist worksteal --durations 20 -m "not slow and not long and (quick or not study)"

# Everything but the studies at full size, optimized as users have it: the tests of `make test`, the longer ones, the small studies, the site.
check: lint docs
	$(KEPT) $(PYTEST) --dist worksteal --durations 20 -m "not slow and not study"
	$(KEPT) $(PYTEST) --dist loadgroup --durations 20 -m "study and not slow"

# What the tests and the small studies leave unseen, by lines.
coverage: .venv/dev
	$(KEPT) $(PYTEST) --dist loadgroup --cov=attnflow --cov-report=term:skip-covered -m "not slow"

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
	$(PYTEST) --dist loadgroup --timeout 0 -m slow

docs: .venv/docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env docs docs/_build/html
	@echo "docs/_build/html/index.html"

# Small faults put into the source one at a time, each of which a test must catch.
bite: .venv/dev
	$(BIN)/python tests/bite.py

clean:
	rm -rf .venv demo docs/_build docs/api

# What is wrong with $(PYTHON): nothing is printed if it will do.
unfit = $(shell \
  command -v $(PYTHON) > /dev/null 2>&1 || { echo "found no $(PYTHON)"; exit; }; \
  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || \
    { echo "$(PYTHON) is `$(PYTHON) -c 'import sys; print(sys.version.split()[0])' 2> /dev/null || echo broken`"; exit; }; \
  $(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || echo "$(PYTHON) comes without venv (on Debian: apt install python3-venv)")

# An environment that could not be finished is taken away, so that the next run does not build on it.
.venv/bin/python:
	$(if $(unfit),$(error attnflow needs Python 3.11 or later: $(unfit); install one, or name one: make PYTHON=/path/to/python3))
	$(PYTHON) -m venv --clear .venv || { rm -rf .venv; exit 1; }

.venv/core: .venv/bin/python pyproject.toml constraints.txt
	@$(BIN)/python -c 'import pip' 2> /dev/null || $(PYTHON) -m venv --clear .venv
	$(PIP) --editable .
	$(BIN)/python -m attnflow.sums.native
	touch $@

# A peer that cannot be had is done without, and asked for again by the next run.
.venv/dev: .venv/core
	$(PIP) --editable ".[dev]" && touch $@ || { $(PIP) --editable ".[tools,models,lint]" && \
	  echo "attnflow: the peers of extra bench could not be installed (above is why): comparisons with those that are missing are left out"; }

.venv/docs: .venv/core
	$(PIP) --editable ".[docs]"
	touch $@
