"""Two processes want the last of a budget, again and again: how often does exactly one get it?

    python tests/robustness/race_driver.py FOLDER --races 100

Forks (torch is not imported), so that both are ready when a pipe lets them go. Prints one JSON object.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from dpsrm.accounting.budget import Budget
from dpsrm.accounting.budget_file import create_budget, read_budget, reserve
from dpsrm.core.errors import BudgetExceeded
from dpsrm.core.events import Adjacency, Charge, GaussianRelease, Sampling, Scheme, Spending

EVENT = GaussianRelease(noise_multiplier=2.0, sampling=Sampling(scheme=Scheme.WOR, population=1000, batch=50))
SPENDING = Spending.of([Charge(EVENT, 20)], adjacency=Adjacency.REPLACE_ONE)


def contender(path, gate, name):
    """A child that reserves when the gate opens; exit code 0: got it, 3: refused, 1: anything else."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.read(gate, 1)
        reserve(path, SPENDING, run=name, data="same")
        code = 0
    except BudgetExceeded:
        code = 3
    finally:
        os._exit(code)


def race(path, budget):
    """Exit codes of two contenders, and how many reservations the file holds afterwards."""
    create_budget(path, budget)
    gate, opener = os.pipe()
    children = [contender(path, gate, name) for name in ("first", "second")]
    os.write(opener, b"go")
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    os.close(gate)
    os.close(opener)
    return codes, len(read_budget(path).reservations)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--races", type=int, default=100)
    asked = parser.parse_args()
    empty = Budget(epsilon=1000.0, delta=1e-5, adjacency=Adjacency.REPLACE_ONE, order=16.0)
    last = Budget(epsilon=1.2 * empty.cost(SPENDING).epsilon, delta=1e-5, adjacency=Adjacency.REPLACE_ONE, order=16.0)
    results = [race(asked.folder / str(k), last) for k in range(asked.races)]
    won = sum(result == ([0, 3], 1) for result in results)
    other = [result for result in results if result != ([0, 3], 1)]
    sys.stdout.write(json.dumps({"races": asked.races, "exactly_one": won, "other": other[:3]}) + "\n")


if __name__ == "__main__":
    main()
