"""The snippets of docs/data.md run and print what the page says."""

import doctest
from pathlib import Path


def test_data_page():
    page = Path(__file__).resolve().parents[2] / "docs" / "data.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0


def test_scaling_page():
    page = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0
