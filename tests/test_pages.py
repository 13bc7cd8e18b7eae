"""The pages of the docs site tell the truth: their snippets run, and the quick start's transcript is what happens."""

import doctest
import re
import shlex
import shutil
import webbrowser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", ["walk", "choosing", "budgets", "pitfalls"])
def test_snippets_run(name, tmp_path):
    text = (DOCS / f"{name}.md").read_text()
    test = doctest.DocTestParser().get_doctest(text, {"getfixture": lambda _: tmp_path}, name, f"{name}.md", 0)
    assert test.examples
    out = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=out.append)
    assert runner.failures == 0, "".join(out)


def transcript():
    """(kind, text) of the quick start: commands with the lines shown below them, and the snippets between."""
    text = (DOCS / "quick-start.md").read_text()
    for block in re.finditer(r"```(\w+)\n(.*?)```|((?:^    [^\n]*\n)+)", text, flags=re.M | re.S):
        kind, snippet, indented = block.groups()
        if kind:
            yield kind, snippet
            continue
        lines = [line[4:] for line in indented.splitlines()]
        assert lines[0].startswith("$ "), lines
        yield "command", (lines[0][2:], lines[1:])


def test_the_quick_start_is_what_happens(dpsrm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda _: True)
    done = []
    for kind, block in transcript():
        if kind == "python":
            exec(compile(block, "quick-start.md", "exec"), {})
        elif kind == "toml":
            Path("visits.toml").write_text(block)
        elif block[0].startswith("rm -r "):
            shutil.rmtree(block[0].removeprefix("rm -r "))
        elif block[0] == "make demo":
            assert re.search(
                r"^demo: .*\n\t\$\(BIN\)/dpsrm demo --out runs/demo", (ROOT / "Makefile").read_text(), re.M
            )
        else:
            words = shlex.split(block[0])
            assert words[0] == "dpsrm"
            result = dpsrm(*words[1:])
            assert result.code == 0, result.stderr
            said = " ".join((result.stdout + " " + result.stderr).split())
            for line in block[1]:
                assert line in said, (block[0], said)
            done.append(words[1])
    assert done == ["demo", "report", "plan", "train", "predict", "verify"]
    assert "made up by the quick start" in Path("runs/visits/report.html").read_text()
    assert Path("predictions.csv").read_text().startswith("prediction,probability_no,probability_yes\n")
