"""Fast normals: NumPy's numbers, from the same bits, and the stream stands where NumPy would have left it."""

import numpy as np
import pytest
import torch
from scipy import stats

from dpsrm.core.secret import LARGE, Streams
from dpsrm.mechanisms import normals
from dpsrm.mechanisms.airlock import gaussian_noise, on_grid
from dpsrm.mechanisms.normals import MANY, fill_normals, ziggurat_tables

COUNT = 3 * 10**6 + 5


@pytest.fixture(scope="module")
def pair():
    """Ours and NumPy's numbers of one release, and the numbers that come after them."""
    made = []
    for filler in (fill_normals, lambda out, stream: stream.standard_normal(out=out)):
        streams, out = Streams.seeded(3), np.empty(COUNT)
        streams.seek(2**40 + 21)
        filler(out, streams.noise)
        made.append((out, streams.noise.standard_normal(9)))
    return made


def test_they_are_numpys(pair):
    (ours, after), (numpys, after_numpys) = pair
    assert np.abs(ours / numpys - 1).max() < 2e-14
    assert np.array_equal(after, after_numpys)
    assert np.abs(ours).max() > 4  # the tail took part


def test_they_are_normal_and_the_test_notices_others(pair):
    sample = pair[0][0]
    low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], COUNT)
    assert stats.kstest(sample[:200_000], "norm").pvalue > 1e-7
    assert low < np.dot(sample, sample) < high
    for factor in (2 / 3, 3 / 2, 1.01):
        assert not low < factor**2 * np.dot(sample, sample) < high
    beyond = np.array([(np.abs(sample) > cut).sum() for cut in (2.0, 3.0, 3.6541528853610088, 4.5)])
    expected = COUNT * 2 * stats.norm.sf([2.0, 3.0, 3.6541528853610088, 4.5])
    assert (np.abs(beyond - expected) < 6 * np.sqrt(expected)).all()


def test_a_release_on_the_grid_is_numpys_to_the_bit(monkeypatch):
    streams, found = Streams.seeded(4), []
    for filler in (fill_normals, lambda out, stream: stream.standard_normal(out=out)):
        monkeypatch.setattr("dpsrm.mechanisms.airlock.fill_normals", filler)
        streams.seek(7)
        found.append(on_grid(gaussian_noise(1.7, 3 * LARGE + 100, streams.noise), 1.7))
    assert torch.equal(*found)


@pytest.mark.parametrize(("before", "count"), [(1, MANY), (0, MANY - 1), (0, 0)])
def test_numpy_fills_what_is_short_or_begins_within_a_block(before, count, monkeypatch):
    monkeypatch.setattr(normals, "_kernels", None)
    streams, out = Streams.seeded(5), np.empty(count)
    streams.noise.standard_normal(before)
    fill_normals(out, streams.noise)
    again = Streams.seeded(5)
    again.noise.standard_normal(before)
    assert np.array_equal(out, again.noise.standard_normal(count))


def test_every_layer_has_the_same_area():
    inside, widths, heights = ziggurat_tables()
    ends = widths[1:] * 2.0**52
    areas = ends[1:] * -np.diff(heights[1:])
    assert np.allclose(areas, 0.004928673233974655, rtol=1e-10)
    assert np.allclose(inside[2:] / 2.0**52, ends[:-1] / ends[1:], rtol=1e-14)
    assert inside[1] == 0
