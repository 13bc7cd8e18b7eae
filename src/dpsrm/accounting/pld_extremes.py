"""What a grid of losses cannot hold — too small, too large, or no noise at all — counted by simpler, larger bounds.

Basic composition: a release that is (ε₁, δ₁)-DP adds ε₁ to the ε and δ₁ to the δ of all the others. It costs more than
a grid would say, and it is sound for every number that a ledger can hold. Nothing is ever dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpsrm.accounting.guarantee import need_few_kinds, need_supported
from dpsrm.core.events import (
    Charge,
    GaussianRelease,
    PureRelease,
    Sampling,
    Scheme,
    Spending,
    ZcdpRelease,
)

LEAST_NOISE, MOST_NOISE = 0.01, 2.0**17
"""On a sampled batch, less noise than the first counts as none, more than the second as the second."""

_NEGLIGIBLE = 1e-15  # releases whose total variations add up to this little go to δ
_STEEP = 40.0  # a pure ε above this has its full loss but for a probability of e^{−40}
_LEAST_RHO, _MOST_RHO = 1e-10, 1000.0  # less is counted as the first; more exceeds every loss that is counted
_FULL = Sampling(scheme=Scheme.FULL, population=1, batch=1)


@dataclass(frozen=True, kw_only=True)
class Aside:
    """What is left for the grid, and the (ε, δ) that everything else adds to its answer (ε = ∞: no answer)."""

    rest: Spending
    epsilon: float
    delta: float


def set_aside(spending: Spending) -> Aside:
    """Sort `spending` into what a grid can hold and what is counted by basic composition.

    Full-batch Gaussians are first merged into one (they add as 1/s²), zCDP releases too (as ρ).

    >>> from dpsrm.core.events import Adjacency
    >>> tiny = Spending.of([Charge(PureRelease(epsilon=6e-274), 2)], adjacency=Adjacency.REPLACE_ONE)
    >>> set_aside(tiny).delta, set_aside(tiny).rest.charges
    (6e-274, ())
    """
    need_few_kinds(spending)
    epsilon = delta = 0.0
    kept: list[Charge] = []
    for charge in _merged(spending):
        need_supported(charge.event, spending.adjacency)
        variation = charge.count * _variation(charge)
        if variation <= _NEGLIGIBLE:
            delta += variation
        elif _is_exact(charge):
            delta += _seen(charge)
        elif isinstance(charge.event, PureRelease) and charge.event.epsilon > _STEEP:
            epsilon += charge.count * charge.event.epsilon
        else:
            kept.append(_within_reach(charge))
    if any(isinstance(c.event, ZcdpRelease) and c.event.rho > _MOST_RHO for c in kept):
        epsilon = math.inf
    return Aside(rest=Spending.of(kept, adjacency=spending.adjacency), epsilon=epsilon, delta=delta)


def _merged(spending: Spending) -> list[Charge]:
    """The same cost in fewer releases: full-batch Gaussians add as 1/s², zCDP releases as ρ."""
    shifts: list[float] = []
    rho = 0.0
    others: list[Charge] = []
    for charge in spending.charges:
        if isinstance(charge.event, GaussianRelease) and charge.event.sampling.rate == 1:
            shifts.append(math.sqrt(charge.count) / charge.event.noise_multiplier)
        elif isinstance(charge.event, ZcdpRelease):
            rho += charge.count * charge.event.rho
        else:
            others.append(charge)
    if shifts:
        noise = 1 / min(max(math.hypot(*shifts), 1e-300), 1e300)
        others.append(Charge(GaussianRelease(noise_multiplier=noise, sampling=_FULL), 1))
    if rho:
        others.append(Charge(ZcdpRelease(rho=min(rho, 1e300)), 1))
    return others


def _variation(charge: Charge) -> float:
    """A bound on one release's total variation: it is (0, this)-DP."""
    event = charge.event
    if isinstance(event, GaussianRelease):  # 2Φ(1/2s) − 1 ≤ 0.4/s, times the rate (docs/decisions/pld.md at γ = 1)
        return event.sampling.rate * min(0.4 / event.noise_multiplier, 1.0)
    if isinstance(event, PureRelease):  # tanh(ε/2)
        return min(event.epsilon / 2, 1.0)
    if isinstance(event, ZcdpRelease):  # Pinsker
        return min(math.sqrt(event.rho / 2), 1.0)
    return math.inf


def _is_exact(charge: Charge) -> bool:
    """Whether so little noise is on a sampled batch that it is counted as none."""
    event = charge.event
    return isinstance(event, GaussianRelease) and event.sampling.rate < 1 and event.noise_multiplier < LEAST_NOISE


def _seen(charge: Charge) -> float:
    """The probability 1 − (1−q)^count that a record is drawn at all: without noise, a release is (0, q)-DP."""
    if not isinstance(charge.event, GaussianRelease):
        raise AssertionError(charge)
    return -math.expm1(charge.count * math.log1p(-charge.event.sampling.rate)) * (1 + 1e-12)


def _within_reach(charge: Charge) -> Charge:
    """The same release, or one that costs more and has numbers a grid can hold."""
    event = charge.event
    if isinstance(event, GaussianRelease) and event.sampling.rate < 1:
        return Charge(replace(event, noise_multiplier=min(event.noise_multiplier, MOST_NOISE)), charge.count)
    if isinstance(event, ZcdpRelease):
        return Charge(replace(event, rho=max(event.rho, _LEAST_RHO)), charge.count)
    return charge
