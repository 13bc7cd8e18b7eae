"""What ε and δ mean for an attacker who knows everything but which of two datasets was used, and how ε grew.

All figures follow from δ(ε), which the accountant proves, on a few ε: each is a bound, whatever the attack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dpsrm.accounting import accountant
from dpsrm.accounting.guarantee import percent_up, rounded_up
from dpsrm.core.events import Charge, Spending
from dpsrm.report.facts import RunFacts
from dpsrm.report.page import Axis, Chart, Curve, Markup, section, table, tag

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


def attacker(attack: Attack | None, noun: str = "record") -> Markup:
    """What ε and δ mean for somebody who tries."""
    if attack is None:
        return section("For an attacker", tag("p", "Nothing limits what an attacker can learn."), name="attacker")
    rows = [(f"{100 * rate:g} %", f"{percent_up(attack.true_positives(rate), 3)} %") for rate in FALSE_POSITIVES]
    words = (
        f"Suppose somebody knows every other {noun}, has two candidates for this one, holds both equally likely, and "
        "sees all that was published. Whatever they do, their guess is right at most "
        f"{percent_up(attack.accuracy, 3)} % of the time (a coin: 50 %)."
    )
    return section(
        "What this means for an attacker",
        tag("p", words),
        table("How often a guess can be right", ("false alarms", "true positives, at most"), rows),
        tag("div", _roc(attack, noun), _posterior(attack), class_="charts"),
        name="attacker",
    )


def _roc(attack: Attack, noun: str) -> Markup:
    """True against false positives."""
    rates = [10 ** (-3 + 3 * k / 30) for k in range(31)]
    found = [(rate, attack.true_positives(rate)) for rate in rates]
    chart = Chart(
        name="roc",
        title=f"Finding a {noun}",
        alternative=f"The most true positives any attack reaches: at 1 % false alarms "
        f"{percent_up(attack.true_positives(0.01), 3)} %. Guessing gives 1 %. Logarithmic axes.",
        x=Axis(label="false positives", low=1e-3, high=1.0, log=True),
        y=Axis(label="true positives", low=1e-3, high=1.0, log=True),
        curves=[
            Curve(name="at most", points=found),
            Curve(name="guessing", points=[(1e-3, 1e-3), (1.0, 1.0)], guess=True),
        ],
    )
    return chart.render()


def _posterior(attack: Attack) -> Markup:
    """How far belief can move from one half."""
    least = 1e-9
    odds = [max(attack.epsilons[-1], 0.1) * k / 20 for k in range(1, 21)]
    beliefs = [1 / (1 + math.exp(-min(each, 36.0))) for each in odds]
    found = [(belief, max(attack.exceeds(belief), least)) for belief in beliefs]
    last = found[-1][0]
    chart = Chart(
        name="posterior",
        title="From a belief of one half",
        alternative=f"How often, at most, the belief in the truth rises above a value; above {percent_up(last, 3)} % "
        f"with probability {rounded_up(found[-1][1], 2)} or less. Logarithmic upright axis.",
        x=Axis(label="belief after looking", low=0.5, high=max(last, 0.501)),
        y=Axis(
            label="probability",
            low=min(1e-3, max(least, 10 ** math.floor(math.log10(found[-1][1])))),
            high=1.0,
            log=True,
        ),
        curves=[Curve(name="at most", points=found)],
    )
    return chart.render()


def over_run(facts: RunFacts) -> Markup:
    """ε along the run."""
    points = epsilon_over_run(facts)
    if len(points) < 3:
        if facts.promised is None:
            return Markup("")
        text = "The cost was fixed before the run began; what it released on the way does not change it."
        return section("ε over the run", tag("p", text), name="run")
    limit = facts.ledger.header.epsilon
    last = points[-1]
    curves = [Curve(name="spent", points=points)]
    if limit is not None:
        curves.append(Curve(name="allowed", points=[(0.0, limit), (last[0], limit)], guess=True))
    chart = Chart(
        name="spent",
        title="ε over the run",
        alternative=f"ε of the first releases at the same δ: it rises to {rounded_up(last[1], 4)} after {last[0]:.0f}.",
        x=Axis(label="releases", low=0.0, high=last[0]),
        y=Axis(label="ε", low=0.0, high=1.1 * max(last[1], limit or 0.0)),
        curves=curves,
    )
    return section("ε over the run", chart.render(), name="run")
