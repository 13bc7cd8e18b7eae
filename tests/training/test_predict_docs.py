"""docs/predict.md: its commands and its snippet run, in their order."""

import random
import re
import shlex
from pathlib import Path

from dpsrm.training import defaults

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "predict.md").read_text()


def write(path, rows, *, label):
    rng = random.Random(0)
    lines = [f"age,job{',' + label if label else ''}"]
    for _ in range(rows):
        age, job = rng.randint(18, 90), rng.choice(["nurse", "miner"])
        answer = {"ill": "yes" if job == "miner" else "no", "cost": 5 * age, None: ""}[label]
        lines.append(f"{age},{job}" + (f",{answer}" if label else ""))
    path.write_text("\n".join(lines) + "\n")


def test_the_page_runs(tmp_path, monkeypatch, dpsrm):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "visits.csv", 1000, label="ill")
    write(tmp_path / "new.csv", 5, label=None)
    write(tmp_path / "bills.csv", 1000, label="cost")
    write(tmp_path / "later.csv", 50, label="cost")
    commands = re.findall(r"^    dpsrm (.*)$", PAGE, flags=re.M)
    assert len(commands) == 5
    for command in commands:
        told = dpsrm(*shlex.split(command))
        assert told.code == 0, told.stderr
    assert (tmp_path / "predictions.csv").read_text().startswith("prediction,probability_0,probability_1\n")
    assert told.stdout.startswith("prediction\n")
    assert len(told.stdout.splitlines()) == 51
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    exec(compile(snippet, "docs/predict.md", "exec"), {})


def test_the_pages_thresholds_are_the_codes():
    from dpsrm.data.records import LONGEST

    assert f"n·ε < {defaults.LEAST:g}" in PAGE
    assert LONGEST == defaults.UNSCALED
    assert f"records (not images) with a norm above {LONGEST:g}" in PAGE
