"""`dpsrm train --unit`: from a long table to a guarantee for persons; and the page's snippet."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from dpsrm.training import load_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "whose-privacy.md"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def visits(tmp_path):
    """120 persons with 1 … 6 visits each, in any order."""
    rng = np.random.default_rng(0)
    who = rng.permutation(np.repeat(np.arange(120), rng.integers(1, 7, 120)))
    lines = [f"p{i},{rng.integers(20, 90)},{'yes' if rng.random() < 0.5 else 'no'}" for i in who]
    (tmp_path / "visits.csv").write_text("\n".join(["patient,age,ill", *lines]) + "\n")
    return tmp_path / "visits.csv"


def test_train_verify_predict(visits, tmp_path, dpsrm, caplog):
    run = tmp_path / "run"
    budget = tmp_path / "b.budget"
    assert dpsrm("budget", "init", budget, "--epsilon", 5, "--delta", 1e-4).code == 0
    common = ["train", "--data", visits, "--target", "ill", "--epsilon", 3, "--delta", 1e-4, "--seed", 1]
    common += ["--set", "training.steps=5", "--set", "training.batch=40", "--budget", budget, "--json"]
    done = dpsrm(*common, "--unit", "patient", "--rows-per-unit", 3, "--out", run)
    assert done.code == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["n"], facts["unit"], facts["rows_per_unit"]) == (120, "patient", 3)
    checked = json.loads(dpsrm("verify", run, "--json").stdout)
    assert checked["ok"]
    assert checked["units"] == {"name": "patient", "count": 120, "rows": 3}
    assert "120 units by patient, at most 3 rows" in dpsrm("verify", run).stdout
    page = (run / "report.html").read_text()
    for words in ("how much one unit can change", "Several units together", "the number of units is public", "Units"):
        assert words in page
    assert "Several records of one person" not in page  # they are protected
    assert json.loads(dpsrm("budget", "show", budget, "--json").stdout)["unit"] == "patient"
    assert len(load_run(run).predict(visits)) == len(visits.read_text().splitlines()) - 1
    assert load_run(run).predict({"age": [31]}).shape == (1,)
    refused = dpsrm(*common, "--out", tmp_path / "other")
    assert refused.code == 2
    assert "must protect the same unit" in refused.stderr
    assert "patient looks like an identifier" in caplog.text


def test_a_missing_id_is_refused(visits, tmp_path, dpsrm):
    visits.write_text(visits.read_text() + ",50,yes\n")
    common = ["train", "--data", visits, "--target", "ill", "--epsilon", 3, "--delta", 1e-4, "--out", tmp_path / "run"]
    done = dpsrm(*common, "--unit", "patient")
    assert done.code == 2
    assert "every record must have an id" in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_pages_snippet_runs(tmp_path, monkeypatch, capsys):
    (snippet,) = re.findall("```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(snippet, {})
    count, rows = capsys.readouterr().out.split()
    assert 250 < int(count) <= 300
    assert rows == "4"
