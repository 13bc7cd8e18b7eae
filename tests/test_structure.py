"""The shape of the source: no import cycles, one name for one thing, small files and functions, a short walk.

What is not as it should be yet stands in a list beside its test. The lists may only shrink: an entry that is no longer
needed fails the test, too.
"""

import ast
import csv
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from imports import MODULES, cycles, graph
from packages import environment

TREES = {module: ast.parse(path.read_text()) for module, path in MODULES.items()}

CYCLES_LEFT: set[frozenset[str]] = set()
"""Modules that import each other; the goal is none."""

NAMES_LEFT: set[str] = set()
"""Class names that stand for two things; the goal is none."""

MODULES_PASSED = 50
"""How many modules `dpsrm train --data x.csv` passes today; docs/decisions/short-walk.md says why not fewer."""
GOAL = 40


def test_no_import_cycles():
    """Hidden imports count: those inside functions and those for types only."""
    found = set(cycles(graph("module", "function", "types")))
    assert found - CYCLES_LEFT == set(), "new cycles"
    assert CYCLES_LEFT - found == set(), "no longer cycles: take them off the list"


def test_the_search_finds_cycles():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycles({"a": {"a"}, "b": set()}) == [{"a"}]
    edges = {"a": {"b"}, "b": {"c", "e"}, "c": {"a"}, "d": {"a", "e"}, "e": {"f"}, "f": {"e"}}
    assert set(cycles(edges)) == {frozenset("abc"), frozenset("ef")}


def test_hidden_imports_are_seen():
    everything, at_once = graph("module", "function", "types"), graph("module")
    assert "dpsrm.runs.verify" in everything["dpsrm.cli.verify"] | everything["dpsrm.runs"]
    assert "dpsrm.training" in everything["dpsrm.cli.train"] - at_once["dpsrm.cli.train"], "inside a function"
    assert "dpsrm.training" in everything["dpsrm"] - at_once["dpsrm"], "for types only"


def test_every_class_name_stands_for_one_thing():
    classes = [node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    twice = {name for name, count in Counter(classes).items() if count > 1}
    assert twice - NAMES_LEFT == set(), "names that stand for two classes"
    assert NAMES_LEFT - twice == set(), "no longer double: take them off the list"


def test_nine_files_in_ten_have_at_most_200_lines():
    lines = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    longest = sorted(lines, key=lines.get)[-20:]
    assert np.percentile(list(lines.values()), 90) <= 200, [(module, lines[module]) for module in longest]


def test_nine_functions_in_ten_have_at_most_15_lines():
    functions = (node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    bodies = [node.body[1:] if ast.get_docstring(node) else node.body for node in functions]
    lengths = [body[-1].end_lineno - body[0].lineno + 1 for body in bodies if body]
    assert np.percentile(lengths, 90) <= 15


def walk(*arguments):
    """The walk of one command, by tests/walk.py in a process of its own."""
    command = [sys.executable, Path(__file__).with_name("walk.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stderr.splitlines()[-1])


def test_the_walk_of_a_training_is_short(tmp_path):
    """`dpsrm train --data x.csv`, from the command to the certificate."""
    rng = random.Random(0)
    with (tmp_path / "x.csv").open("w", newline="") as file:
        rows = [[rng.randint(18, 90), rng.choice(["nurse", "clerk"]), rng.choice(["yes", "no"])] for _ in range(500)]
        csv.writer(file).writerows([["age", "job", "ill"], *rows])
    budget = ["--epsilon", 1, "--delta", 1e-4]
    found = walk("train", "--data", tmp_path / "x.csv", "--target", "ill", *budget, "--out", tmp_path / "run")
    passed = found["modules"]
    print(f"{len(passed)} modules, {found['changes']} changes of file:", *passed, sep="\n  ")  # noqa: T201
    stages = {"data/load.py", "sampling/draw.py", "mechanisms/airlock.py", "runs/ledger.py", "report/published.py"}
    assert stages <= set(passed), "the walk is not seen"
    assert len(passed) <= MODULES_PASSED, f"{len(passed)} modules, more than before; the goal is {GOAL}"
