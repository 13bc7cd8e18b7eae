"""`paper`: Lemma 1 of *Efficient Privacy-Preserving Stochastic Nonconvex Optimization*, with its conditions enforced.

A WOR release at rate q with noise s costs ρ(α) = 3.5 q²α/s² **provided** s² ≥ 0.7, α is an integer ≥ 2,
qα(1+s²) < 1 and α − 1 ≤ ⅔ s² ln(1/(qα(1+s²))). Without them the formula is not a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch

import numpy as np

from dpsrm.accounting import curves
from dpsrm.accounting.curves import Array
from dpsrm.accounting.guarantee import (
    Condition,
    Guarantee,
    check_delta,
    check_epsilon,
    exp_up,
    need_few_kinds,
    unprotected,
    why_none,
)
from dpsrm.accounting.rdp9 import need_replace_one, need_wor
from dpsrm.core.errors import InputError
from dpsrm.core.events import Event, GaussianRelease, PureRelease, Spending, UnprotectedRelease, ZcdpRelease

_ORDERS = np.arange(2, 4097, dtype=np.float64)


@singledispatch
def _cost(event: Event) -> Array:
    """ρ(α) of one release at `_ORDERS`; ∞ where a condition fails."""
    raise InputError(f"the paper accountant does not know the release {event!r}; use one from dpsrm.core.events")


@_cost.register
def _(event: GaussianRelease) -> Array:
    if event.sampling.rate == 1:  # the lemma's first sentence: no sampling, no condition
        return curves.gaussian(event.noise_multiplier, _ORDERS)
    need_wor(event, "paper")
    rate, variance = event.sampling.rate, event.noise_multiplier * event.noise_multiplier
    if variance < 0.7 or rate * _ORDERS[0] * (1 + variance) >= 1:
        return np.full_like(_ORDERS, math.inf)
    product = rate * _ORDERS * (1 + variance)
    allowed = (product < 1) & (-2 / 3 * variance * np.log(product) >= _ORDERS - 1)
    return np.where(allowed, 3.5 * rate**2 * _ORDERS / variance, math.inf)


@_cost.register
def _(event: PureRelease) -> Array:
    return curves.pure(event.epsilon, _ORDERS)


@_cost.register
def _(event: ZcdpRelease) -> Array:
    return curves.zcdp(event.rho, _ORDERS)


@_cost.register
def _(event: UnprotectedRelease) -> Array:
    return np.full_like(_ORDERS, math.inf)


@lru_cache(maxsize=64)
def _release_cost(event: Event) -> Array:
    """ρ of one release, remembered."""
    return _cost(event)


def conditions(event: GaussianRelease, order: int) -> tuple[Condition, ...]:
    """The lemma's conditions for one sampled release at the order α = `order`, with their numbers.

    >>> from dpsrm.core.events import Sampling, Scheme
    >>> wor = Sampling(scheme=Scheme.WOR, population=1000, batch=10)
    >>> release = GaussianRelease(noise_multiplier=0.5, sampling=wor)
    >>> [c.text for c in conditions(release, 2) if not c.holds]
    ['s² ≥ 0.7: s² = 0.25', 'α − 1 ≤ ⅔ s² ln(1/(qα(1+s²))): 1 against 0.615 (α = 2, q = 0.01, s = 0.5)']
    """
    rate, variance = event.sampling.rate, event.noise_multiplier * event.noise_multiplier
    product = rate * order * (1 + variance)
    room = -2 / 3 * variance * math.log(product)
    at = f"(α = {order}, q = {rate:.4g}, s = {event.noise_multiplier:.4g})"
    return (
        Condition(name="noise", holds=variance >= 0.7, text=f"s² ≥ 0.7: s² = {variance:.4g}"),
        Condition(name="rate", holds=product < 1, text=f"qα(1+s²) < 1: {product:.4g} {at}"),
        Condition(
            name="order",
            holds=product < 1 and order - 1 <= room,
            text=f"α − 1 ≤ ⅔ s² ln(1/(qα(1+s²))): {order - 1} against {room:.3g} {at}",
        ),
    )


def largest_order(spending: Spending) -> int:
    """The largest α at which every release's conditions hold; 0 if not even α = 2 (they only tighten with α)."""
    finite = np.flatnonzero(np.isfinite(_total(spending)))
    return int(_ORDERS[finite[-1]]) if finite.size else 0


def _total(spending: Spending) -> Array:
    """Σ count·ρ(α): one order for all releases, ∞ where any release's conditions fail."""
    need_replace_one(spending, "paper")
    need_few_kinds(spending)
    total = np.zeros_like(_ORDERS)
    with np.errstate(over="ignore"):
        for charge in spending.charges:
            total += charge.count * _release_cost(charge.event)
    return total


@dataclass(frozen=True)
class PaperAccountant:
    """The paper's own closed form, which answers "no guarantee" wherever its lemma does not apply.

    *Guarantee*: sound where the conditions hold. *Edge cases*: they are not monotone in the noise (more noise can
    break qα(1+s²) < 1), so never bisect on it; `calibrate_noise` scans.
    *Departs from the paper*, which assumes the conditions.

    >>> from dpsrm.core.events import Adjacency, Charge, Sampling, Scheme
    >>> wor = Sampling(scheme=Scheme.WOR, population=60000, batch=512)
    >>> release = GaussianRelease(noise_multiplier=3.51, sampling=wor)
    >>> spent = Spending.of([Charge(release, 1172)], adjacency=Adjacency.REPLACE_ONE)
    >>> round(PaperAccountant().epsilon(spent, 1e-5).epsilon, 2)
    3.0
    """

    name: str = "paper"

    def epsilon(self, spending: Spending, delta: float) -> Guarantee:
        """ε = min over the allowed orders of Σ ρ(α) + ln(1/δ)/(α−1), or no guarantee and the reason."""
        check_delta(delta)
        bounds = _total(spending) - math.log(delta) / (_ORDERS - 1)
        best = int(np.argmin(bounds))
        epsilon = float(bounds[best]) if spending.charges else 0.0
        return self._answer(spending, order=int(_ORDERS[best]), epsilon=epsilon, delta=delta)

    def delta(self, spending: Spending, epsilon: float) -> Guarantee:
        """δ = min over the allowed orders of e^{(α−1)(Σρ(α) − ε)}, or no guarantee and the reason."""
        check_epsilon(epsilon)
        with np.errstate(over="ignore"):
            exponents = (_ORDERS - 1) * (_total(spending) - epsilon)
        best = int(np.argmin(exponents))
        delta = exp_up(float(exponents[best])) if spending.charges else 0.0
        return self._answer(spending, order=int(_ORDERS[best]), epsilon=epsilon, delta=delta)

    def _answer(self, spending: Spending, *, order: int, epsilon: float, delta: float) -> Guarantee:
        """The guarantee with every release's conditions at the order used (α = 2, the mildest, if none works)."""
        events = [charge.event for charge in spending.charges]
        sampled = [e for e in events if isinstance(e, GaussianRelease) and e.sampling.rate < 1]
        found = tuple(condition for event in sampled for condition in conditions(event, order))
        failed = "; ".join(condition.text for condition in found if not condition.holds)
        why = why_none(spending, epsilon=epsilon, delta=delta, otherwise="no Rényi order gives a finite bound")
        if failed and not unprotected(spending):
            why = f"Lemma 1 does not apply: {failed}"
        return Guarantee(
            epsilon=epsilon,
            delta=delta,
            accountant=self.name,
            adjacency=spending.adjacency,
            holds=not why,
            reason=why,
            conditions=() if unprotected(spending) else found,
        )
