"""The cost of choosing the best of K private runs, K itself random and never released (Papernot & Steinke 2022)."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

from dpsrm.accounting.guarantee import check_delta
from dpsrm.accounting.pld import PldAccountant
from dpsrm.accounting.rdp import RdpCurve, curve_epsilon, rdp_curve
from dpsrm.core.errors import need
from dpsrm.core.events import Adjacency, Charge, PureRelease, Spending


def expected_runs(eta: float, gamma: float) -> float:
    """E[K] for K ~ truncated negative binomial(η, γ): η(1−γ)/(γ(1−γ^η)), at η = 0 (1/γ−1)/ln(1/γ).

    *Edge cases*: η = 1 is the geometric distribution (E[K] = 1/γ), η = 0 the logarithmic one; η > −1.

    >>> round(expected_runs(0.0, 0.02), 1), expected_runs(1.0, 0.02)
    (12.5, 50.0)
    """
    need(-1 < eta < math.inf, "eta must be above -1 and finite", eta=eta, remedy="0 is a good choice")
    need(
        0 < gamma < 1,
        "gamma must lie strictly between 0 and 1",
        gamma=gamma,
        remedy="smaller means more runs",
    )
    if abs(eta) < 1e-9:
        return (1 / gamma - 1) / math.log(1 / gamma)
    return eta * (1 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))


def runs_to_gamma(runs: float, *, eta: float) -> float:
    """The γ with which `runs` runs are expected.

    >>> round(expected_runs(0.0, runs_to_gamma(24, eta=0.0)), 6)
    24.0
    """
    need(runs > 1, "choosing needs two tries or more", tries=runs)
    return float(2 ** brentq(lambda x: math.log(expected_runs(eta, 2**x) / runs), -300, -1e-9, xtol=1e-12))


def searched_guarantee(epsilon: float, delta: float, *, runs: int) -> tuple[float, float]:
    """(ε′, δ′) of `runs` runs, each (ε, δ)-DP and each chosen by looking at the results of those before it.

    *Guarantee*: optimal adaptive composition (Kairouz, Oh & Viswanath 2015): `runs` pure ε-DP releases composed by
    `pld` at `delta`, and δ′ = 1 − (1−δ)^(runs+1). Unlike `select_epsilon` it allows a search that learns as it goes
    and a number of runs fixed beforehand; all runs may be published. How good a run was must itself be public.

    >>> eps, total = searched_guarantee(0.1, 1e-6, runs=10)
    >>> round(eps, 2), round(total, 6)
    (1.0, 1.1e-05)
    """
    check_delta(delta)
    need(runs >= 1, "a search makes at least one run", runs=runs)
    spent = Spending.of([Charge(PureRelease(epsilon=float(epsilon)), runs)], adjacency=Adjacency.REPLACE_ONE)
    return PldAccountant().epsilon(spent, delta).epsilon, -math.expm1((runs + 1) * math.log1p(-delta))


def selection_curve(base: RdpCurve, *, eta: float, gamma: float) -> RdpCurve:
    """The Rényi curve of "run the base K times, return the best": Papernot & Steinke 2022, Thm 2.

        ρ′(λ) = ρ(λ) + min_λ̂ {(1+η)(1−1/λ̂)ρ(λ̂) + (1+η)ln(1/γ)/λ̂} + ln E[K]/(λ−1)

    *Guarantee*: holds when every run is charged the same `base` (the dearest of the configurations tried), and
    neither K nor any other run is released.
    """
    orders, values = np.array(base.orders), np.array(base.values)
    runs = expected_runs(eta, gamma)
    extra = (1 + eta) * float(np.min((1 - 1 / orders) * values + math.log(1 / gamma) / orders))
    total = values + extra + math.log(runs) / (orders - 1)
    return RdpCurve(orders=base.orders, values=tuple(total.tolist()))


def select_epsilon(base: Spending | RdpCurve, delta: float, *, eta: float, gamma: float) -> float:
    """ε at `delta` of choosing the best of K runs, each of which spends `base`.

    Args:
        base: the spending of one run, or its Rényi curve.
        eta: η, how K is spread: 0 logarithmic (the usual choice), 1 geometric, below 0 fewer runs at a lower cost.
        gamma: γ; `expected_runs(eta, gamma)` runs on average.

    >>> orders = tuple(1 + i / 10 for i in range(1, 2000))
    >>> gauss = RdpCurve(orders=orders, values=tuple(0.29**2 * a / 2 for a in orders))
    >>> round(select_epsilon(gauss, 1e-5, eta=0.0, gamma=0.02), 3)
    2.124
    """
    check_delta(delta)
    curve = rdp_curve(base) if isinstance(base, Spending) else base
    return curve_epsilon(selection_curve(curve, eta=eta, gamma=gamma), delta)
