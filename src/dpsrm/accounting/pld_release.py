"""From a spending to its privacy-loss profile: one PLD per kind of release, a grid they share, one composition."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, singledispatch

from dpsrm.accounting import pld_atoms, pld_pairs
from dpsrm.accounting.guarantee import unsupported
from dpsrm.accounting.pld_compose import Profile, compose
from dpsrm.accounting.pld_grid import Pld
from dpsrm.accounting.pld_tilt import MAX_BINS, Parts, Tilt, bins
from dpsrm.core.errors import InputError
from dpsrm.core.events import (
    Adjacency,
    Event,
    GaussianRelease,
    PureRelease,
    Scheme,
    Spending,
    ZcdpRelease,
)

_COARSEST = 64.0  # a coarser grid says nothing
_LEAST_FINITE = 1e-9  # nor does a release whose loss is finite with less than this probability


@singledispatch
def _release(event: Event, adjacency: Adjacency, dx: float) -> tuple[Pld, ...]:
    """The dominating PLD of one release; two, one per direction, if it is not its own mirror image."""
    raise InputError(f"the pld accountant does not know the release {event!r}; use one from dpsrm.core.events")


@_release.register
def _(event: GaussianRelease, adjacency: Adjacency, dx: float) -> tuple[Pld, ...]:
    rate, noise, scheme = event.sampling.rate, event.noise_multiplier, event.sampling.scheme
    if rate == 1 or (scheme is Scheme.WOR and adjacency is Adjacency.REPLACE_ONE):
        return (pld_pairs.wor(rate, noise, dx),)
    if scheme is Scheme.POISSON and adjacency is Adjacency.REPLACE_ONE:
        return (pld_pairs.poisson_replace(rate, noise, dx),)
    if scheme is Scheme.POISSON and adjacency is Adjacency.ADD_REMOVE:
        return (pld_pairs.poisson_remove(rate, noise, dx), pld_pairs.poisson_add(rate, noise, dx))
    raise unsupported(event, adjacency)


@_release.register
def _(event: PureRelease, adjacency: Adjacency, dx: float) -> tuple[Pld, ...]:
    return (pld_atoms.pure(event.epsilon, dx),)


@_release.register
def _(event: ZcdpRelease, adjacency: Adjacency, dx: float) -> tuple[Pld, ...]:
    return (pld_atoms.zcdp(event.rho, dx),)


@singledispatch
def _variance(event: Event, adjacency: Adjacency) -> float:
    """About the variance of one release's loss."""
    raise InputError(f"the pld accountant does not know the release {event!r}; use one from dpsrm.core.events")


@_variance.register
def _(event: GaussianRelease, adjacency: Adjacency) -> float:
    rate, noise = event.sampling.rate, event.noise_multiplier
    if rate == 1:
        return 1 / noise**2
    opposed = event.sampling.scheme is Scheme.POISSON and adjacency is Adjacency.REPLACE_ONE
    kind = pld_pairs.Opposed if opposed else pld_pairs.Shifted
    return pld_pairs.variance(kind(rate=rate, noise=noise))


@_variance.register
def _(event: PureRelease, adjacency: Adjacency) -> float:
    return event.epsilon**2


@_variance.register
def _(event: ZcdpRelease, adjacency: Adjacency) -> float:
    return 2 * event.rho


release_plds = lru_cache(maxsize=16)(_release)
_release_variance = lru_cache(maxsize=1024)(_variance)


def grid_step(spending: Spending, resolution: float) -> tuple[float, float]:
    """The grid's step dx and the scale of the sum: `resolution` × the root mean variance of a release, rounded down.

    Rounding a loss to the grid adds a variance of at most dx²/4 per release, so relative to the sum's variance at most
    resolution²/4 in total, whatever the mixture of releases. Both numbers are rounded (to powers of √2 and of 2) so
    that growing counts find the same PLDs in the cache. With pure releases, dx divides the largest ε exactly, unless
    that is much smaller.
    """
    variances = [(_release_variance(c.event, spending.adjacency), c.count) for c in spending.charges]
    total = sum(variance * count for variance, count in variances)
    wanted = math.sqrt(total) * max(resolution / math.sqrt(spending.releases), 8 / MAX_BINS)
    dx = 2.0 ** (math.floor(2 * math.log2(wanted)) / 2)
    pure = max((c.event.epsilon for c in spending.charges if isinstance(c.event, PureRelease)), default=0.0)
    if pure > dx / 2:
        dx = pure / math.ceil(pure / dx)
    return dx, 2.0 ** round(math.log2(total) / 2)


Discretise = Callable[[Event, Adjacency, float], tuple[Pld, ...]]


def profiles(
    spending: Spending,
    tilting: Callable[[Parts, float], Tilt],
    *,
    resolution: float,
    discretise: Discretise = release_plds,
) -> list[Profile]:
    """δ(ε) of the composition in each direction, on a grid coarsened (soundly) until it fits in `MAX_BINS`."""
    dx, scale = grid_step(spending, resolution)
    while dx <= _COARSEST:
        found = [(discretise(c.event, spending.adjacency, dx), c.count) for c in spending.charges]
        if any(float(pld.mass.sum()) < _LEAST_FINITE for plds, _ in found for pld in plds):
            break
        directions = range(max(len(plds) for plds, _ in found))
        sides = [[(plds[min(side, len(plds) - 1)], count) for plds, count in found] for side in directions]
        tilts = [tilting(parts, scale) for parts in sides]
        size = max(bins(tilt, dx) for tilt in tilts)
        if size <= MAX_BINS:
            return [compose(parts, tilt) for parts, tilt in zip(sides, tilts, strict=True)]
        dx *= 2.0 ** math.ceil(math.log2(size / MAX_BINS))
    return [Profile.unknown()]
