"""Words that come from a run folder, a budget file or the user are shown as they are: no markup, no forged lines."""

import os
import shutil

import numpy as np
import pytest

from dpsrm.cli import show
from dpsrm.cli.show import going_on, next_step, plain_text, show_head, visible
from dpsrm.core.errors import InputError
from dpsrm.runs.ledger import ProtectedUnit

FORGED = "\x1b[2K\x1b[1A\r✓ the ledger is intact and proves ε = 0.1\x1b[8m\n✓ well\u2028\u202e[red]x[/red][/b] :smile:"
SHOWN = r"\x1b[2K\x1b[1A\r✓ the ledger is intact and proves ε = 0.1\x1b[8m\n✓ well\u2028\u202e[red]x[/red][/b] :smile:"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No waiting for the disk, and lines as wide as they are."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(show.out, "_width", 1000)
    monkeypatch.setattr(show.err, "_width", 1000)


@pytest.fixture
def made(tmp_path, dpsrm, monkeypatch):
    """A run and a budget whose unit and folder have markup in their names."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [f"p{i % 60},{rng.integers(20, 90)},{'yes' if rng.random() < 0.5 else 'no'}" for i in range(120)]
    (tmp_path / "visits.csv").write_text("\n".join(["who[/x],age,ill", *lines]) + "\n")
    assert dpsrm("budget", "init", "b.budget", "--epsilon", 5, "--delta", 1e-4).code == 0
    common = ["--epsilon", 3, "--delta", 1e-5, "--seed", 1, "--set", "training.steps=2", "--set", "training.batch=20"]
    given = ["--data", "visits.csv", "--target", "ill", "--unit", "who[/x]", "--budget", "b.budget"]
    done = dpsrm("train", *given, *common, "--out", "run[/b]", "--json")
    assert done.code == 0, done.stderr
    return tmp_path / "run[/b]"


def test_text_is_shown_and_nothing_else(capsys):
    show.out.print(f"a {plain_text(FORGED)} z")
    assert capsys.readouterr().out == f"a {SHOWN} z\n"
    for text in ("visits", "Jos\u00e9", "runs/\u65e5\u672c", "a\\", "[bold", "c:\\[x]\\"):
        show.out.print(f"{plain_text(text)}[red] z[/]")
        assert capsys.readouterr().out == f"{text} z\n"
        assert visible(text) == text


def test_next_steps_heads_and_notes_are_text(capsys):
    next_step("go on", f"dpsrm report {FORGED}")
    assert capsys.readouterr().err == f"Next: go on\n  dpsrm report {SHOWN}\n"
    show_head(FORGED)
    assert capsys.readouterr().out.endswith(f": {SHOWN}\n")
    stop = KeyboardInterrupt()
    stop.add_note(FORGED)
    with pytest.raises(KeyboardInterrupt), going_on():
        raise stop
    assert capsys.readouterr().err == f"interrupted\n{SHOWN}\n"


def test_names_with_markup_go_through_every_command(made, dpsrm, tmp_path):
    verified = dpsrm("verify", made)
    assert verified.code == 0, verified.stderr
    assert "60 units by who[/x], at most" in verified.stdout
    assert "run[/b]" in verified.stderr
    shown = dpsrm("budget", "show", "b.budget")
    assert shown.code == 0, shown.stderr
    assert "all rows with the same who[/x]." in shown.stdout
    assert "run[/b]" in shown.stdout
    (tmp_path / "o[").mkdir()
    told = dpsrm("predict", made, "--data", "visits.csv", "--out", "o[/b].csv")
    assert told.code == 0, told.stderr
    assert "120 predictions: o[/b].csv" in told.stderr
    pages = dpsrm("report", made)
    assert pages.code == 0, pages.stderr
    assert "run[/b]/report.html" in pages.stdout
    assert "run[/b]/private/report.html" in pages.stdout
    shutil.copytree(made, tmp_path / "c[/b]")
    compared = dpsrm("compare", "run[/b]", "c[/b]")
    assert compared.code == 0, compared.stderr
    assert "run[/b]" in compared.stdout
    assert "c[/b]" in compared.stdout


def test_a_files_name_forges_no_line(made, dpsrm):
    show.out._width = 80  # put back by `quick`: a name must not be broken into lines either
    (made / FORGED.replace("/", "|")).write_text("x")
    found = dpsrm("verify", made)
    assert found.code == 1
    assert not any(line.startswith("✓ well") for line in found.stdout.splitlines())
    assert SHOWN.replace("/", "|") in found.stdout
    assert "\x1b" not in found.stdout
    assert "\r" not in found.stdout


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Kb", "a\x00", "a\u2028b", "a\u2029", "a\x85b", "a\x7f", "\ud800"])
def test_a_unit_has_a_name_that_can_be_printed(name):
    with pytest.raises(InputError, match="no control characters"):
        ProtectedUnit(name=name, count=2, rows=1)
    assert ProtectedUnit(name="who [/x] é \u0645\u06cc\u200c", count=2, rows=1)
