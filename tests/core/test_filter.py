"""A zCDP filter counts without rounding, and only what has a zCDP price."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsrm.core.errors import LedgerError
from dpsrm.core.events import Adjacency, Charge, PureRelease, Spending, ZcdpRelease
from dpsrm.core.filter import fits_filter, whole_filter, zcdp_sum
from dpsrm.runs.ledger import Header


def spent(*charges):
    return Spending.of([Charge(event, count) for event, count in charges], adjacency=Adjacency.REPLACE_ONE)


@settings(derandomize=True, deadline=None)
@given(prices=st.lists(st.tuples(st.floats(1e-12, 10.0), st.integers(1, 1000)), min_size=1, max_size=9))
def test_the_sum_is_exact(prices):
    total = sum(Fraction(rho) * count for rho, count in prices)
    spending = spent(*((ZcdpRelease(rho=rho), count) for rho, count in prices))
    assert zcdp_sum(spending) == total
    limit = float(total)
    assert fits_filter(spending, math.nextafter(limit, math.inf))
    assert not fits_filter(spending, math.nextafter(limit, 0))


def test_ten_tenths_are_more_than_one():
    """0.1 is a little above a tenth, which a sum of floats would not notice."""
    tenths = spent((ZcdpRelease(rho=0.1), 10))
    assert 0.1 * 10 == 1.0
    assert not fits_filter(tenths, 1.0)


def test_what_has_no_zcdp_price_does_not_fit():
    mixed = spent((ZcdpRelease(rho=0.1), 1), (PureRelease(epsilon=1e-9), 1))
    assert zcdp_sum(mixed) is None
    assert not fits_filter(mixed, 1e9)


def test_a_filtered_run_costs_its_whole_filter():
    assert whole_filter(spent((ZcdpRelease(rho=0.1), 3)), 0.5) == spent((ZcdpRelease(rho=0.5), 1))


@pytest.mark.parametrize("bad", [0.0, -1.0, "1", [], True])
def test_a_header_has_a_filter_that_is_one_or_none(bad):
    header = Header(
        adjacency=Adjacency.REPLACE_ONE,
        epsilon=1.0,
        delta=1e-5,
        accountant="pld",
        private_randomness=True,
        filter_rho=0.25,
    )
    assert Header.from_json(header.to_json()) == header
    with pytest.raises(LedgerError, match="header"):
        Header.from_json({**header.to_json(), "filter_rho": bad})
