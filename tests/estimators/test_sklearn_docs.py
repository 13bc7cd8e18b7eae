"""docs/sklearn.md: the pipeline needs one changed import, and the page runs."""

import logging
import re
from pathlib import Path

import pytest

from dpsrm.sklearn import PrivacyLeakWarning

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sklearn.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
(BEFORE,), (AFTER,) = (re.findall(rf"^\{sign}(from .*)$", PAGE, flags=re.M) for sign in "-+")

SCALED = 'bounds="record"'


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR, logger="dpsrm")


def run(code, names):
    exec(compile(code, "docs/sklearn.md", "exec"), names)


@pytest.fixture(scope="module")
def private():
    """What the first snippet leaves behind."""
    names = {}
    with pytest.warns(PrivacyLeakWarning, match="classes were read"):
        run(SNIPPETS[0], names)
    return names


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_one_changed_import_makes_the_model_private(private):
    assert SNIPPETS[0].count(AFTER) == 1
    assert SNIPPETS[0].count(SCALED) == 1
    plain, alone = {}, {}
    run(SNIPPETS[0].replace(AFTER, BEFORE).replace(SCALED, ""), plain)
    with pytest.warns(PrivacyLeakWarning, match="classes were read"):
        run(SNIPPETS[0].replace(SCALED, ""), alone)
    assert type(plain["model"]).__name__ == "LogisticRegression"
    for names in (private, alone):
        assert names["model"].epsilon_spent_ <= 1.0
    assert plain["accuracy"] > 0.9
    assert private["accuracy"] > 0.55, "ten classes: chance is 0.1"


def test_the_rest_of_the_page_runs(tmp_path, monkeypatch, private):
    monkeypatch.chdir(tmp_path)
    names = dict(private)
    for snippet in SNIPPETS[1:]:
        run(snippet, names)
    assert names["spent"] <= 3.0
    assert names["model"].score(names["X_test"], names["y_test"]) > 0.6
    assert len(names["scores"]) == 3
    assert 7 < names["whole_price"] <= 8.0
    assert names["base"].epsilon == 1.0
    assert names["search"].best_estimator_.epsilon < 0.9 * names["whole_price"]
