"""One batch of record indices for one release."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsrm.core.events import Sampling, Scheme

Indices = npt.NDArray[np.int64]


def draw(sampling: Sampling, stream: np.random.Generator) -> Indices:
    """A fresh batch as the `Sampling` fact states it, in O(b) time and memory for WOR and Poisson.

    WOR: a uniform subset of exactly b of n records (Floyd's method inside NumPy's `Generator.choice`, which turns to
    a partial shuffle when n < 50·b). Poisson: each record independently with probability q = b/n, drawn as a binomial
    size followed by a uniform subset of that size, which is the same distribution.

    Args:
        sampling: the fact that is also charged; sampler and accountant cannot disagree.
        stream: the secret sampling stream; amplification by sampling needs the indices secret.

    Returns:
        int64 indices without repetition, in no meaningful order.

    Edge cases: a Poisson batch may be empty; the release then consists of noise alone.

    >>> stream = np.random.default_rng(0)
    >>> len(set(draw(Sampling(scheme=Scheme.WOR, population=10, batch=4), stream).tolist()))
    4
    """
    n, b = sampling.population, sampling.batch
    if sampling.scheme is Scheme.FULL:
        return np.arange(n, dtype=np.int64)
    if sampling.scheme is Scheme.WOR:
        return _subset(n, b, stream)
    if sampling.scheme is Scheme.POISSON:
        return _subset(n, int(stream.binomial(n, sampling.rate)), stream)
    raise AssertionError(f"unknown sampling scheme {sampling.scheme!r}")


def _subset(n: int, size: int, stream: np.random.Generator) -> Indices:
    """A uniform subset of `size` of range(n); one alone is a third of the price by another function."""
    if size == 1:
        return np.array([stream.integers(n)], dtype=np.int64)
    return stream.choice(n, size=size, replace=False, shuffle=False).astype(np.int64, copy=False)
