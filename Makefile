# `make demo` and `make test` do all of their own set-up: Python >= 3.11, make and a package index are enough.

PYTHON ?= python3 python3.13 python3.12 python3.11
VENV ?= .venv
WORKERS ?= 2
BIN = $(VENV)/bin
CHECKED = $(VENV)/.checked
INSTALLED = $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint format wheel clean setup

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: $(CHECKED)  ## compare small models with and without soft biases; writes demo/report.html
	$(BIN)/softbias demo

test: lint  ## lint, types and tests: what every change must pass
	$(PYTEST)

test-all: lint  ## the same with the slow tests
	$(PYTEST) --slow

lint: $(CHECKED)  ## ruff (lint and format), mypy, the floors of the house, words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python scripts/check_words.py

format: $(CHECKED)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(CHECKED)  ## build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

clean:  ## remove the environment, caches and builds
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(CHECKED)  ## only set up the environment

# One torch thread per worker: two workers with two threads each would fight over two cores.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

# Stamps live inside the environment, so that removing it removes them.
$(INSTALLED): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		for python in $(PYTHON); do \
			if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo 'softbias needs Python 3.11 or newer, and none of "$(PYTHON)" is: install one, or name it with make PYTHON=/path/to/python' >&2; \
			exit 1; \
		fi; \
		echo "Making $(VENV) with $$($$found --version)"; \
		$$found -m venv --clear $(VENV) || exit 1; \
	fi
	@echo "Installing softbias and what it needs into $(VENV): a few minutes and 6 GB the first time"
	@$(BIN)/python -m pip install -qq --upgrade -c constraints.txt pip
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[dev]'
	@touch $@

# Whatever is installed later (another torch, say) changes the folder, and then we look again.
$(CHECKED): $(INSTALLED) scripts/check_setup.py $(wildcard $(VENV)/lib/python3*/site-packages)
	@$(BIN)/python scripts/check_setup.py
	@touch $@
