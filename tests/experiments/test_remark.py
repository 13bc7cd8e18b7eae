"""The remark on the moments accountant: its first part by hand, and the kept rows against accountants and design."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from dpsrm.experiments import remark
from dpsrm.experiments.remark import (
    BARE,
    LEMMA,
    MOMENTS,
    PROOFS,
    Setting,
    kept_rows,
    missing_settings,
    moments_epsilon,
    moments_noise,
    row,
    settings,
)
from dpsrm.methods import best_theorem_noise

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "accountants.jsonl"


def test_the_first_part_by_hand():
    """τ = 0.01, σ = 2, T = 100: at most α = ⌊4·ln 50⌋ = 15, where 100·1e-4·15/(0.99·4) + ln(1e5)/14 = 0.8603."""
    assert moments_epsilon(0.01, 2.0, 100) == pytest.approx(0.0378788 + 0.8223518, abs=1e-6)
    assert moments_epsilon(0.01, 0.99, 100) == math.inf
    assert moments_epsilon(0.6, 2.0, 100) == math.inf


def test_the_noise_of_the_first_part_is_the_least_on_its_ladder():
    setting = Setting(problem="x", n=10000, batch=100, epsilon=1.0, steps=1000)
    noise = moments_noise(setting)
    assert moments_epsilon(0.01, noise, 1000) <= 1.0 < moments_epsilon(0.01, noise / 1.002, 1000)


def test_the_papers_grids():
    found = settings()
    assert len(set(found)) == 39
    assert Setting(problem="a9a", n=32561, batch=50, epsilon=0.2, steps=2605) in found
    assert Setting(problem="MNIST", n=60000, batch=512, epsilon=3.0, steps=1172) in found
    assert Setting(problem="CNN6", n=50000, batch=256, epsilon=8.0, steps=26000) in found


def test_kept_rows_have_the_figures_of_the_design(monkeypatch):
    """accounting.md's row for MNIST 512, 3, 1172: enforced 3.50, rdp9 1.23, rdp 1.07, pld .836, Poisson .46."""
    setting = Setting(problem="MNIST", n=60000, batch=512, epsilon=3.0, steps=1172)
    (kept,) = (found for found in kept_rows(RESULTS) if found.items() >= asdict(setting).items())
    expected = {LEMMA: 3.50, "rdp9": 1.23, "rdp": 1.07, "pld": 0.836, "pld, Poisson": 0.46}
    for label, noise in expected.items():
        assert kept["noise"][label] == pytest.approx(noise, abs=0.006), label
    monkeypatch.setattr(remark, "PROOFS", {"pld": PROOFS["pld"]})  # the others take seconds
    again = row(setting)
    assert again["noise"]["pld"] == pytest.approx(kept["noise"]["pld"], rel=2e-3)
    for part in ("noise", "epsilon_at_papers_noise"):
        assert all(value == pytest.approx(kept[part][label], rel=2e-3) for label, value in again[part].items())


def test_the_best_beta_needs_what_the_papers_accountant_needs_in_every_setting():
    """Lemma 1's column was calibrated by a scan over the noise; the search over β finds the same, or nothing, too."""
    for found in kept_rows(RESULTS):
        rate, budget = found["batch"] / found["n"], {"epsilon": found["epsilon"], "delta": 1e-5}
        best = best_theorem_noise(rate, found["steps"], **budget)
        assert (best is None) == (found["noise"][LEMMA] is None)
        assert best is None or best.noise_multiplier == pytest.approx(found["noise"][LEMMA], rel=2e-3)


def test_the_docs_table_and_what_it_says_are_those_of_the_results(dpsrm, tmp_path):
    done = dpsrm(
        "reproduce", "accountants", "--from-results", "--results", ROOT / "results", "--docs", tmp_path, "--json"
    )
    assert done.code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 39
    assert missing_settings(RESULTS) == []
    assert rows == kept_rows(RESULTS)
    assert (tmp_path / "accountants-table.md").read_text() == (ROOT / "docs" / "accountants-table.md").read_text()
    for found in rows:
        assert set(found["noise"]) == {BARE, MOMENTS, *PROOFS}
        order = [found["noise"][label] for label in ("pld", "rdp", "rdp9")]
        assert order == sorted(order)
        if found["noise"][LEMMA] is not None:
            assert found["noise"][LEMMA] >= found["noise"]["rdp9"]
        if found["problem"] in ("a9a", "ijcnn1"):
            assert found["noise"][LEMMA] is None
