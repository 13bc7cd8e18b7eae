"""The Rényi accountant: one class for every theorem about one release.

    Σ count·ρ(α) over the releases ──conversion──▶ (ε, δ) at each order α ──▶ the best, or the one fixed beforehand

A `Theorem` says what ρ(α) is for a sampled Gaussian release; all other releases have the same curve in every theorem.
The theorems are RDP (rdp.py), RDP9 (rdp9.py) and PAPER (paper.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, singledispatch

import numpy as np

from dpsrm.accounting import curves
from dpsrm.accounting.conversion import Conversion
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
from dpsrm.core.errors import InputError, need
from dpsrm.core.events import (
    Adjacency,
    Event,
    GaussianRelease,
    PureRelease,
    Spending,
    UnprotectedRelease,
    ZcdpRelease,
)


def _no_conditions(event: GaussianRelease, order: float) -> tuple[Condition, ...]:
    """For a theorem that holds wherever its curve is finite."""
    return ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Theorem:
    """What is proved about one release, at which Rényi orders, and how to get from there to (ε, δ).

    Attributes:
        name: how the command line calls the accountant.
        source: how the literature calls the theorem.
        orders: the orders α at which ρ is known.
        sampled: ρ(α) at these orders for Gaussian noise on a sampled batch; ∞ where nothing is proved.
        conversion: from ρ(α) to ε or δ.
        replace_one_only: whether it is proved for replace-one adjacency only.
        conditions: what the theorem requires of a sampled release at an order.
    """

    name: str
    source: str
    orders: Array
    sampled: Callable[[GaussianRelease, Adjacency, Array], Array]
    conversion: Conversion
    replace_one_only: bool = False
    conditions: Callable[[GaussianRelease, float], tuple[Condition, ...]] = _no_conditions


@singledispatch
def _curve(event: Event, theorem: Theorem, adjacency: Adjacency) -> Array:
    """ρ(α) of one release at the theorem's orders."""
    raise InputError(
        f"the {theorem.name} accountant does not know the release {event!r}; use one from dpsrm.core.events"
    )


@_curve.register
def _(event: GaussianRelease, theorem: Theorem, adjacency: Adjacency) -> Array:
    if event.sampling.rate == 1:
        return curves.gaussian(event.noise_multiplier, theorem.orders)
    return theorem.sampled(event, adjacency, theorem.orders)


@_curve.register
def _(event: PureRelease, theorem: Theorem, adjacency: Adjacency) -> Array:
    return curves.pure(event.epsilon, theorem.orders)


@_curve.register
def _(event: ZcdpRelease, theorem: Theorem, adjacency: Adjacency) -> Array:
    return curves.zcdp(event.rho, theorem.orders)


@_curve.register
def _(event: UnprotectedRelease, theorem: Theorem, adjacency: Adjacency) -> Array:
    return np.full_like(theorem.orders, math.inf)


@lru_cache(maxsize=256)
def _release_curve(event: Event, theorem: Theorem, adjacency: Adjacency) -> Array:
    """`_curve`, remembered, because training asks after every block of steps."""
    values = _curve(event, theorem, adjacency)
    values.setflags(write=False)
    return values


def total_curve(theorem: Theorem, spending: Spending) -> Array:
    """Σ count·ρ(α) at the theorem's orders: ∞ where nothing is proved about one of the releases.

    *Guarantee*: adaptive composition (Mironov 2017, Prop. 1); every summand is an upper bound.
    """
    if theorem.replace_one_only and spending.adjacency is not Adjacency.REPLACE_ONE:
        raise InputError(
            f"the {theorem.name} accountant covers replace-one adjacency only; "
            f"got adjacency={spending.adjacency.value!r}; use --adjacency replace-one or --accountant pld"
        )
    need_few_kinds(spending)
    total = np.zeros_like(theorem.orders)
    with np.errstate(over="ignore"):
        for charge in spending.charges:
            total += charge.count * _release_curve(charge.event, theorem, spending.adjacency)
    return total


@dataclass(frozen=True)
class RenyiAccountant:
    """What `theorem` proves about each release, added up and converted to (ε, δ) at the best order or at `order`.

    *Guarantee*: with the best order, sound for different releases in a row whose noise and number were fixed
    beforehand. Where these depend on earlier results, the least over orders is no bound, and `order` must be given:
    see fixed_order.py.
    """

    theorem: Theorem
    order: float | None = None

    def __post_init__(self) -> None:
        """Refuse an order at which no curve is known."""
        known = self.order is None or self.order in self.theorem.orders.tolist()
        need(known, f"the order must be one that the {self.name} accountant knows", order=self.order)

    @property
    def name(self) -> str:
        """How the command line calls this accountant."""
        return self.theorem.name

    def epsilon(self, spending: Spending, delta: float) -> Guarantee:
        """The smallest ε this accountant can prove at `delta`."""
        check_delta(delta)
        orders, rho = self._usable(spending)
        bounds = self.theorem.conversion.epsilons(orders, rho, delta)
        best = int(np.argmin(bounds))
        epsilon = float(bounds[best]) if spending.charges else 0.0
        return self._answer(spending, order=float(orders[best]), epsilon=epsilon, delta=delta)

    def delta(self, spending: Spending, epsilon: float) -> Guarantee:
        """The smallest δ this accountant can prove at `epsilon`."""
        check_epsilon(epsilon)
        orders, rho = self._usable(spending)
        bounds = self.theorem.conversion.log_deltas(orders, rho, epsilon)
        best = int(np.argmin(bounds))
        delta = exp_up(float(bounds[best])) if spending.charges else 0.0
        return self._answer(spending, order=float(orders[best]), epsilon=epsilon, delta=delta)

    def _usable(self, spending: Spending) -> tuple[Array, Array]:
        """The orders to choose from, and ρ there."""
        orders, rho = self.theorem.orders, total_curve(self.theorem, spending)
        chosen = slice(None) if self.order is None else orders == self.order
        return orders[chosen], rho[chosen]

    def _answer(self, spending: Spending, *, order: float, epsilon: float, delta: float) -> Guarantee:
        """The guarantee with the theorem's conditions at the order used; it says by itself when there is none."""
        events = [] if unprotected(spending) else [charge.event for charge in spending.charges]
        sampled = [e for e in events if isinstance(e, GaussianRelease) and e.sampling.rate < 1]
        conditions = tuple(each for event in sampled for each in self.theorem.conditions(event, order))
        failed = "; ".join(each.text for each in conditions if not each.holds)
        infinite = "no Rényi order gives a finite bound"
        infinite = infinite if self.order is None else f"infinite at the Rényi order {self.order:g}"
        why = why_none(spending, epsilon=epsilon, delta=delta, otherwise=infinite)
        if failed:
            why = f"{self.theorem.source} does not apply: {failed}"
        return Guarantee(
            epsilon=epsilon,
            delta=delta,
            accountant=self.name,
            adjacency=spending.adjacency,
            holds=not why,
            reason=why,
            conditions=conditions,
        )
