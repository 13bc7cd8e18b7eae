"""The benchmark of tables: page = results, the goals, resuming, and leaving one table out."""

import json
from pathlib import Path

import numpy as np
import pytest

from dpsrm.bench import tables
from dpsrm.bench.public_tables import PUBLIC_TABLES, PublicTable
from dpsrm.bench.table_ours import grid, majority, rule_choice, scores, trial
from dpsrm.bench.table_page import page
from dpsrm.bench.table_summary import TableResult, left_out, results

ROOT = Path(__file__).resolve().parents[2]
ROWS = tables.read_rows(ROOT / "results" / "tables.jsonl")


def test_the_page_is_made_of_the_results():
    assert (ROOT / "docs" / "tables.md").read_text() == page(ROWS)


def test_the_goals_at_epsilon_1():
    found = [one for one in results(ROWS) if one.epsilon == 1]
    assert len(found) >= 8
    assert {0, 2} < {min(one.classes, 3) for one in found}
    assert all(1000 <= one.n <= 60_000 for one in found)
    assert np.median([one.share(one.losses["rule"]) for one in found]) >= 0.92
    behind = [one.table for one in found if one.ahead() != (True, True)]
    assert len(behind) <= len(found) / 8, behind
    assert max(one.seconds for one in found) <= 15
    rule = [row for row in ROWS if row["who"] == "rule" and row["epsilon"] == 1]
    assert len(rule) >= 5 * len(found)
    a9a = next(one for one in found if one.table == "a9a")
    assert a9a.losses["rule"] <= 0.330
    assert a9a.errors["rule"] <= 0.154


def test_no_work_is_in_the_file_twice():
    keys = [(row["table"], row["epsilon"], row["who"], row["seed"]) for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_leaving_one_out_never_looks_at_the_table():
    """A table whose grid is turned upside down changes what is chosen for the others, not for itself."""
    found = [one for one in results(ROWS) if one.epsilon == 1]
    before = left_out(found)
    assert all(len(shares) == 1 for _, shares in before.values())
    victim = next(one for one in found if one.table == "digits")
    losses = {who: (9 - loss if who.startswith("grid") else loss) for who, loss in victim.losses.items()}
    changed = TableResult(**{**vars(victim), "losses": losses})
    after = left_out([changed if one is victim else one for one in found])
    assert after["digits"][0] == before["digits"][0]
    assert after["digits"][1] != before["digits"][1]


def made(name, *, classes):
    """A small table; its first column decides."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(500, 3)).astype(np.float32)
    y = np.digitize(x[:, 0], np.linspace(-1, 1, classes + 1)[1:-1]) if classes else x[:, 0]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    parts = (slice(0, 400), slice(400, 500))
    return PublicTable(
        name=name,
        classes=classes,
        raw=tuple(x[part] for part in parts),
        encoded=tuple(unit[part] for part in parts),
        targets=tuple(y[part] for part in parts),
        bounds=(x.min(axis=0), x.max(axis=0)),
        categorical=(False,) * 3,
    )


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_ours_learns_and_the_grid_is_what_the_summary_expects(classes):
    table = made("made", classes=classes)
    found = trial(table, rule_choice(table, 8.0), 8.0, seed=0)
    assert found["loss"] < majority(table)["loss"]
    labels = [choice.label for choice in grid(table, 1.0)]
    assert len(set(labels)) == len(labels) == (13 if classes else 11)


def test_scores():
    table = made("made", classes=2)
    right = np.eye(2)[table.targets[1]]
    assert scores(table, right) == {"loss": 0.0, "error": 0.0}
    assert scores(table, 1 - right)["error"] == 1.0
    numbers = made("made", classes=0)
    assert scores(numbers, numbers.targets[1])["loss"] == 0
    assert scores(numbers, np.full(100, numbers.targets[1].mean()))["error"] == pytest.approx(1)


def test_a_stopped_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(PUBLIC_TABLES, "made", lambda folder: made("made", classes=2))
    monkeypatch.setattr(tables, "rivals", lambda python, seeds: {"nobody": lambda table, epsilon, seed: None})
    monkeypatch.setattr(tables, "EPSILONS", (8.0,))
    done = []
    monkeypatch.setattr(
        tables, "trial", lambda table, choice, epsilon, seed: done.append(choice.label) or {"loss": 1.0, "error": 0.5}
    )
    path = tmp_path / "rows.jsonl"
    whole = tables.run(["made"], None, path)
    assert len(done) == 5 + 13
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:6]) + lines[6][:10])
    again = tables.run(["made"], None, path)
    assert again == whole == [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["loss"] for row in whole if row["who"] == "nobody"] == [None] * 5
