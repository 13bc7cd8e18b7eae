"""Rényi accounting at one order fixed beforehand: what composes runs that were chosen by looking at earlier ones.

The least over all orders is no bound for such a sequence: which order is best depends on the releases chosen, and they
on the records. At one order, Σρ(α) ≤ B is a valid filter (Feldman & Zrnic 2021).
"""

from __future__ import annotations

import math

from dpsrm.accounting.rdp import ORDERS, RDP
from dpsrm.accounting.renyi import RenyiAccountant
from dpsrm.core.errors import need


def best_order(epsilon: float, delta: float) -> float:
    """The order at which zCDP releases that spend all of (ε, δ) may be largest: argmax (ε − c(α))/α.

    >>> best_order(1.0, 1e-5), best_order(8.0, 1e-5)
    (18.0, 3.9)
    """
    return max(ORDERS, key=lambda order: (epsilon - conversion_cost(order, delta)) / order)


def conversion_cost(order: float, delta: float) -> float:
    """c(α) = ln(1 − 1/α) − ln(δα)/(α − 1): ε less the Rényi divergence (Canonne–Kamath–Steinke 2020, Prop. 12)."""
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def at_order(order: float) -> RenyiAccountant:
    """`rdp` at the one Rényi order `order`.

    *Guarantee*: sound for sequences whose every part (noise, length, whether to go on) may depend on what was released
    before, as long as the order does not.
    """
    need(order in ORDERS, "the order must be one that the rdp accountant knows", order=order)
    return RenyiAccountant(RDP, order=order)
