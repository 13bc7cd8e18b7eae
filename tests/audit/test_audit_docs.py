"""docs/audit.md: its snippets run."""

import json
import os
import re
import statistics
from pathlib import Path

HERE = Path(__file__).resolve().parents[2] / "docs"
PAGE = (HERE / "audit.md").read_text()


def test_the_snippets_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.chdir(tmp_path)
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S):
        exec(compile(snippet, "docs/audit.md", "exec"), {})
    assert "held: " in capsys.readouterr().out


def test_the_page_counts_the_proofs():
    from dpsrm.audit.cases import trials

    assert f"`--all` in {len(list(trials()))} " in PAGE


def test_the_pages_figures_are_the_results():
    """docs/audit-results.json is what `dpsrm bench audit` wrote."""
    found = json.loads((HERE / "audit-results.json").read_text())
    again, alarms = found["repeated"], found["false_alarms"]
    for name, row in (("one run", again["one_run"]), ("per step", again["per_step"])):
        least, middle, most = min(row), statistics.median(row), max(row)
        assert f"| {name} | {least:.2f} | {middle:.2f} | {most:.2f} | 0 of {len(row)} |" in PAGE
    assert min(again["one_run"]) >= 2.5
    assert min(again["per_step"]) >= 0.9 * again["claimed_epsilon"]
    assert again["violated"] == alarms["violated"] == 0
    assert alarms["one_run_above_the_claim"] + alarms["per_step_above_the_claim"] == 0
    assert f"prove ε ≥ {found['black_box_many_runs']['lower_bound']:.2f}" in " ".join(PAGE.split())
