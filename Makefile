# Needs Python 3.11, 3.12 or 3.13, git, make and pip; everything else goes into .venv.
# The newest that runs and can make an environment is taken: make setup PYTHON=... takes another.
CAN := -c 'import ensurepip, venv'
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11; do \
	$$python $(CAN) 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup test slow torture bench repro site lab format clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

$(STAMP): pyproject.toml constraints.txt
	@$(or $(PYTHON),false) $(CAN) || { echo "Install Python 3.11, 3.12 or 3.13 with venv, or say make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: $(STAMP)  ## install everything into .venv

test: $(STAMP)  ## check style and types, then run the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy qe
	$(BIN)/python -m pytest

slow: $(STAMP)  ## the tests that `make test` leaves out, for their length
	$(BIN)/python -m pytest -m slow

torture: $(STAMP)  ## attack runs and compare them with runs left alone (20 minutes)
	$(BIN)/python -m tests.torture

.bench/.installed: benchmarks/requirements.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .bench -r $<
	@touch $@

bench: .bench/.installed  ## measure the speed, side by side with others (20 minutes)
	$(BIN)/python -m benchmarks

# What did not change is not told. The filter outlives Ctrl-C, and the exit code is DVC's.
repro: SHELL := bash
repro: $(STAMP)  ## run what is stale, then rebuild every table and figure
	@set -o pipefail; \
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONUNBUFFERED=1 $(BIN)/dvc repro --keep-going | \
		(trap '' INT; exec awk "!/ didn't change, skipping$$/ { print; fflush() }")
	@$(BIN)/python -m qe show

site: $(STAMP)  ## a static site of the notebooks, the documentation and the report (10 minutes)
	$(BIN)/python -m qe.analysis.site site

lab: $(STAMP)  ## open the index of notebooks in JupyterLab, which asks nobody for news or updates
	$(BIN)/jupyter lab notebooks/index.ipynb --ServerApp.root_dir=. --LabApp.news_url=None \
		--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate

format: $(STAMP)  ## let ruff put code and notebooks in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and caches, nothing that a run made
	rm -rf $(VENV) .bench .pytest_cache .ruff_cache .mypy_cache .hypothesis qe.egg-info
