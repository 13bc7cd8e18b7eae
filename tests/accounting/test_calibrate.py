"""Calibration: never under the noise that is needed, at most 0.1 % over it; steps; curves; selection."""

from __future__ import annotations

import math
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsrm.accounting import (
    RdpCurve,
    calibrate_noise,
    epsilon_curve,
    expected_runs,
    max_steps,
    rdp_curve,
    select_epsilon,
)
from dpsrm.accounting.calibrate import ACCOUNTANTS
from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency, Charge, GaussianRelease, PureRelease, Sampling, Scheme, Spending

PLD, RDP = ACCOUNTANTS["pld"], ACCOUNTANTS["rdp"]


def plan(noise: float, steps: int, first: int = 400) -> Spending:
    """DP-SRM's shape: one release on a larger batch, the rest on 100 of 20 000 records."""
    sizes = [(first, 1), (100, steps - 1)] if steps > 1 else [(first, 1)]
    return Spending.of(
        [
            Charge(
                GaussianRelease(
                    noise_multiplier=noise, sampling=Sampling(scheme=Scheme.WOR, population=20_000, batch=batch)
                ),
                count,
            )
            for batch, count in sizes
        ],
        adjacency=Adjacency.REPLACE_ONE,
    )


@settings(max_examples=8, derandomize=True, deadline=None)
@given(epsilon=st.floats(0.05, 10), steps=st.integers(1, 2000), name=st.sampled_from(["pld", "rdp9"]))
def test_never_under_and_at_most_a_thousandth_over(epsilon, steps, name) -> None:
    by = ACCOUNTANTS[name]
    noise = calibrate_noise(lambda s: plan(s, steps), accountant=by, epsilon=epsilon, delta=1e-6)
    assert by.epsilon(plan(noise, steps), 1e-6).epsilon <= epsilon
    assert by.epsilon(plan(noise / 1.001, steps), 1e-6).epsilon > epsilon


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_a_budget_that_is_nearly_met_is_not_met(noise) -> None:
    """The bracket's ends are powers of 2: one that costs half a percent too much must not be taken for a fit."""
    epsilon = RDP.epsilon(plan(noise, 100), 1e-6).epsilon / 1.005
    found = calibrate_noise(lambda s: plan(s, 100), accountant=RDP, epsilon=epsilon, delta=1e-6)
    assert found > noise
    assert RDP.epsilon(plan(found, 100), 1e-6).epsilon <= epsilon


def test_a_calibration_takes_at_most_two_seconds(spend) -> None:
    for name in ("pld", "rdp"):
        start = time.process_time()
        calibrate_noise(lambda s: spend(32561, 50, 2605, s), accountant=ACCOUNTANTS[name], epsilon=0.2, delta=1e-5)
        assert time.process_time() - start < 2


def test_growing_counts_are_cheap() -> None:
    PLD.epsilon(plan(1.0, 5000), 1e-5)
    start = time.process_time()
    curve = epsilon_curve(lambda t: plan(1.0, t), range(0, 5000, 100), accountant=PLD, delta=1e-5)
    assert time.process_time() - start < 4
    assert curve[0] == 0
    assert all(a <= b for a, b in pairwise(curve))


@pytest.mark.parametrize("accountant", [PLD, RDP])
def test_max_steps_is_the_last_that_fits(accountant) -> None:
    steps = max_steps(lambda t: plan(1.0, t), accountant=accountant, epsilon=2.0, delta=1e-5)
    assert accountant.epsilon(plan(1.0, steps), 1e-5).epsilon <= 2.0
    assert accountant.epsilon(plan(1.0, steps + 1), 1e-5).epsilon > 2.0


def test_max_steps_of_an_impossible_budget_is_zero() -> None:
    assert max_steps(lambda t: plan(0.3, t, first=20_000), accountant=PLD, epsilon=0.1, delta=1e-5) == 0
    with pytest.raises(InputError, match="more than 10⁹ steps"):
        max_steps(lambda t: plan(1000.0, 1), accountant=RDP, epsilon=5.0, delta=1e-5)


