"""Scaling: the benchmark at its smallest, the page from its results, and what the results must show."""

import json
import re

import pytest

from dpsrm.bench.scaling_page import page_tables
from dpsrm.core.errors import InputError
from dpsrm.training.cluster import Cluster, Rates, step_cost
from packages import ROOT

ROWS = [json.loads(line) for line in (ROOT / "results" / "scaling.jsonl").read_text().splitlines()]


def row(what, size):
    return next(r for r in ROWS if r["what"] == what and 0.9 < r.get("n", r.get("parameters")) / size < 1.1)


def test_the_benchmark_runs_small(answer, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- records -->\nold\n<!-- end -->\nb\n<!-- parameters -->\n<!-- end -->\nc\n")
    small = ["--data-dir", tmp_path, "--most", 2000, "--parameters", 3000, "--batch", 16, "--rounds", 1]
    body = answer("bench", "scaling", *small, "--out", tmp_path / "rows.jsonl", "--page", page)
    assert [r["what"] for r in body["rows"]] == ["records", "parameters"]
    assert body["rows"][0]["step_ms"] > 0
    assert 2500 < body["rows"][1]["parameters"] < 3500
    text = page.read_text()
    assert "| 2e+03 |" in text
    assert "old" not in text
    assert text.startswith("a\n<!-- records -->\n| n |")
    assert text.endswith("<!-- end -->\nc\n")


def test_the_page_shows_the_results():
    page = (ROOT / "docs" / "scaling.md").read_text()
    for name, table in page_tables(ROWS).items():
        assert f"<!-- {name} -->\n{table}\n<!-- end -->" in page


def test_a_step_costs_the_same_for_any_number_of_records():
    few, many = row("records", 10**5), row("records", 10**8)
    assert many["step_ms"] <= 1.3 * few["step_ms"]
    assert many["memory_mb"] < 64


def test_secure_noise_is_at_most_a_quarter_of_a_step():
    large = row("parameters", 10**7)
    assert large["noise_ms"] <= 0.25 * large["step_ms"]


# the calculator


def test_the_rates_are_those_that_were_measured():
    large = row("parameters", 10**7)
    cost = step_cost(Cluster(parameters=large["parameters"], batch=large["batch"]))
    assert 0.5 < cost.passes_s * 1e3 / large["passes and clipping_ms"] < 2
    assert 0.5 < cost.noise_s * 1e3 / large["noise_ms"] < 2
    assert 0.5 < cost.update_s * 1e3 / large["update_ms"] < 2


def test_the_calculator_by_hand():
    rates = Rates(flops=1e12, overhead=1.0, normal=1e-9, stream=1e10, bandwidth=1e9, latency=1e-3)
    cost = step_cost(Cluster(parameters=10**6, batch=100, ranks=4), rates)
    assert cost.bytes_sent == 2 * 8 * 1e6 * 3 / 4
    assert cost.messages == 6
    assert cost.send_s == pytest.approx(12e6 / 1e9 + 6e-3)
    assert cost.passes_s == pytest.approx(6 * 1e6 * 2 * 25 / 1e12)
    assert cost.noise_s == pytest.approx(250_000e-9)
    assert cost.memory == 20e6 + 8e6 + 2e6
    sharded = step_cost(Cluster(parameters=10**6, batch=100, ranks=4, sharded=True), rates)
    assert sharded.bytes_sent == (8 + 4) * 1e6 * 3 / 4
    assert sharded.memory == 16e6 + 4e6 / 4 + 8e6 + 2e6


def test_more_ranks_compute_less_each_and_send_no_less():
    costs = [step_cost(Cluster(parameters=10**8, batch=4096, ranks=r)) for r in (1, 2, 8, 64)]
    assert [c.passes_s for c in costs] == sorted((c.passes_s for c in costs), reverse=True)
    assert [c.bytes_sent for c in costs] == sorted(c.bytes_sent for c in costs)
    assert costs[0].send_s == 0


def test_the_command(answer, dpsrm):
    base = ["plan", "--n", 10**6, "--epsilon", 1, "--delta", 1e-6, "--ranks", 3]
    body = answer(*base, "--dimension", 1000, "--batches", 100, "--rates", "normal=1e-6")
    assert [(r["ranks"], r["sharded"]) for r in body["rows"]] == [
        (1, False),
        (2, False),
        (2, True),
        (3, False),
        (3, True),
    ]
    assert body["rows"][0]["noise_s"] == pytest.approx(1e-3)
    assert body["batch"] == 100
    shown = dpsrm(*base, "--dimension", 1000, "--batches", 100)
    assert shown.code == 0
    assert "computed, not measured" in shown.stdout
    for wrong, words in ((["--dimension", 1000, "--rates", "speed=1"], "rates are"), ([], "--dimension")):
        result = dpsrm(*base, *wrong)
        assert result.code == 2
        assert words in result.stderr


@pytest.mark.parametrize("text", ["normal=fast", "normal=-1", "normal=inf", "="])
def test_bad_rates(text):
    with pytest.raises(InputError, match="rate"):
        Rates().changed(text)


def test_the_example_of_the_page():
    """The page's rule of thumb: computing 6·p·b/R operations against sending 16 bytes, per parameter."""
    page = (ROOT / "docs" / "scaling.md").read_text()
    assert re.search(r"10 TFLOP/s and 10 GB/s, while b/R is above some 1,400 records", page)
    rates = Rates(flops=1e13, overhead=1.0, bandwidth=1e10, latency=1e-12)
    cost = step_cost(Cluster(parameters=10**9, batch=1400 * 1000, ranks=1000), rates)
    assert cost.passes_s / cost.send_s == pytest.approx(1, abs=0.06)
