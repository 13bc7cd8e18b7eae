"""`rdp`: Rényi accounting with the best known bound for each release and the best known conversion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch

import numpy as np

from dpsrm.accounting import curves
from dpsrm.accounting.curves import Array
from dpsrm.accounting.guarantee import (
    Guarantee,
    check_delta,
    check_epsilon,
    exp_up,
    need_few_kinds,
    why_none,
)
from dpsrm.core.errors import InputError, need
from dpsrm.core.events import (
    Adjacency,
    Event,
    GaussianRelease,
    PureRelease,
    Scheme,
    Spending,
    UnprotectedRelease,
    ZcdpRelease,
)

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


@singledispatch
def _curve(event: Event, adjacency: Adjacency, orders: Array) -> Array:
    """ρ(α) of one release."""
    raise InputError(f"the rdp accountant does not know the release {event!r}; use one from dpsrm.core.events")


@_curve.register
def _(event: GaussianRelease, adjacency: Adjacency, orders: Array) -> Array:
    rate, noise, scheme = event.sampling.rate, event.noise_multiplier, event.sampling.scheme
    if rate == 1:
        return curves.gaussian(noise, orders)
    if scheme is Scheme.WOR and adjacency is Adjacency.REPLACE_ONE:
        return curves.wor_gaussian(rate, noise, orders)
    if scheme is Scheme.POISSON and adjacency is Adjacency.REPLACE_ONE:
        return curves.poisson_replace(rate, noise, orders)
    if scheme is Scheme.POISSON and adjacency is Adjacency.ADD_REMOVE:
        return curves.poisson_add_remove(rate, noise, orders)
    raise unsupported(event, adjacency)


@_curve.register
def _(event: PureRelease, adjacency: Adjacency, orders: Array) -> Array:
    return curves.pure(event.epsilon, orders)


@_curve.register
def _(event: ZcdpRelease, adjacency: Adjacency, orders: Array) -> Array:
    return curves.zcdp(event.rho, orders)


@_curve.register
def _(event: UnprotectedRelease, adjacency: Adjacency, orders: Array) -> Array:
    return np.full_like(orders, math.inf)


def need_supported(event: Event, adjacency: Adjacency) -> None:
    """Refuse a sampling scheme that no accountant covers under `adjacency`."""
    if not isinstance(event, GaussianRelease) or event.sampling.rate == 1:
        return
    if event.sampling.scheme is Scheme.WOR and adjacency is not Adjacency.REPLACE_ONE:
        raise unsupported(event, adjacency)


def unsupported(event: GaussianRelease, adjacency: Adjacency) -> InputError:
    """The error for a sampling scheme that no accountant covers under `adjacency`."""
    scheme = event.sampling.scheme.value
    return InputError(
        f"no accountant covers {scheme} sampling under {adjacency.value} adjacency; "
        "got a fixed batch size, which reveals n; use --adjacency replace-one or --sampling poisson"
    )


@lru_cache(maxsize=256)
def _release_curve(event: Event, adjacency: Adjacency) -> Array:
    """ρ at `ORDERS` of one release; remembered, because training asks after every block of steps."""
    values = _curve(event, adjacency, np.array(ORDERS))
    values.setflags(write=False)
    return values


def rdp_curve(spending: Spending) -> RdpCurve:
    """The Rényi curve of everything in `spending`: Σ count·ρ(α).

    *Guarantee*: adaptive composition (Mironov 2017, Prop. 1); every summand is an upper bound.
    """
    need_few_kinds(spending)
    total = np.zeros(len(ORDERS))
    with np.errstate(over="ignore"):
        for charge in spending.charges:
            total += charge.count * _release_curve(charge.event, spending.adjacency)
    return RdpCurve(orders=ORDERS, values=tuple(total.tolist()))


def curve_epsilon(curve: RdpCurve, delta: float) -> float:
    """ε at `delta`: min_α ρ + ln(1−1/α) − ln(δα)/(α−1) (Canonne–Kamath–Steinke 2020, Prop. 12), never below 0.

    ε = 0 where the total variation is at most δ: by √(1−e^{−ρ}) (Bretagnolle–Huber, KL ≤ ρ(α)).
    *Departs from dp-accounting*, which computes the same, but not for a δ whose square is no longer a number.
    """
    orders, values = _usable(curve)
    if float(np.min(_log_variation(values))) <= math.log(delta):
        return 0.0
    bounds = values + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(float(np.min(bounds)), 0.0)


def curve_delta(curve: RdpCurve, epsilon: float) -> float:
    """δ at `epsilon`, the inverse of `curve_epsilon`."""
    orders, values = _usable(curve)
    with np.errstate(over="ignore"):
        log_deltas = (orders - 1) * (values - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return exp_up(min(float(np.min(log_deltas)), float(np.min(_log_variation(values)))))


def _usable(curve: RdpCurve) -> tuple[Array, Array]:
    """The orders above 1.01 (below, the conversion is useless and its logarithms cancel) and ρ there."""
    orders, values = np.array(curve.orders), np.array(curve.values)
    need(bool(np.any(orders > 1.01)), "a curve needs an order above 1.01", orders=curve.orders)
    return orders[orders > 1.01], values[orders > 1.01]


def _log_variation(values: Array) -> Array:
    """ln √(1−e^{−ρ})."""
    with np.errstate(divide="ignore"):
        return np.log(-np.expm1(-values)) / 2


@dataclass(frozen=True)
class RdpAccountant:
    """Rényi accounting: WOR by Wang–Balle–Kasiviswanathan's Thm 27, Poisson by its exact divergence.

    *Guarantee*: sound for different releases in a row whose noise and number were fixed beforehand; looser than `pld`.
    Where these depend on earlier results, the least over orders is no bound: see fixed_order.py.

    >>> from dpsrm.core.events import Charge, Sampling
    >>> wor = Sampling(scheme=Scheme.WOR, population=50000, batch=256)
    >>> release = GaussianRelease(noise_multiplier=1.0, sampling=wor)
    >>> spent = Spending.of([Charge(release, 2000)], adjacency=Adjacency.REPLACE_ONE)
    >>> round(RdpAccountant().epsilon(spent, 1e-5).epsilon, 4)
    2.4533
    """

    name: str = "rdp"

    def epsilon(self, spending: Spending, delta: float) -> Guarantee:
        """The smallest ε this accountant can prove at `delta`."""
        check_delta(delta)
        epsilon = curve_epsilon(rdp_curve(spending), delta) if spending.charges else 0.0
        return self._answer(spending, epsilon=epsilon, delta=delta)

    def delta(self, spending: Spending, epsilon: float) -> Guarantee:
        """The smallest δ this accountant can prove at `epsilon`."""
        check_epsilon(epsilon)
        delta = curve_delta(rdp_curve(spending), epsilon) if spending.charges else 0.0
        return self._answer(spending, epsilon=epsilon, delta=delta)

    def _answer(self, spending: Spending, *, epsilon: float, delta: float) -> Guarantee:
        """A guarantee that says by itself when there is none."""
        why = why_none(spending, epsilon=epsilon, delta=delta, otherwise="no Rényi order gives a finite bound")
        return Guarantee(
            epsilon=epsilon, delta=delta, accountant=self.name, adjacency=spending.adjacency, holds=not why, reason=why
        )
