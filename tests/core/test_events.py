"""Events are facts: equal, frozen, readable back, and impossible values are refused."""

import math

import pytest

from dpsrm.core.errors import InputError, LedgerError
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
    event_from_json,
    event_to_json,
)
from dpsrm.core.secret import ClippedSum

WOR = Sampling(scheme=Scheme.WOR, population=100, batch=10)
EVENTS = [
    GaussianRelease(noise_multiplier=0.7, sampling=WOR),
    PureRelease(epsilon=0.3),
    ZcdpRelease(rho=0.01),
    UnprotectedRelease(what="x"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_events_survive_json(event):
    assert event_from_json(event_to_json(event)) == event


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, math.inf, 1])
def test_noise_that_is_none_is_refused(noise):
    with pytest.raises(InputError, match="noise"):
        GaussianRelease(noise_multiplier=noise, sampling=WOR)


@pytest.mark.parametrize(("n", "b"), [(0, 1), (10, 0), (10, 11)])
def test_impossible_batches_are_refused(n, b):
    with pytest.raises(InputError):
        Sampling(scheme=Scheme.WOR, population=n, batch=b)


def test_a_full_batch_has_everything():
    with pytest.raises(InputError, match="full"):
        Sampling(scheme=Scheme.FULL, population=10, batch=9)


@pytest.mark.parametrize(
    "body", [{}, {"kind": "gaussian"}, {"kind": "pure", "epsilon": -1}, {"kind": "pure", "rho": 1}]
)
def test_malformed_events_are_ledger_errors(body):
    with pytest.raises(LedgerError):
        event_from_json(body)


def test_spending_merges_equal_events_and_forgets_order():
    a, b = EVENTS[0], EVENTS[1]
    one = Spending.of([Charge(a, 1), Charge(b, 2), Charge(a, 3)], adjacency=Adjacency.REPLACE_ONE)
    assert one.count(a) == 4
    assert one.releases == 6
    assert one == Spending.of([Charge(a, 4), Charge(b, 2)], adjacency=Adjacency.REPLACE_ONE)


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_charges_never_lower_what_was_spent(count):
    with pytest.raises(InputError):
        Charge(EVENTS[0], count)


def test_sensitivity_of_a_clipped_sum():
    total = ClippedSum(secret=None, bound=1.5, rows=3)
    assert total.sensitivity(Adjacency.REPLACE_ONE) == 3.0
    assert total.sensitivity(Adjacency.ADD_REMOVE) == 1.5
    assert "secret" not in repr(total)
