"""`paper`: Lemma 1 of *Efficient Privacy-Preserving Stochastic Nonconvex Optimization*, with its conditions enforced.

A WOR release at rate q with noise s costs ρ(α) = 3.5 q²α/s² **provided** s² ≥ 0.7, α is an integer ≥ 2,
qα(1+s²) < 1 and α − 1 ≤ ⅔ s² ln(1/(qα(1+s²))). Without them the formula is no bound: "no guarantee".

*Guarantee*: sound where the conditions hold. *Edge cases*: they are not monotone in the noise (more noise can
break qα(1+s²) < 1), so never bisect on it; `calibrate_noise` scans.
*Departs from the paper*, which assumes the conditions.

>>> from dpsrm.accounting import accountant
>>> from dpsrm.core.events import Charge, Sampling, Scheme
>>> wor = Sampling(scheme=Scheme.WOR, population=60000, batch=512)
>>> release = GaussianRelease(noise_multiplier=3.51, sampling=wor)
>>> spent = Spending.of([Charge(release, 1172)], adjacency=Adjacency.REPLACE_ONE)
>>> round(accountant("paper").epsilon(spent, 1e-5).epsilon, 2)
3.0
"""

from __future__ import annotations

import math

import numpy as np

from dpsrm.accounting.conversion import MIRONOV
from dpsrm.accounting.curves import Array
from dpsrm.accounting.guarantee import Condition
from dpsrm.accounting.rdp9 import need_wor
from dpsrm.accounting.renyi import Theorem, total_curve
from dpsrm.core.events import Adjacency, GaussianRelease, Spending


def _sampled(event: GaussianRelease, adjacency: Adjacency, orders: Array) -> Array:
    """ρ(α) of one release on a sampled batch; ∞ where a condition fails."""
    need_wor(event, "paper")
    rate, variance = event.sampling.rate, event.noise_multiplier * event.noise_multiplier
    if variance < 0.7 or rate * orders[0] * (1 + variance) >= 1:
        return np.full_like(orders, math.inf)
    product = rate * orders * (1 + variance)
    allowed = (product < 1) & (-2 / 3 * variance * np.log(product) >= orders - 1)
    return np.where(allowed, 3.5 * rate**2 * orders / variance, math.inf)


def conditions(event: GaussianRelease, order: float) -> tuple[Condition, ...]:
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
    at = f"(α = {order:g}, q = {rate:.4g}, s = {event.noise_multiplier:.4g})"
    return (
        Condition(name="noise", holds=variance >= 0.7, text=f"s² ≥ 0.7: s² = {variance:.4g}"),
        Condition(name="rate", holds=product < 1, text=f"qα(1+s²) < 1: {product:.4g} {at}"),
        Condition(
            name="order",
            holds=product < 1 and order - 1 <= room,
            text=f"α − 1 ≤ ⅔ s² ln(1/(qα(1+s²))): {order - 1:g} against {room:.3g} {at}",
        ),
    )


PAPER = Theorem(
    name="paper",
    source="Lemma 1",
    orders=np.arange(2, 4097, dtype=np.float64),
    sampled=_sampled,
    conversion=MIRONOV,
    replace_one_only=True,
    conditions=conditions,
)


def largest_order(spending: Spending) -> int:
    """The largest α at which every release's conditions hold; 0 if not even α = 2 (they only tighten with α)."""
    finite = np.flatnonzero(np.isfinite(total_curve(PAPER, spending)))
    return int(PAPER.orders[finite[-1]]) if finite.size else 0
