"""docs/does-it-help.md: its numbers are those of the committed results, and the results those of the accountant."""

import json
import re
from pathlib import Path

import pytest

from dpsrm.experiments.momentum import extra_factor, noise_row, read_noise

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "does-it-help.md").read_text()


@pytest.fixture
def told(dpsrm, tmp_path):
    where = ("--results", ROOT / "results", "--docs", tmp_path)
    done = dpsrm("reproduce", "does-it-help", "--from-results", *where, "--json")
    assert done.code == 0, done.stderr
    assert {path.name for path in (tmp_path / "images").iterdir()} == {
        f"help-{name}.{kind}" for name in ("noise", "gains") for kind in ("png", "svg")
    }
    return json.loads(done.stdout)


def test_the_pages_noise_is_that_of_the_results(told):
    lines = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
    wanted = [
        f"| {row['batch']} | {row['wor']:.3f} | {row['poisson']:.3f} | {row['entered_wor']:.2f} "
        f"| {row['entered_poisson']:.2f} |"
        for row in told["noise"]
    ]
    assert lines == wanted


def test_the_pages_gains_are_those_of_the_results(told):
    features = {"features-mnist": "MNIST features", "features-fashion-mnist": "Fashion-MNIST features"}
    wanted = set()
    for problem, cells in told["gains"].items():
        for cell in cells:
            sampling = {"wor": "WOR", "poisson": "Poisson"}[cell["sampling"]]
            texts = [_text(cell["gain"].get(name)) for name in ("DP-SRM", "DP-SGD momentum")]
            name = features.get(problem) or cell["model"] or problem
            wanted.add(" | ".join([f"| {name}, ε = {cell['epsilon']:g}", sampling, *texts]) + " |")
    found = {line for line in PAGE.splitlines() if re.match(r"\| .*, ε = ", line)}
    assert {re.sub(r"\|\s+\|", "|  |", line.replace("**", "")) for line in found} == wanted
    bold = [line for line in found for part in line.split("|") if "**" in part]
    assert all("**−" in line for line in bold)


def _text(gain):
    if gain is None:
        return ""
    mean, half = (100 * part for part in gain)
    return f"{'−' if mean < 0 else '+'}{abs(mean):.2f} ± {half:.2f} %"


def test_the_results_are_the_accountants():
    """Calibrated anew for the fastest row; and in the limit of large noise the formula of flow time is right."""
    kept = {row.batch: row for row in read_noise(ROOT / "results" / "does-it-help.jsonl")}
    again = noise_row(8192)
    assert again.poisson == pytest.approx(kept[8192].poisson, rel=2e-3)
    assert again.wor == pytest.approx(kept[8192].wor, rel=2e-3)
    assert kept[8192].entered_poisson == pytest.approx(1.0, abs=0.01)
    assert [row.entered_wor for row in kept.values()] == sorted(
        (row.entered_wor for row in kept.values()), reverse=True
    )
    assert f"falls {kept[64].entered_wor / kept[2048].entered_poisson:.1f}-fold" in PAGE


def test_one_release_moves_theta_as_the_formula_says():
    """By simulation: v ← r + (1−γ)v, θ ← θ − ηv, one release r of length R = γC1 + (1−γ)C2 and then none."""
    gamma, c1, c2, rate = 0.3, 2.0, 0.5, 0.1
    v, theta, release = 0.0, 0.0, gamma * c1 + (1 - gamma) * c2
    for t in range(200):
        v = (release if t == 0 else 0.0) + (1 - gamma) * v
        theta += rate * v
    assert theta / (rate * c1) == pytest.approx(extra_factor(gamma, c2 / c1))
    assert extra_factor(0.01, 0.01) == pytest.approx(1.99)
