"""The mutation list still fits the code; `make mutants` (not part of `make test`) runs it."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("dpsrm_mutants", Path(__file__).with_name("mutants.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
__import__("sys").modules[_SPEC.name] = _MODULE
_SPEC.loader.exec_module(_MODULE)
ALL = _MODULE.mutants()


def test_there_are_enough_and_no_two_have_one_name() -> None:
    assert len(ALL) >= 40
    assert len({mutant.name for mutant in ALL}) == len(ALL)


BUGS = _MODULE.privacy_bugs()
RESULTS = Path(__file__).with_name("privacy") / "results.json"


@pytest.mark.parametrize("mutant", BUGS, ids=lambda mutant: mutant.name)
def test_a_privacy_bug_applies(mutant) -> None:
    assert mutant.occurrences() == 1, f"the old text stands {mutant.occurrences()} times in {mutant.file}"
    ast.parse(mutant.applied())


def test_every_privacy_bug_was_caught_25_by_prove_or_audit_alone() -> None:
    """What `make mutants` wrote last; the page's table is made of it."""
    found = json.loads(RESULTS.read_text())
    names = {mutant.name.partition(": ")[2] for mutant in BUGS}
    assert len(names) >= 30
    assert set(found) == names, "run python tests/mutants/privacy/run.py"
    assert all(row["prove"] or row["audit"] or row["tests"] for row in found.values())
    assert sum(bool(row["prove"] or row["audit"]) for row in found.values()) >= 25
    page = Path(__file__).resolve().parents[2] / "docs" / "audit-bugs.md"
    assert all(f"| {name} |" in page.read_text() for name in names)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_it_applies_and_names_tests_that_exist(mutant) -> None:
    assert mutant.occurrences() == 1, f"the old text stands {mutant.occurrences()} times in {mutant.file}"
    assert ast.dump(ast.parse(mutant.applied())) != ast.dump(
        ast.parse((_MODULE.PACKAGE / mutant.file).read_text(encoding="utf-8"))
    )
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        text = (_MODULE.ROOT / path).read_text(encoding="utf-8")
        assert not name or f"def {name.partition('[')[0]}(" in text, test
