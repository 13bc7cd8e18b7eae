"""`pld`: the tight accountant — numerical composition of the dominating pairs themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsrm.accounting import gaussian, pld_pairs
from dpsrm.accounting.guarantee import Guarantee, check_delta, check_epsilon, need_supported, unprotected, why_none
from dpsrm.accounting.pld_extremes import LEAST_NOISE, MOST_NOISE, set_aside
from dpsrm.accounting.pld_grid import Pld
from dpsrm.accounting.pld_release import Discretise, profiles, release_plds
from dpsrm.accounting.pld_tilt import Parts, Tilt, tilt_for_delta, tilt_for_epsilon, untilted
from dpsrm.core.events import Adjacency, Event, GaussianRelease, PureRelease, Scheme, Spending

LEAST_DELTA = 1e-9


@dataclass(frozen=True)
class PldAccountant:
    """Tight composition by privacy-loss distributions, for heterogeneous and adaptively chosen sequences.

    Each release is replaced by a pair of distributions that dominates it (WOR and Poisson under replace-one, Poisson
    under add/remove, full batch, pure ε-DP, ρ-zCDP); products of dominating pairs dominate the adaptive composition
    (Zhu–Dong–Wang 2022). Losses are rounded to a grid from above, summed by FFT, and every error is added to δ.

    *Guarantee*: an upper bound, within about `resolution`²/10 (relative) of the pairs' exact ε. WOR's pair is attained
    by one release, and within some 15 % of an explicit attack over many.
    *Edge cases*: δ < 1e-9 is refused; full-batch Gaussians alone are answered in closed form; pure releases alone never
    cost more than their sum; what no grid can hold is counted by basic composition (`pld_extremes`).

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
            return gaussian.epsilon(noise, delta), 0.0
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
            return gaussian.delta(noise, epsilon), 0.0
        if _is_sharp(spending):
            return 1.0, 0.0

        def tilting(parts: Parts, scale: float) -> Tilt:
            return tilt_for_epsilon(parts, epsilon, scale=scale)

        found = profiles(spending, tilting, resolution=self.resolution)
        delta, budget = max(profile.delta(epsilon) for profile in found)
        if budget > delta / 100 or delta == 1:
            found = profiles(spending, _no_tilt, resolution=self.resolution)
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
        return gaussian.epsilon(noise, delta) if noise is not None else 0.0
    sharpest = min(c.event.noise_multiplier for c in known.charges if isinstance(c.event, GaussianRelease))
    if sharpest < LEAST_NOISE:
        return gaussian.epsilon(sharpest, delta)
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
        found = profiles(spending, _no_tilt, resolution=resolution, discretise=discretise)
        answer = min(answer, max(profile.epsilon(delta) for profile in found))
    return answer


def _no_tilt(parts: Parts, scale: float) -> Tilt:
    """`untilted`, as `profiles` calls it."""
    return untilted(parts, scale=scale)


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
