# Everything a developer or a newcomer runs. `make` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up

.DEFAULT_GOAL := help
.PHONY: help setup system jars test test-unit check demo bench clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: setup ## start real servers and show a group at work
	$(BIN)/zkconsumer demo

test: check ## everything CI runs: checks and all tests but the long ones
	$(BIN)/pytest tests --ignore=tests/long --ignore=tests/bench

test-unit: $(STAMP) ## the tests that need no server
	$(BIN)/pytest tests/unit tests/property tests/sim

check: setup ## lint, format, types, import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## measure
	$(BIN)/python -m tests.bench.run

setup: system $(STAMP) jars ## all that the other targets need; seconds when it is there already

clean: ## delete what the targets made here (not the jars in the user's cache)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(STAMP): pyproject.toml | system
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[cli,codecs]' --group dev
	@touch $@

jars: $(STAMP)
	@$(BIN)/python -m zkconsumer.testing.jars

# Java 17, Maven and Python's venv: installed where apt may, named where not.
system:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	    { echo "error: Python 3.11 or newer is needed: install it, or name it: make PYTHON=..." >&2; exit 1; }; \
	missing=; named=; \
	java=$$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
	if [ "$${java:-0}" -lt 17 ]; then missing="openjdk-17-jre-headless"; named="Java 17 or newer"; fi; \
	if ! command -v mvn >/dev/null; then missing="$$missing maven"; named="$$named$${named:+, }Maven"; fi; \
	if ! test -x $(BIN)/python && ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then \
	    missing="$$missing python3-venv"; named="$$named$${named:+, }Python's venv module"; fi; \
	test -n "$$missing" || exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && grep -qE '^ID(_LIKE)?=.*(debian|ubuntu)' /etc/os-release; then \
	    echo "installing: $$missing" >&2; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	else \
	    echo "error: install $$named (Debian and Ubuntu: sudo apt install $$missing)" >&2; exit 1; \
	fi
