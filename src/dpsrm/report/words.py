"""The guarantee in plain words: what is protected, from whom, and what is not."""

from __future__ import annotations

import math

from dpsrm.core.events import Adjacency
from dpsrm.report.facts import RunFacts


def headline(facts: RunFacts) -> str:
    """One sentence that says what holds."""
    promised = facts.promised
    if promised is None:
        return "This model carries no privacy guarantee."
    unit, epsilon = facts.closing.unit, promised.epsilon
    if epsilon <= 1:
        strength = "a strong promise"
    elif epsilon <= 10:
        strength = "a moderate promise"
    else:
        strength = "a weak promise: above ε = 10 little is proved against a determined attacker"
    return f"What anybody can learn from this model about {unit} is limited. At ε = {epsilon:.3g} this is {strength}."


def protected(facts: RunFacts) -> str:
    """What the promise covers."""
    promised = facts.promised
    if promised is None:
        return "Nothing. Exact statistics of the records were used without noise (ε = ∞)."
    factor = f"{math.exp(promised.epsilon):.3g}" if promised.epsilon < 700 else f"e^{promised.epsilon:.4g}"
    change = "is replaced by any other" if _replaced(facts) else "is added or left out"
    return (
        f"Any {facts.closing.unit.removeprefix('one ')}, one at a time. If it {change}, no outcome becomes more than "
        f"{factor} times as likely, but for a chance of {promised.delta:g} (ε = {promised.epsilon:.4g}, "
        f"δ = {promised.delta:g})."
    )


def from_whom(facts: RunFacts) -> str:
    """Who may look."""
    if facts.promised is None:
        return "From nobody."
    return (
        "From everybody who sees the published files, whatever else they know, even all other records. Not from the "
        "operator, who holds the records."
    )


def not_protected(facts: RunFacts) -> list[str]:
    """What the promise leaves out."""
    seeded = [] if facts.ledger.header.private_randomness else ["Anything, from those who know the seed of this run."]
    unit = facts.closing.unit
    return [
        *seeded,
        f"Several records of one person together: the promise is for {unit}, one at a time.",
        "What is true of people in general: that smokers are ill more often can be learned, and then said of a smoker.",
        "The number of records, the settings, and what the operator declared public.",
        "Choices made by looking at the data, other runs on it, and everything in private/.",
    ]


def _replaced(facts: RunFacts) -> bool:
    """Whether neighbours differ by a replaced record."""
    return facts.ledger.header.adjacency is Adjacency.REPLACE_ONE
