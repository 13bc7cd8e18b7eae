# Every target sets itself up: a machine with Python 3.11+ and make is enough.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
export OMP_NUM_THREADS ?= 1

.PHONY: demo install test soak mutants check format clean

demo: install  ## train a private model of health care use
	$(BIN)/dpsrm demo --out runs/demo --overwrite

install: .venv/installed  ## what a user needs; afterwards .venv/bin/dpsrm works

test: .venv/installed-dev  ## all tests
	$(BIN)/python -m pytest -n 2

soak: .venv/installed-dev  ## 500 kills of a training, 100 times the fuzzing; hours
	DPSRM_KILLS=500 $(BIN)/python -m pytest tests/robustness/test_kill.py
	DPSRM_FUZZ=100 $(BIN)/python -m pytest -n 2 --dist worksteal tests/robustness/test_fuzz.py tests/accounting/test_extremes.py

mutants: .venv/installed-dev  ## break privacy-critical lines one at a time: a test must notice each
	$(BIN)/python tests/mutants/run.py

check: .venv/installed-dev  ## linters, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build runs

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --editable '.[cli,demo,experiments]'
	touch $@

.venv/installed-dev: .venv/installed
	$(PIP) --editable '.[dev]'
	touch $@
