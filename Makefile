# Every target sets up .venv by itself; continuous integration calls `make check` and nothing else.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
READY_TO_DEPLOY := .venv/.ready-to-deploy

.PHONY: help demo test test-all test-fleet test-extras check lint types coverage bench bless figures docs clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "hasfl needs Python 3.11 or newer; found $$($(PYTHON) --version): set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

# Flower and gRPC, for deployments; `make demo` does without them.
$(READY_TO_DEPLOY): $(READY) requirements-deploy.lock
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-deploy.lock
	@touch $@

DEMO := hasfl,proportional,hasfl-bcd,fl,sfl,b=16+cut=2,rbs+rms

demo: $(READY)  ## Train seven strategies on twenty unequal devices and say who is first
	@rm -rf runs/demo
	$(BIN)/hasfl compare examples/demo.toml --strategies $(DEMO) --out runs/demo

PYTEST := $(BIN)/pytest -q -n 2 --dist worksteal

# Measuring coverage makes tests 1.6 times as slow, so only those that cover the deciding wing are measured.
DECIDING := tests/theory tests/planning \
  $(addprefix tests/runs/test_,constants.py library.py objectives.py own_data.py questions.py scenario.py trace_file.py) \
  $(filter-out tests/test_docs.py tests/test_readme.py,$(wildcard tests/test_*.py))
QUICK := -m "not slow and not fleet and not extras"

test: $(READY_TO_DEPLOY)  ## Run the quick tests and require 95 % coverage of the deciding wing
	$(PYTEST) $(QUICK) $(DECIDING) --cov --cov-report=
	$(BIN)/coverage report --fail-under=95
	$(PYTEST) $(QUICK) $(addprefix --ignore=,$(DECIDING))

test-all: test  ## Run the quick tests, then the slow ones: long matrices, killed processes
	$(PYTEST) -m "slow and not fleet and not extras"

# Tests of one file share a fleet, so a file is run by one worker.
test-fleet: $(READY_TO_DEPLOY)  ## Run the longest tests: whole deployments, killed processes, fuzzing
	$(PYTEST:worksteal=loadfile) -m fleet

# These tests have an environment of their own: their packages need a newer click than the lock has (decision 0003).
EXTRAS := .venv/extras

$(EXTRAS)/.ready: requirements.lock requirements-extras.lock pyproject.toml
	$(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(EXTRAS)/bin/pip install --quiet --disable-pip-version-check -r requirements-extras.lock
	$(EXTRAS)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

test-extras: $(EXTRAS)/.ready  ## Run the tests that need packages of Hugging Face, pandas or ONNX
	HASFL_EXTRAS=1 $(PYTEST:$(BIN)/%=$(EXTRAS)/bin/%) -m extras $$(grep -rl --include='*.py' 'mark\.extras' tests)

check: lint types test-all test-fleet test-extras  ## Everything a change must pass

lint: $(READY_TO_DEPLOY)  ## ruff, format and rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY_TO_DEPLOY)  ## mypy, strict
	$(BIN)/mypy

bench: $(READY_TO_DEPLOY)  ## Run the benchmarks and print their reports
	@for script in benchmarks/bench_*.py; do $(BIN)/python -m benchmarks.$$(basename $$script .py) || exit 1; done

figures: $(READY)  ## Draw the paper's figures and judge its claims, from the results in results, into docs
	$(BIN)/hasfl reproduce all --only-draw --out results
	@mkdir -p docs/figures
	cp results/figures/* docs/figures/
	cp results/claims.md docs/claims.md

bless: $(READY_TO_DEPLOY)  ## Write the shipped layer tables anew; review the diff
	$(BIN)/python -m hasfl.runs.model_costs

# The site has an environment of its own: Zensical reads the source and does not import it.
DOCS := .venv/docs

$(DOCS)/.ready: requirements-docs.lock
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check -r requirements-docs.lock
	@touch $@

docs: $(DOCS)/.ready  ## Build the site of the documentation into site; a warning is an error
	$(DOCS)/bin/python docs/prepare_site.py .venv/docs-source
	cd .venv/docs-source && ../docs/bin/zensical build --strict
	@rm -rf site && mv .venv/docs-source/site site

clean:  ## Remove what the other targets made
	rm -rf .venv runs/demo site .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
