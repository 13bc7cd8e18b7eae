"""Bounds as people read them: never better than what was proved, and no more than one unit of the last digit worse."""

import math
import random
import re
from decimal import Decimal
from types import SimpleNamespace

import pytest

from dpsrm.accounting import Guarantee
from dpsrm.accounting.guarantee import exponential_up, percent_up, rounded_down, rounded_up
from dpsrm.core.events import Adjacency
from dpsrm.core.isolation import Isolation
from dpsrm.report.attack import Attack, attacker
from dpsrm.report.checklist import formal
from dpsrm.report.facts import headline, protected
from dpsrm.runs.certificate import _promise
from dpsrm.runs.ledger import Closing, Header

RNG = random.Random(0)
VALUES = [10 ** RNG.uniform(-12, 12) for _ in range(300)] + [1.0, 1e-5, 0.1, 0.3, 9.9999999, 5e-324, 1e300]
EPSILONS = [10 ** RNG.uniform(-3, 1.5) for _ in range(50)] + [10.0349, 1.0]


def unit(text):
    """One unit of the last of so many digits of the number that `text` is."""
    return lambda digits: Decimal(10) ** (Decimal(text).adjusted() - digits + 1)


@pytest.mark.parametrize("digits", [1, 3, 4, 6])
@pytest.mark.parametrize("value", VALUES)
def test_what_is_printed_bounds_the_value_by_less_than_a_unit(value, digits):
    above, below = rounded_up(value, digits), rounded_down(value, digits)
    assert float(below) <= value <= float(above)
    if value > 1e-300:
        assert Decimal(above) - Decimal(repr(value)) < unit(above)(digits)
        assert Decimal(repr(value)) - Decimal(below) < unit(repr(value))(digits)


def test_what_needs_no_rounding_is_printed_as_it_is():
    assert [rounded_up(value) for value in (1e-5, 0.1, 3, 2.5, 0.0, math.inf)] == [
        "1e-05",
        "0.1",
        "3",
        "2.5",
        "0",
        "inf",
    ]


@pytest.mark.parametrize("epsilon", [*EPSILONS, 1e-9, 300.0, 699.9])
def test_the_factor_is_never_below_the_exponential(epsilon):
    found, exact = Decimal(exponential_up(epsilon, 4)), Decimal(epsilon).exp()
    assert exact < found < exact + unit(str(found))(4)


@pytest.mark.parametrize("epsilon", [700.0, 1234.5, 1e6])
def test_a_factor_beyond_floats_is_a_power_of_ten(epsilon):
    power = Decimal(exponential_up(epsilon, 4).removeprefix("10^"))
    assert power >= Decimal(epsilon) / Decimal(10).ln()


def test_percents_are_exact_before_they_are_rounded():
    assert [percent_up(share, 3) for share in (0.07, 0.5, 1.0, 0.62341)] == ["7", "50", "100", "62.4"]


def numbers(pattern, text):
    """All numbers that follow `pattern`."""
    return [float(found) for found in re.findall(f"(?:{pattern})" + r"([0-9.e+-]*[0-9])", text)]


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_page_shows_less_than_was_proved(epsilon):
    """ε, δ and e^ε were rounded to the nearest: half of all certificates stated less than was proved."""
    delta = 1.2345649e-5
    proved = Guarantee(epsilon=epsilon, delta=delta, accountant="pld", adjacency=Adjacency.REPLACE_ONE)
    header = Header(adjacency=proved.adjacency, epsilon=99.0, delta=delta, accountant="pld", private_randomness=True)
    closing = Closing(released=1, unit="one record", isolation=Isolation.ALONE, engine="ghost", files={})
    facts = SimpleNamespace(promised=proved, ledger=SimpleNamespace(header=header), closing=closing, header=header)
    certificate = _promise(facts, proved, closing)
    told = headline(facts).removesuffix("above ε = 10 little is proved against a determined attacker.")
    for text in (certificate, protected(facts), told):
        assert numbers("(?<!\\^)ε = ", text)
        assert all(found >= epsilon for found in numbers("(?<!\\^)ε = ", text)), text
    for text in (certificate, protected(facts)):
        assert all(found >= delta for found in numbers("δ = |chance of ", text)), text
    assert numbers("e\\^ε = ", certificate)[0] >= math.exp(epsilon)
    assert numbers("more than ", protected(facts))[0] >= math.exp(epsilon)
    assert numbers("e\\^", formal(facts))[0] >= epsilon
    assert numbers(" \\+ ", formal(facts))[0] >= delta


@pytest.mark.parametrize("epsilon", EPSILONS[:10])
def test_attackers_are_not_shown_weaker_than_proved(epsilon):
    attack = Attack([0.0, epsilon], [min(epsilon / 4, 0.9), 1e-5])
    page = attacker(attack, "record")
    assert numbers("right at most ", page)[0] >= 100 * attack.accuracy
    assert numbers("at 1 % false alarms ", page)[0] >= 100 * attack.true_positives(0.01)
