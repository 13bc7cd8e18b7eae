# Every target sets itself up: a machine with Python 3.11+ and make is enough.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
export OMP_NUM_THREADS ?= 1

.PHONY: demo install test soak mutants check docs notebooks browser screenshots wheel format clean

demo: install  ## train a private model of health care use
	$(BIN)/dpsrm demo --out runs/demo --overwrite

install: .venv/installed  ## what a user needs; afterwards .venv/bin/dpsrm works

test: .venv/installed-dev  ## all tests
	$(BIN)/python -m pytest -n 2

soak: .venv/installed-dev  ## 500 kills of a training, 20 of ranks, two hosts, 100 times the fuzzing, 10⁸ records and parameters; hours
	DPSRM_KILLS=500 $(BIN)/python -m pytest tests/robustness/test_kill.py
	DPSRM_RANK_KILLS=20 DPSRM_RANK_STEPS=50 $(BIN)/python -m pytest tests/ranks
	$(BIN)/python tests/ranks/hosts.py build/hosts  # as root, with iproute2
	DPSRM_FUZZ=100 $(BIN)/python -m pytest -n 2 --dist worksteal tests/robustness/test_fuzz.py tests/accounting/test_extremes.py
	DPSRM_OPERATORS=3 $(BIN)/python -m pytest -n 2 tests/gradients/test_operators.py
	mkdir -p build && $(BIN)/dpsrm bench scaling --data-dir build --out build/scaling.jsonl

mutants: .venv/installed-dev  ## break privacy-critical lines one at a time: a test must notice each
	$(BIN)/python tests/mutants/run.py
	$(BIN)/python tests/mutants/privacy/run.py

check: .venv/installed-dev  ## linters, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/installed-dev  ## the site, without a warning, and every link of it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/python tools/check_site.py build/site

notebooks: .venv/installed-dev  ## run every notebook from its first cell to its last
	$(BIN)/python tools/notebooks.py

browser: .venv/installed-dev  ## the pages in Chromium: errors, requests, widths, contrast
	bash tools/browser.sh
	DPSRM_BROWSER=1 $(BIN)/python -m pytest tests/browser

screenshots: .venv/installed-dev  ## remake the pictures of the docs
	bash tools/browser.sh
	$(BIN)/dpsrm demo --out build/demo --overwrite
	$(BIN)/python tools/screenshots.py build/demo

wheel: .venv/installed-dev  ## build it, install it into empty environments, try it
	PIP="$(PIP)" bash tools/wheel.sh $(BIN)/python

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
