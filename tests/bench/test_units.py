"""The page about units says what its results say."""

import json
import re
from pathlib import Path

import pytest

from dpsrm.bench.panels import made_up_panel
from dpsrm.bench.units import _ranks, _split, group_promise, table

ROOT = Path(__file__).resolve().parents[2]


def rows():
    return [json.loads(line) for line in (ROOT / "results" / "units.jsonl").read_text().splitlines()]


def test_the_pages_table_is_that_of_the_results():
    page = (ROOT / "docs" / "whose-privacy.md").read_text()
    (shown,) = re.findall("begin -->\n(.*?)\n<!-- end", page, flags=re.DOTALL)
    assert shown == table(rows())


def test_every_way_makes_the_same_promise():
    for row in rows():
        times = row["k"] if row["arm"] == "group privacy" else 1
        assert row["epsilon"] * times == pytest.approx(3.0)
        assert group_promise(times)[1] == pytest.approx(row["delta"])


def test_the_three_ways_on_one_split():
    panel = made_up_panel(persons=200)
    (unit, group, one), test = _split(panel, 3, 0)
    assert len(one.rows) == one.n == unit.n == len(set(unit.unit.tolist()))
    assert len(group.rows) < len(unit.rows)
    assert len(unit.rows) + len(test) == len(panel.ids)
    assert group.epsilon == 1.0
    assert _ranks(unit.unit)[:1].tolist() == [0]


def test_estimators_take_units():
    pytest.importorskip("sklearn")
    import numpy as np

    from dpsrm.sklearn import PrivateLogisticRegression

    rng = np.random.default_rng(0)
    X, who = rng.normal(size=(400, 3)), rng.integers(0, 100, 400)
    model = PrivateLogisticRegression(epsilon=3.0, delta=1e-4, bounds=(-3, 3), classes=[0, 1], steps=5, batch_size=30)
    model.fit(X, (X[:, 0] > 0).astype(int), unit=who)
    assert model.run_.plan.n == len(set(who.tolist()))
    assert model.run_.plan.privacy.rows_per_unit == 8
