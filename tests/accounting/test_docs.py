"""The page *Guarantees and pitfalls* runs: every snippet on it is checked (its noise table: test_golden)."""

from __future__ import annotations

import doctest
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_guarantees_page() -> None:
    parser = doctest.DocTestParser()
    text = (DOCS / "guarantees.md").read_text(encoding="utf-8").replace("```python", "").replace("```", "")
    page = parser.get_doctest(text, {}, "guarantees", "docs/guarantees.md", 0)
    assert len(page.examples) > 20
    said: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(page, out=said.append)
    assert results.failed == 0, "".join(said)


def test_decision_notes_are_short() -> None:
    for note in ("pld", "poisson"):
        assert len((DOCS / "decisions" / f"{note}.md").read_text(encoding="utf-8").splitlines()) <= 40
