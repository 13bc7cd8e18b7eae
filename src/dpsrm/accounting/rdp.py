"""`rdp`: Rényi accounting with the best known bound for each release and the best known conversion.

WOR by Wang–Balle–Kasiviswanathan's Thm 27, Poisson by its exact divergence. *Guarantee*: sound; looser than `pld`.

>>> from dpsrm.accounting import accountant
>>> from dpsrm.core.events import Charge, Sampling
>>> wor = Sampling(scheme=Scheme.WOR, population=50000, batch=256)
>>> release = GaussianRelease(noise_multiplier=1.0, sampling=wor)
>>> spent = Spending.of([Charge(release, 2000)], adjacency=Adjacency.REPLACE_ONE)
>>> round(accountant("rdp").epsilon(spent, 1e-5).epsilon, 4)
2.4533
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsrm.accounting import curves
from dpsrm.accounting.conversion import CANONNE
from dpsrm.accounting.curves import Array
from dpsrm.accounting.guarantee import unsupported
from dpsrm.accounting.renyi import Theorem, total_curve
from dpsrm.core.errors import need
from dpsrm.core.events import Adjacency, GaussianRelease, Scheme, Spending

ORDERS = (
    *(1 + i / 10 for i in range(1, 100)),
    *map(float, range(11, 257)),
    320.0,
    384.0,
    512.0,
    768.0,
    1024.0,
)


@dataclass(frozen=True, kw_only=True)
class RdpCurve:
    """ρ(α) at some orders α > 1, with ρ = ∞ allowed; curves of releases add up.

    >>> RdpCurve(orders=(2.0, 4.0), values=(0.1, 0.2)).values
    (0.1, 0.2)
    """

    orders: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what is no curve: different lengths, orders of 1 or below, negative or NaN costs."""
        need(
            len(self.orders) == len(self.values) > 0,
            "a curve has one value per order",
            orders=len(self.orders),
        )
        need(
            all(1 < a < math.inf for a in self.orders),
            "Rényi orders must be above 1 and finite",
            orders=self.orders,
        )
        need(all(v >= 0 for v in self.values), "Rényi divergences are not negative", values=self.values)


def _sampled(event: GaussianRelease, adjacency: Adjacency, orders: Array) -> Array:
    """ρ(α) of one release on a sampled batch."""
    rate, noise, scheme = event.sampling.rate, event.noise_multiplier, event.sampling.scheme
    if scheme is Scheme.WOR and adjacency is Adjacency.REPLACE_ONE:
        return curves.wor_gaussian(rate, noise, orders)
    if scheme is Scheme.POISSON and adjacency is Adjacency.REPLACE_ONE:
        return curves.poisson_replace(rate, noise, orders)
    if scheme is Scheme.POISSON and adjacency is Adjacency.ADD_REMOVE:
        return curves.poisson_add_remove(rate, noise, orders)
    raise unsupported(event, adjacency)


RDP = Theorem(
    name="rdp",
    source="Thm 27 of Wang–Balle–Kasiviswanathan 2019",
    orders=np.array(ORDERS),
    sampled=_sampled,
    conversion=CANONNE,
)


def rdp_curve(spending: Spending) -> RdpCurve:
    """The Rényi curve of everything in `spending`: Σ count·ρ(α)."""
    return RdpCurve(orders=ORDERS, values=tuple(total_curve(RDP, spending).tolist()))


def curve_epsilon(curve: RdpCurve, delta: float) -> float:
    """ε at `delta` by the best order of `curve`."""
    return float(np.min(CANONNE.epsilons(*_usable(curve), delta)))


def _usable(curve: RdpCurve) -> tuple[Array, Array]:
    """The orders above 1.01 (below, the conversion is useless and its logarithms cancel) and ρ there."""
    orders, values = np.array(curve.orders), np.array(curve.values)
    need(bool(np.any(orders > 1.01)), "a curve needs an order above 1.01", orders=curve.orders)
    return orders[orders > 1.01], values[orders > 1.01]
