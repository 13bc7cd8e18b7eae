"""What a search costs, and how little noise each of its tries may have: Papernot & Steinke's bound, solved for a try.

A try trains on one part of the records and is scored, with noise, on the other: a record is in one part only, so a try
costs the dearer of the two, not their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpsrm.accounting.rdp import ORDERS, RdpCurve, rdp_curve
from dpsrm.accounting.selection import runs_to_gamma, select_epsilon
from dpsrm.core.errors import need
from dpsrm.core.events import Spending
from dpsrm.estimators.base import PrivateEstimator
from dpsrm.training.defaults import choose
from dpsrm.training.plan import make_plan

ETA = 0.0
"""How the number of tries is spread: the logarithmic distribution."""
_ROUNDS = 8


@dataclass(frozen=True, kw_only=True)
class TryPlan:
    """What one try may cost, and what choosing the best of them costs.

    Attributes:
        epsilon: the ε that each try's noise is calibrated to.
        curve: the Rényi curve of the dearest try; no try may exceed it at any order.
        score_noise: standard deviation ÷ sensitivity of the noise on a score.
        total: ε of the whole search.
    """

    epsilon: float
    curve: RdpCurve
    score_noise: float
    total: float

    def covers(self, spending: Spending) -> bool:
        """Whether a try that may spend this is paid for."""
        values = rdp_curve(spending).values
        return all(value <= paid for value, paid in zip(values, self.curve.values, strict=True))


def plan_tries(
    candidates: Sequence[PrivateEstimator], *, n: int, epsilon: float, delta: float, tries: float
) -> TryPlan:
    """The least noise with which choosing the best of about `tries` tries stays below (ε, δ).

    Args:
        candidates: the estimators that a try may pick, all of which count: the dearest is what every try is charged.
        n: the records that a try trains on.

    Guarantee: `total` ≤ ε, by `select_epsilon`.
    """
    gamma = runs_to_gamma(tries, eta=ETA)
    low, high, found = epsilon / 100, epsilon, None
    for _ in range(_ROUNDS):
        middle = float(np.sqrt(low * high))
        plan = _plan(candidates, middle, n=n, delta=delta, gamma=gamma)
        if plan.total <= epsilon:
            low, found = middle, plan
        else:
            high = middle
    need(found is not None, "so small a budget leaves no room for a search", epsilon=epsilon, tries=tries)
    assert found is not None
    return found


def _plan(candidates: Sequence[PrivateEstimator], each: float, *, n: int, delta: float, gamma: float) -> TryPlan:
    """The plan in which every try is calibrated to ε = `each`."""
    curves = np.array([rdp_curve(_reserved(one, each, n=n, delta=delta)).values for one in candidates])
    dearest = curves.max(axis=0)
    orders = np.array(ORDERS)
    noise = float(np.sqrt(np.max(orders / (2 * dearest))))
    curve = RdpCurve(orders=tuple(orders.tolist()), values=tuple(dearest.tolist()))
    total = select_epsilon(curve, delta, eta=ETA, gamma=gamma)
    return TryPlan(epsilon=each, curve=curve, score_noise=noise, total=total)


def _reserved(candidate: PrivateEstimator, epsilon: float, *, n: int, delta: float) -> Spending:
    """The most that a fit of the candidate with this ε may charge."""
    settings, shape, choices = candidate.set_params(epsilon=epsilon, delta=delta).asked(n, classes=candidate.outcomes)
    chosen = choose(settings, shape, choices)
    schedule = chosen.training.schedule(n, fixed=chosen.method.batch_for(n))
    return make_plan(chosen.method, schedule, n=n, privacy=chosen.privacy).reserved
