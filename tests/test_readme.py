"""The README tells the truth: its snippet runs, its links exist, its commands and figures are those of the demo."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_the_snippet_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    exec(compile(snippet, "README.md", "exec"), {})
    assert (tmp_path / "runs" / "mine" / "certificate.md").exists()


@pytest.mark.parametrize("page", sorted(["README.md", "CONTRIBUTING.md", *map(str, Path("docs").rglob("*.md"))]))
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_make_targets_named_in_the_docs_exist():
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), flags=re.M))
    named = set(re.findall(r"(?:^    |`)make (\w+)", README + (ROOT / "CONTRIBUTING.md").read_text(), flags=re.M))
    assert {"demo", "test", "check"} <= named <= targets


def demo_figures():
    """The README's table: metric → (private, non-private)."""
    rows = re.findall(r"^\| (log-loss|AUC|0/1 error) \| ([\d.]+) \| ([\d.]+) \|", README, flags=re.M)
    return {name: (float(private), float(plain)) for name, private, plain in rows}


def test_the_demos_figures_are_the_readmes(tmp_path, answer):
    body = answer("demo", "--out", tmp_path / "demo")
    figures = demo_figures()
    assert set(figures) == {"log-loss", "AUC", "0/1 error"}
    for name, key, tolerance in (("log-loss", "log_loss", 0.01), ("AUC", "auc", 0.015), ("0/1 error", "error", 0.02)):
        private, plain = figures[name]
        assert body["test"][key] == pytest.approx(private, abs=tolerance)
        assert body["reference"][key] == pytest.approx(plain, abs=tolerance)
    assert body["epsilon"] <= 1.0
    assert answer("verify", tmp_path / "demo")["ok"]
    assert "one person-year" in (tmp_path / "demo" / "certificate.md").read_text()
