# Each of these makes its own environment (.venv) on first use. Needs Python 3.11 or later.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Neighbouring tests share what they start (servers, browsers, built pages) and what they import, so
# each process takes a part of the list as it is, and helps the others at the end. The slowest are
# named.
SPREAD := --numprocesses auto --dist worksteal --durations 25 --durations-min 5
GPUS := a100-sxm-80gb h100-sxm-80gb l4 rtx-4090 t4

.PHONY: help demo components test slow test-all lint types docs check bench corpus outputs fix audit hashes verified dist sbom clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

demo: $(READY) ## predict two training steps on several GPUs; no GPU needed
	$(BIN)/wavecast predict resnet50 --batch 64 --precision bf16 $(GPUS:%=--gpu %)
	$(BIN)/wavecast predict examples/train.py:make_step --batch 256 $(GPUS:%=--gpu %)

test: $(READY) ## the tests, without those that take long
	$(BIN)/python -m pytest $(SPREAD)

slow: $(READY) ## the tests that take long: training loops, recipes, kills, browsers, long fuzzing
	$(BIN)/python -m pytest $(SPREAD) -m slow

test-all: test slow ## all tests that need no GPU, as every night

components: ## install PostgreSQL and Chromium (Debian), which some tests need
	.ci/components

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy --strict
	$(BIN)/mypy

docs: $(READY) ## the site, strictly, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint types test docs ## everything CI runs

bench: $(READY) ## list the commands that fit, score and collect, and time wavecast itself
	@$(BIN)/python -m lab --list
	$(BIN)/python -m lab score speed

corpus: $(READY) ## run scripts of users, nightly; REPOSITORIES=FOLDER has public repositories
	$(BIN)/python -m lab score corpus $(REPOSITORIES)

outputs: $(READY) ## rewrite the command output that the documents show
	$(BIN)/python tests/test_docs.py

fix: $(READY) ## format, and repair what can be repaired
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

audit: $(READY) ## known vulnerabilities of what is installed; needs a network
	$(BIN)/python -m pip install --quiet -c constraints.txt --group release
	$(BIN)/pip-audit --skip-editable

hashes: $(READY) ## write constraints-hashed.txt after a change of constraints.txt; needs a network
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile constraints.txt --quiet --no-deps --python-version 3.12 --generate-hashes \
		--no-annotate --custom-compile-command 'make hashes' --no-emit-package torch \
		--output-file constraints-hashed.txt

verified: ## make the environment of packages whose hashes are known, all but torch
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r constraints-hashed.txt
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[torch]' --group dev
	touch $(READY)

dist: $(READY) ## the wheel and the source archive, in dist/
	$(BIN)/python -m pip install --quiet -c constraints.txt --group release
	$(BIN)/python -m build --no-isolation --outdir dist .

sbom: $(READY) ## a bill of materials (CycloneDX) of the wheel with all its extras, in dist/
	$(BIN)/python -m pip install --quiet -c constraints.txt --group release
	mkdir -p dist
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-file dist/wavecast.cdx.json $(BIN)/python

clean: ## remove the environment and everything generated
	rm -rf .venv site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage

# pip 25.1 is the first that knows --group.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "wavecast needs Python 3.11 or later; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch]' --group dev
	touch $(READY)
