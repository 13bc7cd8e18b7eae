"""Rényi accounting at one order fixed beforehand: what composes runs that were chosen by looking at earlier ones.

The least over all orders is no bound for such a sequence: which order is best depends on the releases chosen, and they
on the records. At one order, Σρ(α) ≤ B is a valid filter (Feldman & Zrnic 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsrm.accounting.guarantee import Guarantee, check_delta, check_epsilon, why_none
from dpsrm.accounting.rdp import ORDERS, RdpCurve, curve_delta, curve_epsilon, rdp_curve
from dpsrm.core.errors import need
from dpsrm.core.events import Spending


def best_order(epsilon: float, delta: float) -> float:
    """The order at which zCDP releases that spend all of (ε, δ) may be largest: argmax (ε − c(α))/α.

    >>> best_order(1.0, 1e-5), best_order(8.0, 1e-5)
    (18.0, 3.9)
    """
    return max(ORDERS, key=lambda order: (epsilon - conversion_cost(order, delta)) / order)


def conversion_cost(order: float, delta: float) -> float:
    """c(α) = ln(1 − 1/α) − ln(δα)/(α − 1): ε less the Rényi divergence (Canonne–Kamath–Steinke 2020, Prop. 12)."""
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


@dataclass(frozen=True)
class FixedOrderAccountant:
    """`rdp` at the one Rényi order `order`.

    *Guarantee*: sound for sequences whose every part (noise, length, whether to go on) may depend on what was released
    before, as long as the order does not.
    """

    order: float
    name: str = "rdp"

    def __post_init__(self) -> None:
        """Refuse an order at which no curve is known."""
        need(self.order in ORDERS, "the order must be one that the rdp accountant knows", order=self.order)

    def epsilon(self, spending: Spending, delta: float) -> Guarantee:
        """ε at `delta` by this order."""
        check_delta(delta)
        return self._answer(spending, epsilon=curve_epsilon(self._curve(spending), delta), delta=delta)

    def delta(self, spending: Spending, epsilon: float) -> Guarantee:
        """δ at `epsilon` by this order."""
        check_epsilon(epsilon)
        curve = self._curve(spending)
        delta = curve_delta(curve, epsilon) if math.isfinite(curve.values[0]) else 1.0
        return self._answer(spending, epsilon=epsilon, delta=delta)

    def _curve(self, spending: Spending) -> RdpCurve:
        """The one point of the curve that counts."""
        value = rdp_curve(spending).values[ORDERS.index(self.order)]
        return RdpCurve(orders=(self.order,), values=(value,))

    def _answer(self, spending: Spending, *, epsilon: float, delta: float) -> Guarantee:
        """A guarantee that says by itself when there is none."""
        why = why_none(spending, epsilon=epsilon, delta=delta, otherwise=f"infinite at the Rényi order {self.order:g}")
        return Guarantee(
            epsilon=epsilon, delta=delta, accountant=self.name, adjacency=spending.adjacency, holds=not why, reason=why
        )
