"""Streams: secret by default, separate, reproducible only on request."""

import numpy as np
import pytest

from dpsrm.core.errors import InputError
from dpsrm.core.secret import Streams


def test_the_default_differs_each_time_and_a_seed_repeats():
    assert Streams.choose(None).noise.random() != Streams.choose(None).noise.random()
    assert Streams.choose(3).noise.random() == Streams.choose(3).noise.random()
    assert Streams.choose(3).noise.random() != Streams.choose(4).noise.random()


def test_only_the_default_is_private():
    assert Streams.choose(None).private
    assert not Streams.choose(0).private


def test_streams_do_not_repeat_each_other():
    s = Streams.seeded(1)
    draws = [g.integers(2**63, size=100) for g in (s.sampling, s.noise, s.initialisation, s.output)]
    assert len(np.unique(np.concatenate(draws))) == 400


@pytest.mark.parametrize("seed", [-1, 1.5, "x"])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(InputError):
        Streams.seeded(seed)
