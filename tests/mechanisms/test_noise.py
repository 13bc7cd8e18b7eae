"""The noise that leaves the airlock has the standard deviation that was charged: not two thirds, not three halves."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpsrm.core.events import Adjacency, Sampling, Scheme, Spending
from dpsrm.core.secret import LARGE, ClippedSum, Streams
from dpsrm.mechanisms import Airlock
from dpsrm.mechanisms.airlock import gaussian_noise, grid
from dpsrm.runs.ledger import Header, Ledger

FALSE_ALARM = 1e-7


def looks_like(sample, std):
    """Both the variance and the shape fit N(0, std²), at a false-alarm rate of 1e-7 each."""
    ratio = float(np.sum(sample**2) / std**2)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(sample))
    return low < ratio < high and stats.kstest(sample / std, "norm").pvalue > FALSE_ALARM


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Releases of a zero sum with bound 0.5, b = 10, s = 1.7 under replace-one: std = 1.7·(2·0.5)/10 = 0.17."""
    header = Header(
        adjacency=Adjacency.REPLACE_ONE, epsilon=None, delta=None, accountant="none", private_randomness=False
    )
    sampling = Sampling(scheme=Scheme.WOR, population=100, batch=10)
    total = ClippedSum(secret=torch.zeros(500, dtype=torch.float64), bound=0.5, rows=10)
    with Ledger(tmp_path_factory.mktemp("noise") / "ledger.jsonl", header) as ledger:
        nothing = Spending.of([], adjacency=header.adjacency)
        airlock = Airlock(ledger, planned=nothing, epsilon_of=lambda _: 0.0, noise=Streams.seeded(11).noise)
        rows = [airlock.release(total, sampling=sampling, noise_multiplier=1.7) for _ in range(20)]
    return torch.stack(rows).numpy()


def test_the_noise_has_the_charged_deviation(released):
    assert looks_like(released.ravel(), 0.17)


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_the_test_rejects_other_deviations(released, factor):
    assert not looks_like(released.ravel() * factor, 0.17)


def test_releases_are_independent(released):
    correlation = np.corrcoef(released)
    assert np.abs(correlation - np.eye(len(released))).max() < 6 / math.sqrt(released.shape[1])


def test_four_normals_make_one():
    stream, copy = np.random.default_rng(0), np.random.default_rng(0)
    expected = copy.standard_normal((4, 3)).sum(axis=0) / 2 * 5.0
    assert np.allclose(gaussian_noise(5.0, 3, stream).numpy(), expected)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """One release of a large sum that lies off the grid: std of the sum 1.7, b = 10."""
    header = Header(
        adjacency=Adjacency.REPLACE_ONE, epsilon=None, delta=None, accountant="none", private_randomness=False
    )
    sampling = Sampling(scheme=Scheme.WOR, population=100, batch=10)
    total = ClippedSum(secret=torch.full((LARGE + 1,), 0.123456789, dtype=torch.float64), bound=0.5, rows=10)
    with Ledger(tmp_path_factory.mktemp("large") / "ledger.jsonl", header) as ledger:
        nothing = Spending.of([], adjacency=header.adjacency)
        airlock = Airlock(ledger, planned=nothing, epsilon_of=lambda _: 0.0, noise=Streams.seeded(12).noise)
        return (airlock.release(total, sampling=sampling, noise_multiplier=1.7) * 10).numpy()


def test_a_large_release_is_on_the_public_grid(large):
    cells = large / grid(1.7)
    assert 1.7 / 2048 <= grid(1.7) <= 1.7 / 1024
    assert np.abs(cells - np.round(cells)).max() < 1e-6


def test_a_large_release_has_the_charged_deviation(large):
    assert looks_like(large - 0.123456789, 1.7)
    assert not looks_like((large - 0.123456789) * 2 / 3, 1.7)
    assert not looks_like((large - 0.123456789) * 3 / 2, 1.7)