def test_noise_that_cannot_help_is_an_error() -> None:
    def make(noise: float) -> Spending:
        return plan(noise, 10).plus(PureRelease(epsilon=1.0), 1)

    with pytest.raises(InputError, match=r"no noise multiplier up to .* drop the releases"):
        calibrate_noise(make, accountant=RDP, epsilon=0.5, delta=1e-5)


def test_a_budget_met_without_noise_gets_the_least_noise(spend) -> None:
    """q = 1e-6 is below δ: even no noise at all would do for one release."""
    found = calibrate_noise(lambda s: spend(10**6, 1, 1, s), accountant=PLD, epsilon=1.0, delta=1e-5)
    assert found == pytest.approx(0.01)
    for noise in (0.1, 0.046, 0.03, 0.01):
        assert PLD.delta(spend(10**6, 1, 1, noise), 1.0).delta == pytest.approx(1e-6, rel=1e-2)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_calibration_refuses_a_budget_that_is_none(spend, epsilon) -> None:
    with pytest.raises(InputError, match="epsilon"):
        calibrate_noise(lambda s: spend(100, 10, 1, s), accountant=PLD, epsilon=epsilon, delta=1e-5)


@pytest.mark.parametrize(
    ("eta", "gamma", "runs", "epsilon"),
    [(0.0, 0.02, 12.5, 2.124), (0.0, 0.004, 45.1, 2.353), (1.0, 0.02, 50.0, 2.975), (-0.5, 0.01, 5.5, 1.722)],
)
def test_selection_golden_values(eta, gamma, runs, epsilon) -> None:
    """accounting.md §5: a Gaussian base with μ = 0.29, whose own ε is 1.190."""
    orders = tuple(1 + i / 20 for i in range(1, 5000))
    base = RdpCurve(orders=orders, values=tuple(0.29**2 * a / 2 for a in orders))
    assert select_epsilon(base, 1e-5, eta=eta, gamma=gamma) == pytest.approx(epsilon, abs=6e-4)
    assert expected_runs(eta, gamma) == pytest.approx(runs, rel=3e-3)
    full = Sampling(scheme=Scheme.FULL, population=1, batch=1)
    spent = Spending.of(
        [Charge(GaussianRelease(noise_multiplier=1 / 0.29, sampling=full), 1)], adjacency=Adjacency.REPLACE_ONE
    )
    assert select_epsilon(spent, 1e-5, eta=eta, gamma=gamma) == pytest.approx(epsilon, abs=2e-3)
    assert rdp_curve(spent).values[0] == pytest.approx(0.29**2 * rdp_curve(spent).orders[0] / 2)


def test_selection_agrees_with_dp_accounting(spend) -> None:
    import dp_accounting
    from dp_accounting import rdp

    base = rdp_curve(spend(50_000, 256, 2000, 1.5))
    theirs = rdp.RdpAccountant(
        orders=list(base.orders), neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    gauss = dp_accounting.GaussianDpEvent(noise_multiplier=5.0)
    theirs.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(gauss, mean=expected_runs(0.0, 0.05), shape=0.0))
    curve = RdpCurve(orders=base.orders, values=tuple(a / 50 for a in base.orders))
    assert select_epsilon(curve, 1e-5, eta=0.0, gamma=0.05) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)


def test_selection_costs_more_than_one_run_and_rises_with_the_runs(spend) -> None:
    spent = spend(50_000, 256, 500, 1.5)
    one = RDP.epsilon(spent, 1e-5).epsilon
    few, many = (select_epsilon(spent, 1e-5, eta=0.0, gamma=gamma) for gamma in (0.1, 0.001))
    assert one < few < many


@pytest.mark.parametrize(("eta", "gamma"), [(-1.0, 0.1), (0.0, 0.0), (0.0, 1.0), (math.nan, 0.1), (0.0, math.nan)])
def test_selection_refuses_bad_parameters(eta, gamma) -> None:
    with pytest.raises(InputError, match=r"eta|gamma"):
        expected_runs(eta, gamma)
