"""docs/audit.md: its snippets run."""

import os
import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "audit.md").read_text()


def test_the_snippets_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.chdir(tmp_path)
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S):
        exec(compile(snippet, "docs/audit.md", "exec"), {})
    assert "held: " in capsys.readouterr().out


def test_the_page_counts_the_proofs():
    from dpsrm.audit.cases import trials

    assert f"`--all` in {len(list(trials()))} " in PAGE
