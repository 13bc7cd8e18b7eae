"""The noise of a large vector: in blocks with numbers of their own, the same whoever makes which of them."""

import numpy as np
import pytest
import torch

from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency, Sampling, Scheme, Spending
from dpsrm.core.secret import LARGE, ClippedSum, Coordinates, Streams
from dpsrm.mechanisms import Airlock
from dpsrm.mechanisms.airlock import gaussian_noise, grid
from dpsrm.mechanisms.merge import spread
from dpsrm.runs.book import MemoryBook
from dpsrm.runs.ledger import Header

SIZE = 3 * LARGE + 100


def noise(part=SIZE, *, release=4, seed=5):
    streams = Streams.seeded(seed)
    streams.seek(release)
    return gaussian_noise(1.0, part, streams.noise).numpy()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_parts_make_the_whole(ranks):
    parts = spread(SIZE, ranks)
    assert [part.begin for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert np.array_equal(np.concatenate([noise(part) for part in parts]), noise())


def test_blocks_and_releases_share_no_number():
    first, second = noise(), noise(release=5)
    for one, other in (
        *((first[: 100 + k], first[k * LARGE : k * LARGE + 100 + k]) for k in (1, 2, 3)),
        (first[LARGE : 2 * LARGE], first[2 * LARGE : 3 * LARGE]),
        (first, second),
    ):
        size = min(len(one), len(other))
        assert not np.isin(one[:size], other[:size]).any()


def test_a_small_vector_has_the_numbers_it_always_had():
    streams = Streams.seeded(5)
    streams.seek(4)
    assert np.array_equal(noise(10), streams.noise.standard_normal((4, 10)).sum(axis=0) / 2)
    assert np.allclose(noise(LARGE + 1)[:LARGE], Streams_at(4).standard_normal(LARGE), rtol=2e-14, atol=0)


def Streams_at(release):
    streams = Streams.seeded(5)
    streams.seek(release)
    return streams.noise


def test_a_stream_never_gives_a_number_twice():
    """Also if nobody seeks between two large releases; not even one that another rank gave, whichever part is ours."""
    once = gaussian_noise(1.0, SIZE, Streams.seeded(5).noise).numpy()
    for part in (SIZE, *spread(SIZE, 2)):
        stream = Streams.seeded(5).noise
        gaussian_noise(1.0, part, stream)
        assert not np.isin(gaussian_noise(1.0, SIZE, stream).numpy(), once).any()


def test_parts_begin_with_a_block():
    with pytest.raises(InputError, match="noise begins with a block"):
        noise(Coordinates(5, LARGE, of=SIZE))
    with pytest.raises(InputError, match="made at once"):
        noise(Coordinates(0, 5, of=10))


def test_a_released_part_lies_on_the_grid_of_the_whole():
    """Also a part that is small by itself."""
    header = Header(
        adjacency=Adjacency.REPLACE_ONE, epsilon=None, delta=None, accountant="none", private_randomness=False
    )
    nothing = Spending.of([], adjacency=header.adjacency)
    lock = Airlock(MemoryBook(header), planned=nothing, epsilon_of=lambda _: 0.0, noise=Streams.seeded(1).noise)
    part = spread(LARGE + 50, 2)[1]
    total = ClippedSum(secret=torch.full((50,), 0.1234567, dtype=torch.float64), bound=0.5, rows=10, part=part)
    sampling = Sampling(scheme=Scheme.WOR, population=100, batch=10)
    released = lock.release(total, sampling=sampling, noise_multiplier=1.7).numpy() * 10
    cells = released / grid(1.7)
    assert np.abs(cells - np.round(cells)).max() < 1e-6
