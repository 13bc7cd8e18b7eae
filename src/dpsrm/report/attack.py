"""What ε and δ mean for an attacker who knows everything but which of two datasets was used.

All figures follow from δ(ε), which the accountant proves, on a few ε: each is a bound, whatever the attack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dpsrm.accounting import accountant
from dpsrm.core.events import Charge, Spending
from dpsrm.report.facts import RunFacts

FALSE_POSITIVES = (0.001, 0.01, 0.1)
"""Where the table looks."""
_AT, _MOST = 10, 1.25
"""How many ε are asked, up to how many times the promised one."""


@dataclass(frozen=True)
class Attack:
    """δ at some ε, both proved; ε ascending from 0."""

    epsilons: Sequence[float]
    deltas: Sequence[float]

    def true_positives(self, false_positives: float) -> float:
        """The most a test finds at this rate of false alarms (Wasserman & Zhou 2010; Kairouz, Oh & Viswanath 2015).

        >>> round(Attack([math.log(2)], [0.0]).true_positives(0.1), 6)
        0.2
        """
        bounds = [1.0]
        for epsilon, delta in zip(self.epsilons, self.deltas, strict=True):
            bounds.append(math.exp(min(epsilon, 700.0)) * false_positives + delta)
            bounds.append(1 - math.exp(-epsilon) * (1 - false_positives - delta))
        return max(min(bounds), 0.0)

    def exceeds(self, belief: float) -> float:
        """How often, at most, the belief in the truth rises from ½ above `belief`.

        Let ℓ be the logarithm of the odds. For ε < ε' = ln(p/(1−p)): δ(ε) ≥ E(1 − e^{ε−ℓ})₊ ≥ (1 − e^{ε−ε'})·P(ℓ > ε').

        >>> Attack([0.5], [0.0]).exceeds(0.7)
        0.0
        """
        odds = math.log(belief / (1 - belief))
        pairs = zip(self.epsilons, self.deltas, strict=True)
        return min([1.0, *(delta / -math.expm1(epsilon - odds) for epsilon, delta in pairs if epsilon < odds)])

    @property
    def accuracy(self) -> float:
        """How often, at most, a guess between two equally likely datasets is right: (1 + δ(0))/2."""
        return min((1 + self.deltas[0]) / 2, 1.0)


def attack_on(facts: RunFacts) -> Attack | None:
    """What the run's own accountant proves; None without a guarantee."""
    promised, proved = facts.promised, facts.proved
    if promised is None or proved is None:
        return None
    known = sorted([*_profile(promised.accountant, proved, promised.epsilon), (promised.epsilon, promised.delta)])
    return Attack([epsilon for epsilon, _ in known], [delta for _, delta in known])


@lru_cache(maxsize=64)
def _profile(name: str, spending: Spending, epsilon: float) -> tuple[tuple[float, float], ...]:
    """(ε, δ) that the accountant proves, at some ε up to a little above `epsilon`."""
    wanted = (_MOST * epsilon * k / (_AT - 1) for k in range(_AT))
    return tuple((each, accountant(name).delta(spending, each).delta) for each in wanted)


def epsilon_over_run(facts: RunFacts, *, points: int = 7) -> list[tuple[float, float]]:
    """(releases, ε of so many) along what was planned, in the ledger's order; empty where ε was fixed beforehand."""
    promised, proved = facts.promised, facts.proved
    if promised is None or proved is None or facts.ledger.header.filter_rho is not None:
        return []
    counts = sorted({max(1, round(proved.releases * (k / points) ** 2)) for k in range(1, points + 1)})
    found = [(float(count), _cost(promised.accountant, _first(proved, count), promised.delta)) for count in counts]
    return [(0.0, 0.0), *((count, epsilon) for count, epsilon in found if math.isfinite(epsilon))]


@lru_cache(maxsize=256)
def _cost(name: str, spending: Spending, delta: float) -> float:
    """ε of some releases."""
    return accountant(name).epsilon(spending, delta).epsilon


def _first(spending: Spending, count: int) -> Spending:
    """The first `count` releases, kind after kind."""
    charges, left = [], count
    for charge in spending.charges:
        taken = min(left, charge.count)
        if taken > 0:
            charges.append(Charge(charge.event, taken))
        left -= taken
    return Spending.of(charges, adjacency=spending.adjacency)
