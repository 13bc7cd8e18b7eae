"""From trials to rows, figures and the report: it says who wins and what the noise really costs, in one file."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from dpsrm.experiments.charts import curve_charts
from dpsrm.experiments.columns import markdown
from dpsrm.experiments.comparison import compare, leaders
from dpsrm.experiments.figures import draw_curves
from dpsrm.experiments.lab import Lab
from dpsrm.experiments.report import Chapter, write_report
from dpsrm.experiments.runner import run_recipe
from dpsrm.experiments.tables import rows
from toy import RECIPE, toy_problem

OURS = replace(RECIPE, epsilon=0.5, label="DP-SRM relative")
RIVAL = replace(OURS, label="DP-GD", method="sgd", settings={"max_grad_norm": 1.0})
PLAIN = replace(OURS, label="DP-SRM, paper's settings", training={**OURS.training, "epochs": 2.0})
LOUD = replace(PLAIN, label=f"{PLAIN.label}, paper's noise", noise_multiplier=500.0)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab, problem = Lab(tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("results")), toy_problem()
    for recipe in (OURS, RIVAL, PLAIN, LOUD):
        lab.add("a9a", recipe, run_recipe(problem, recipe, range(3)))
    return lab


def table(lab):
    return rows(lab, "a9a", [OURS, RIVAL, PLAIN, LOUD], {("", "DP-GD", 0.5): 1.23})


def test_a_row_says_what_was_measured(lab):
    found = {row.method: row for row in table(lab)}
    assert all(row.trials == 3 and row.ci["test_objective"] > 0 for row in found.values())
    assert found["DP-GD"].epsilon_with_tuning == 1.23
    assert found["DP-SRM relative"].epsilon_with_tuning is None
    assert found[LOUD.label].epsilon_proved < 0.5
    assert found["DP-GD"].paper.objective == 0.3859
    assert "1.23" in markdown("a9a", list(found.values()))


def test_the_comparison_names_winner_and_verdict(lab):
    found = table(lab)
    by_method = {each.method: each for each in compare(found, "a9a")}
    assert set(by_method) == {"DP-GD", "DP-SRM relative", PLAIN.label}
    plain = by_method[PLAIN.label]
    assert plain.paper.objective == 0.3506
    assert plain.papers_noise.method == LOUD.label
    (sentence,) = leaders(found)
    best = min((row for row in found if row.method != LOUD.label), key=lambda row: row.test_objective)
    assert f"{best.method} is best, {best.test_objective:.4f}" in sentence
    gd = by_method["DP-GD"]
    for objective, verdict in ((0.3859, "agrees"), (0.3, "0.0859 better"), (0.4, "0.0141 worse")):
        ours = replace(gd.wor, test_objective=objective, ci={**gd.wor.ci, "test_objective": 0.0})
        assert replace(gd, wor=ours).verdict == verdict


class _Tags(HTMLParser):
    """Checks that every tag is closed, and collects addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_report_is_one_file_and_well_formed(lab, tmp_path):
    png, svg = draw_curves(lab, "a9a", [OURS, RIVAL], epsilon=0.5, stem=tmp_path / "images" / "a9a")
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert draw_curves(lab, "a9a", [OURS], epsilon=0.2, stem=tmp_path / "none") == []
    charts = curve_charts(lab, "a9a", [OURS, RIVAL, PLAIN, LOUD], epsilon=0.5)
    first = svg.read_bytes()
    draw_curves(lab, "a9a", [OURS, RIVAL], epsilon=0.5, stem=tmp_path / "images" / "a9a")
    assert svg.read_bytes() == first, "drawn again from the same results it is the same file"
    assert not curve_charts(lab, "a9a", [OURS], epsilon=0.2)
    risky = [replace(row, method="<b>DP-GD</b>") if row.method == "DP-GD" else row for row in table(lab)]
    write_report([Chapter(problem="a9a", rows=risky, figures={0.5: charts})], tmp_path / "report.html")
    page = _Tags()
    page.feed((tmp_path / "report.html").read_text())
    assert page.open == []
    assert page.addresses == []
    assert "All 4 curves" in "".join(page.text), "few at first, the rest on demand"
    text = "".join(page.text)
    assert "<b>DP-GD</b>" in text
    assert leaders(risky)[0] in text
