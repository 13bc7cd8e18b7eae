"""From a Rényi divergence ρ at the order α to (ε, δ), for whole arrays of orders; the least is the answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpsrm.accounting.curves import Array


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Two functions that are each other's inverse.

    Attributes:
        epsilons: (orders, ρ, δ) to the ε that each order proves, at least 0.
        log_deltas: (orders, ρ, ε) to the ln δ that each order proves.
    """

    epsilons: Callable[[Array, Array, float], Array]
    log_deltas: Callable[[Array, Array, float], Array]


def _mironov_epsilons(orders: Array, rho: Array, delta: float) -> Array:
    """ε = ρ + ln(1/δ)/(α−1)."""
    return rho - math.log(delta) / (orders - 1)


def _mironov_log_deltas(orders: Array, rho: Array, epsilon: float) -> Array:
    """ln δ = (α−1)(ρ − ε)."""
    with np.errstate(over="ignore"):
        return (orders - 1) * (rho - epsilon)


def _canonne_epsilons(orders: Array, rho: Array, delta: float) -> Array:
    """ε = ρ + ln(1−1/α) − ln(δα)/(α−1), and ε = 0 where the total variation is at most δ."""
    bounds = rho + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return np.where(_log_variation(rho) <= math.log(delta), 0.0, np.maximum(bounds, 0.0))


def _canonne_log_deltas(orders: Array, rho: Array, epsilon: float) -> Array:
    """ln δ = (α−1)(ρ − ε + ln(1−1/α)) − ln α, at most the total variation's."""
    with np.errstate(over="ignore"):
        bounds = (orders - 1) * (rho - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return np.minimum(bounds, _log_variation(rho))


def _log_variation(rho: Array) -> Array:
    """ln √(1−e^{−ρ}), a bound on the total variation (Bretagnolle–Huber; KL ≤ ρ(α))."""
    with np.errstate(divide="ignore"):
        return np.log(-np.expm1(-rho)) / 2


MIRONOV = Conversion(epsilons=_mironov_epsilons, log_deltas=_mironov_log_deltas)
"""Mironov 2017, Prop. 3."""

CANONNE = Conversion(epsilons=_canonne_epsilons, log_deltas=_canonne_log_deltas)
"""Canonne–Kamath–Steinke 2020, Prop. 12, the best known.

*Departs from dp-accounting*, which computes the same, but not for a δ whose square is no longer a number.
"""
