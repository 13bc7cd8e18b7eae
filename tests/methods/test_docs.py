"""docs/methods.md: its snippets run, and its table is the registry's; docs/theory.md: its snippets run."""

import doctest
from pathlib import Path

from dpsrm.methods import METHODS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"


def test_snippets():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted >= 4
    assert result.failed == 0


def test_theory_snippets():
    result = doctest.testfile(str(PAGE.with_name("theory.md")), module_relative=False)
    assert result.attempted >= 15
    assert result.failed == 0


def test_table():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.count("|") == 6]
    expected = [
        f"| `{name}` | {cls.summary} | {cls.use} | {cls.gradients_per_example} | {cls.guarantee} |"
        for name, cls in METHODS.items()
    ]
    assert rows == expected
