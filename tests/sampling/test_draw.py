"""Batches: the right size, without repetition, uniform, and in time that does not grow with the dataset."""

import time
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from dpsrm.core.events import Sampling, Scheme
from dpsrm.core.secret import Streams
from dpsrm.sampling import draw


@pytest.mark.parametrize(("n", "b"), [(1, 1), (10, 3), (20000, 100), (20000, 5000), (12000, 239), (12000, 241)])
def test_wor_has_exactly_b_different_records(n, b):
    batch = draw(Sampling(scheme=Scheme.WOR, population=n, batch=b), Streams.seeded(0).sampling)
    assert len(batch) == b == len(set(batch.tolist()))
    assert batch.min() >= 0
    assert batch.max() < n


def test_full_is_everything():
    batch = draw(Sampling(scheme=Scheme.FULL, population=5, batch=5), Streams.seeded(0).sampling)
    assert batch.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("b", [1, 6])
@pytest.mark.parametrize("scheme", [Scheme.WOR, Scheme.POISSON])
def test_every_record_is_as_likely(scheme, b):
    stream, n, draws = Streams.seeded(5).sampling, 20, 20000
    counts = np.zeros(n)
    for _ in range(draws):
        counts[draw(Sampling(scheme=scheme, population=n, batch=b), stream)] += 1
    z = (counts - draws * b / n) / np.sqrt(draws * (b / n) * (1 - b / n))
    assert np.abs(z).max() < 6


def test_wor_pairs_are_as_likely_as_without_replacement():
    stream, n, b, draws = Streams.seeded(6).sampling, 8, 3, 30000
    together = 0
    for _ in range(draws):
        batch = set(draw(Sampling(scheme=Scheme.WOR, population=n, batch=b), stream).tolist())
        together += {0, 1} <= batch
    p = b * (b - 1) / (n * (n - 1))
    assert abs(together / draws - p) < 6 * np.sqrt(p * (1 - p) / draws)


def test_poisson_sizes_are_binomial_and_may_be_zero():
    stream, n, b = Streams.seeded(7).sampling, 50, 2
    sizes = [len(draw(Sampling(scheme=Scheme.POISSON, population=n, batch=b), stream)) for _ in range(20000)]
    assert 0 in sizes
    expected = stats.binom.pmf(range(7), n, b / n) * len(sizes)
    observed = np.bincount(sizes, minlength=7)[:7]
    assert np.abs((observed - expected) / np.sqrt(expected)).max() < 6


def test_drawing_takes_memory_for_the_batch_not_for_the_dataset():
    """100 of 10⁸ records: an O(n) method would need hundreds of megabytes."""
    stream = Streams.seeded(1).sampling
    tracemalloc.start()
    try:
        for scheme in (Scheme.WOR, Scheme.POISSON):
            draw(Sampling(scheme=scheme, population=10**8, batch=100), stream)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("scheme", [Scheme.WOR, Scheme.POISSON])
def test_drawing_takes_as_long_from_many_records_as_from_few(scheme):
    """1000 of 10⁵ and of 10¹²: an O(n) method would take ten million times as long; this allows three times."""
    stream, seconds = Streams.seeded(2).sampling, {10**5: [], 10**12: []}
    for _ in range(30):
        for n, seen in seconds.items():
            start = time.process_time()
            draw(Sampling(scheme=scheme, population=n, batch=1000), stream)
            seen.append(time.process_time() - start)
    assert min(seconds[10**12]) < 3 * min(seconds[10**5])


@pytest.mark.parametrize("scheme", [Scheme.WOR, Scheme.POISSON])
def test_draws_from_many_records_are_uniform_and_without_repetition(scheme):
    stream, n, b = Streams.seeded(3).sampling, 10**12, 1000
    drawn = [draw(Sampling(scheme=scheme, population=n, batch=b), stream) for _ in range(50)]
    assert all(len(np.unique(batch)) == len(batch) for batch in drawn)
    assert stats.kstest(np.concatenate(drawn) / n, "uniform").pvalue > 1e-7
    sizes = np.array([len(batch) for batch in drawn])
    if scheme is Scheme.WOR:
        assert (sizes == b).all()
    else:
        assert 0.3 < sizes.var() / b < 2.5
