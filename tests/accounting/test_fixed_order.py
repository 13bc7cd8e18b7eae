"""Rényi accounting at one order: never below the least over all orders, and the order is a good one for its budget."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsrm.accounting import RenyiAccountant
from dpsrm.accounting.calibrate import accountant
from dpsrm.accounting.fixed_order import at_order, best_order, conversion_cost
from dpsrm.accounting.paper import PAPER
from dpsrm.accounting.rdp import ORDERS
from dpsrm.core.errors import InputError
from dpsrm.core.events import (
    Adjacency,
    Charge,
    GaussianRelease,
    PureRelease,
    Sampling,
    Scheme,
    Spending,
    UnprotectedRelease,
    ZcdpRelease,
)

POISSON = Sampling(scheme=Scheme.POISSON, population=10_000, batch=100)


def spent(*charges):
    return Spending.of([Charge(event, count) for event, count in charges], adjacency=Adjacency.REPLACE_ONE)


MIXED = spent(
    (GaussianRelease(noise_multiplier=1.0, sampling=POISSON), 200),
    (ZcdpRelease(rho=0.01), 2),
    (PureRelease(epsilon=0.1), 1),
)


@settings(derandomize=True, deadline=None)
@given(order=st.sampled_from(ORDERS), delta=st.sampled_from([1e-10, 1e-5, 1e-2]))
def test_one_order_says_no_less_than_the_best(order, delta):
    fixed = at_order(order)
    assert fixed.epsilon(MIXED, delta).epsilon >= accountant("rdp").epsilon(MIXED, delta).epsilon * (1 - 1e-12)
    assert fixed.delta(MIXED, 1.0).delta >= accountant("rdp").delta(MIXED, 1.0).delta * (1 - 1e-12)


def test_the_best_of_all_orders_is_the_rdp_accountants():
    least = min(at_order(order).epsilon(MIXED, 1e-5).epsilon for order in ORDERS)
    assert least == pytest.approx(accountant("rdp").epsilon(MIXED, 1e-5).epsilon, rel=1e-12)


def test_it_is_the_sum_of_the_divergences_and_the_cost_of_conversion():
    """So ε(spending) ≤ ε* is Σρ(α) ≤ ε* − c(α): a filter at one order."""
    whole = at_order(16.0).epsilon(spent((ZcdpRelease(rho=0.02), 3)), 1e-5).epsilon
    assert whole == pytest.approx(16.0 * 0.06 + conversion_cost(16.0, 1e-5), rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0, 8.0])
def test_the_order_chosen_for_a_budget_is_best_for_zcdp_that_spends_it(epsilon):
    order = best_order(epsilon, 1e-5)
    rho = (epsilon - conversion_cost(order, 1e-5)) / order
    assert at_order(order).epsilon(spent((ZcdpRelease(rho=rho), 1)), 1e-5).epsilon == pytest.approx(epsilon)
    assert accountant("rdp").epsilon(spent((ZcdpRelease(rho=rho), 1)), 1e-5).epsilon == pytest.approx(epsilon)


def test_no_noise_no_guarantee_and_no_curve_no_order():
    bare = spent((UnprotectedRelease(what="a sum"), 1))
    answers = at_order(8.0).epsilon(bare, 1e-5), at_order(8.0).delta(bare, 1.0)
    assert answers[0].epsilon == math.inf
    assert answers[1].delta == 1.0
    assert not any(answer.holds for answer in answers)
    for order in (math.pi, None):
        with pytest.raises(InputError, match="order"):
            at_order(order)
    with pytest.raises(InputError, match="order"):
        RenyiAccountant(PAPER, order=2.5)
