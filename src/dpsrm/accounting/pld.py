"""`pld`: the tight accountant — numerical composition of the dominating pairs themselves.

What a grid of losses cannot hold — too small, too large, or no noise at all — is set aside and counted by simpler,
larger bounds. Basic composition: a release that is (ε₁, δ₁)-DP adds ε₁ to the ε and δ₁ to the δ of all the others. It
costs more than a grid would say, and it is sound for every number that a ledger can hold. Nothing is ever dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpsrm.accounting import pld_pairs
from dpsrm.accounting.guarantee import (
    Guarantee,
    check_delta,
    check_epsilon,
    gaussian_delta,
    gaussian_epsilon,
    need_few_kinds,
    need_supported,
    unprotected,
    why_none,
)
from dpsrm.accounting.pld_grid import Pld
from dpsrm.accounting.pld_release import Discretise, profiles, release_plds
from dpsrm.accounting.pld_tilt import Parts, Tilt, tilt_for_delta, tilt_for_epsilon, untilted
from dpsrm.core.events import (
    Adjacency,
    Charge,
    Event,
    GaussianRelease,
    PureRelease,
    Sampling,
    Scheme,
    Spending,
    ZcdpRelease,
)

LEAST_DELTA = 1e-9

LEAST_NOISE, MOST_NOISE = 0.01, 2.0**17
"""On a sampled batch, less noise than the first counts as none, more than the second as the second."""
_NEGLIGIBLE = 1e-15  # releases whose total variations add up to this little go to δ
_STEEP = 40.0  # a pure ε above this has its full loss but for a probability of e^{−40}
_LEAST_RHO, _MOST_RHO = 1e-10, 1000.0  # less is counted as the first; more exceeds every loss that is counted
_FULL = Sampling(scheme=Scheme.FULL, population=1, batch=1)


@dataclass(frozen=True)
class PldAccountant:
    """Tight composition by privacy-loss distributions, for heterogeneous and adaptively chosen sequences.

    Each release is replaced by a pair of distributions that dominates it (WOR and Poisson under replace-one, Poisson
    under add/remove, full batch, pure ε-DP, ρ-zCDP); products of dominating pairs dominate the adaptive composition
    (Zhu–Dong–Wang 2022). Losses are rounded to a grid from above, summed by FFT, and every error is added to δ.

    *Guarantee*: an upper bound, within about `resolution`²/10 (relative) of the pairs' exact ε. WOR's pair is attained
    by one release, and within some 15 % of an explicit attack over many.
    *Edge cases*: δ < 1e-9 is refused; full-batch Gaussians alone are answered in closed form; pure releases alone never
    cost more than their sum; what no grid can hold is counted by basic composition (`set_aside`).

    >>> from dpsrm.core.events import Charge, Sampling
    >>> wor = Sampling(scheme=Scheme.WOR, population=60000, batch=512)
    >>> run = Charge(GaussianRelease(noise_multiplier=0.9, sampling=wor), 1172)
    >>> round(PldAccountant().epsilon(Spending.of([run], adjacency=Adjacency.REPLACE_ONE), 1e-5).epsilon, 3)
    2.519
    """

    name: str = "pld"
    resolution: float = 0.02

    def epsilon(self, spending: Spending, delta: float) -> Guarantee:
        """The smallest ε this accountant can prove at `delta`."""
        check_delta(delta, least=LEAST_DELTA)
        if unprotected(spending):
            return self._answer(spending, epsilon=math.inf, delta=delta, budget=0.0)
        aside = set_aside(spending)
        room = delta - aside.delta if aside.epsilon < math.inf else 0.0
        epsilon, budget = self._solve_epsilon(aside.rest, room)
        epsilon = min(epsilon + aside.epsilon, _pure_sum(spending))
        return self._answer(spending, epsilon=epsilon, delta=delta, budget=budget)

    def delta(self, spending: Spending, epsilon: float) -> Guarantee:
        """The smallest δ this accountant can prove at `epsilon`."""
        check_epsilon(epsilon)
        if unprotected(spending):
            return self._answer(spending, epsilon=epsilon, delta=1.0, budget=0.0)
        if epsilon >= _pure_sum(spending):
            return self._answer(spending, epsilon=epsilon, delta=0.0, budget=0.0)
        aside = set_aside(spending)
        delta, budget = self._solve_delta(aside.rest, epsilon - aside.epsilon)
        return self._answer(spending, epsilon=epsilon, delta=min(delta + aside.delta, 1.0), budget=budget)

    def _solve_epsilon(self, spending: Spending, delta: float) -> tuple[float, float]:
        """ε and the numerical error in δ."""
        if delta <= 0:
            return math.inf, 0.0
        if not spending.charges:
            return 0.0, 0.0
        noise = _gaussian_alone(spending)
        if noise is not None:
            return gaussian_epsilon(noise, delta), 0.0
        if _is_sharp(spending):
            return math.inf, 0.0
        return _composed_epsilon(spending, delta, resolution=self.resolution)

    def _solve_delta(self, spending: Spending, epsilon: float) -> tuple[float, float]:
        """δ and the numerical error in it."""
        if epsilon < 0:
            return 1.0, 0.0
        if not spending.charges:
            return 0.0, 0.0
        noise = _gaussian_alone(spending)
        if noise is not None:
            return gaussian_delta(noise, epsilon), 0.0
        if _is_sharp(spending):
            return 1.0, 0.0

        def tilting(parts: Parts, scale: float) -> Tilt:
            return tilt_for_epsilon(parts, epsilon, scale=scale)

        found = profiles(spending, tilting, resolution=self.resolution)
        delta, budget = max(profile.delta(epsilon) for profile in found)
        if budget > delta / 100 or delta == 1:
            found = profiles(spending, untilted, resolution=self.resolution)
            delta, budget = min((delta, budget), max(profile.delta(epsilon) for profile in found))
        return delta, budget

    def _answer(self, spending: Spending, *, epsilon: float, delta: float, budget: float) -> Guarantee:
        """A guarantee that says by itself when there is none."""
        beyond = "with more than delta, the loss exceeds what this accountant counts to (500 per release, 2⁴⁸ releases)"
        why = why_none(spending, epsilon=epsilon, delta=delta, otherwise=beyond)
        return Guarantee(
            epsilon=epsilon,
            delta=delta,
            accountant=self.name,
            adjacency=spending.adjacency,
            holds=not why,
            reason=why,
            error_budget=budget,
        )


_GRIDS, _CELL = (0.015, 0.02, 0.03, 0.04), 1e-3
"""Resolutions near zero; far away, losses stand on a grid no finer than a thousandth of them."""


def attack_epsilon(spending: Spending, delta: float) -> float:
    """The ε that an explicit attack reaches at `delta`: no accountant can honestly claim less. A diagnostic.

    Worst-case data (all others at +R, the record at ±R) make each WOR release tell (1−q)N(0) + qN(1) from N(0), each
    Poisson or full-batch release its own pair; pure and zCDP releases are left out. Each grid errs from above: taken is
    the least of four less their spread and a cell, and no more than `pld` proves; an estimate from below, no proof.
    """
    check_delta(delta, least=LEAST_DELTA)
    for charge in spending.charges:
        need_supported(charge.event, spending.adjacency)
    if unprotected(spending):
        return math.inf
    gaussians = [c for c in spending.charges if isinstance(c.event, GaussianRelease) and _is_attacked(c.event)]
    known = set_aside(Spending.of(gaussians, adjacency=spending.adjacency)).rest
    noise = _gaussian_alone(known)
    if not known.charges or noise is not None:
        return gaussian_epsilon(noise, delta) if noise is not None else 0.0
    sharpest = min(c.event.noise_multiplier for c in known.charges if isinstance(c.event, GaussianRelease))
    if sharpest < LEAST_NOISE:
        return gaussian_epsilon(sharpest, delta)
    _, budget = _composed_epsilon(known, delta, resolution=0.02, discretise=_attacked)
    wider = min(delta + 2 * budget, 1.0)
    seen = [_composed_epsilon(known, wider, resolution=each, discretise=_attacked)[0] for each in _GRIDS]
    found = max((2 - _CELL) * min(seen) - max(seen), 0.0) if max(seen) < math.inf else min(seen)
    return min(found, PldAccountant().epsilon(spending, delta).epsilon)


def _composed_epsilon(
    spending: Spending, delta: float, *, resolution: float, discretise: Discretise = release_plds
) -> tuple[float, float]:
    """ε of the composition, in its worse direction, and the numerical error in δ.

    Where a loss rarer than δ misleads Chernoff to a bad tilt, an untilted composition is done as well; both are upper
    bounds, so the smaller one is the answer.
    """

    def tilting(parts: Parts, scale: float) -> Tilt:
        return tilt_for_delta(parts, delta, scale=scale)

    found = profiles(spending, tilting, resolution=resolution, discretise=discretise)
    answer = max(profile.epsilon(delta) for profile in found)
    if answer[1] > delta / 100 or not all(profile.reaches(delta) for profile in found):
        found = profiles(spending, untilted, resolution=resolution, discretise=discretise)
        answer = min(answer, max(profile.epsilon(delta) for profile in found))
    return answer


def _attacked(event: Event, adjacency: Adjacency, dx: float) -> tuple[Pld, ...]:
    """The pair that the attack of `attack_epsilon` tells apart."""
    if isinstance(event, GaussianRelease) and event.sampling.rate < 1 and event.sampling.scheme is Scheme.WOR:
        return (pld_pairs.poisson_remove(event.sampling.rate, event.noise_multiplier, dx),)
    return release_plds(event, adjacency, dx)[:1]


def _is_attacked(event: GaussianRelease) -> bool:
    """Whether `set_aside` keeps this release as it is: one that it makes dearer says nothing about an attack."""
    return event.sampling.rate == 1 or event.noise_multiplier <= MOST_NOISE


def _gaussian_alone(spending: Spending) -> float | None:
    """The noise multiplier if `spending` is a single full-batch Gaussian, else None."""
    events = [charge.event for charge in spending.charges]
    if len(events) == 1 and isinstance(events[0], GaussianRelease) and events[0].sampling.rate == 1:
        return events[0].noise_multiplier
    return None


def _is_sharp(spending: Spending) -> bool:
    """Whether a full-batch Gaussian, among others, has losses beyond all that a grid counts."""
    events = [charge.event for charge in spending.charges]
    return any(isinstance(e, GaussianRelease) and e.noise_multiplier < LEAST_NOISE for e in events)


def _pure_sum(spending: Spending) -> float:
    """Σ count·ε if all releases are pure, else ∞."""
    events = [(charge.event, charge.count) for charge in spending.charges]
    return sum(event.epsilon * count if isinstance(event, PureRelease) else math.inf for event, count in events)


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
