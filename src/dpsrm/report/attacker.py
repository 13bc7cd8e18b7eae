"""The section on attackers: what ε and δ mean for somebody who tries, in words, a table and two charts."""

from __future__ import annotations

import math

from dpsrm.report.attack import FALSE_POSITIVES, Attack
from dpsrm.report.charts import Axis, Chart, Curve
from dpsrm.report.markup import Markup, section, table, tag


def attacker(attack: Attack | None) -> Markup:
    """What ε and δ mean for somebody who tries."""
    if attack is None:
        return section("For an attacker", tag("p", "Nothing limits what an attacker can learn."), name="attacker")
    rows = [(f"{100 * rate:g} %", f"{100 * attack.true_positives(rate):.3g} %") for rate in FALSE_POSITIVES]
    words = (
        "Suppose somebody knows every other record, has two candidates for this one, holds both equally likely, and "
        "sees all that was published. Whatever they do, their guess is right at most "
        f"{100 * attack.accuracy:.1f} % of the time (a coin: 50 %)."
    )
    return section(
        "What this means for an attacker",
        tag("p", words),
        table("How often a guess can be right", ("false alarms", "true positives, at most"), rows),
        tag("div", _roc(attack), _posterior(attack), class_="charts"),
        name="attacker",
    )


def _roc(attack: Attack) -> Markup:
    """True against false positives."""
    rates = [10 ** (-3 + 3 * k / 30) for k in range(31)]
    found = [(rate, attack.true_positives(rate)) for rate in rates]
    chart = Chart(
        name="roc",
        title="Finding a record",
        alternative=f"The most true positives any attack reaches: at 1 % false alarms "
        f"{100 * attack.true_positives(0.01):.3g} %. Guessing gives 1 %. Logarithmic axes.",
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
        alternative=f"How often, at most, the belief in the truth rises above a value; above {100 * last:.3g} % with "
        f"probability {found[-1][1]:.1e} or less. Logarithmic upright axis.",
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
