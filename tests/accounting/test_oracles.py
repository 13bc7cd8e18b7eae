"""Other people's accountants, where they answer the same question; and arithmetic with 50 digits."""

from __future__ import annotations

import math
import warnings

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld as their_pld
from dp_accounting import rdp as their_rdp

from dpsrm.accounting import curves
from dpsrm.accounting.calibrate import ACCOUNTANTS
from dpsrm.accounting.guarantee import gaussian_delta, gaussian_epsilon

ADD_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
PLD, RDP, RDP9 = (ACCOUNTANTS[name] for name in ("pld", "rdp", "rdp9"))


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 1000), (0.1, 2.0, 300), (0.5, 4.0, 50)])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_poisson_equals_dp_accountings_pld(spend, rate, noise, steps, adjacency) -> None:
    """dp-accounting doubles the sensitivity under REPLACE_ONE itself: its standard deviation is 2·s."""
    doubled = adjacency == "replace-one"
    theirs = their_pld.privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise * (2.0 if doubled else 1.0),
        sampling_prob=rate,
        neighboring_relation=REPLACE_ONE if doubled else ADD_REMOVE,
        value_discretization_interval=2e-5,
    ).self_compose(steps)
    ours = PLD.epsilon(spend(10_000, round(10_000 * rate), steps, noise, "poisson", adjacency), 1e-5).epsilon
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=3e-4)


@pytest.mark.parametrize("noise", [0.7, 3.0, 40.0])
def test_full_batch_equals_dp_accountings_gaussian(noise) -> None:
    theirs = dp_accounting.get_epsilon_gaussian(sigma=noise, delta=1e-5)
    assert gaussian_epsilon(noise, 1e-5) == pytest.approx(theirs, rel=1e-6)
    for delta in (1e-12, 1e-9, 1e-5, 1e-3):
        assert gaussian_delta(noise, gaussian_epsilon(noise, delta)) <= delta  # the upper end of the bisection


@pytest.mark.parametrize(("rate", "noise"), [(0.001, 0.6), (0.005, 1.0), (0.02, 2.0), (0.1, 8.0)])
def test_wor_curve_equals_dp_accountings(rate, noise) -> None:
    orders = np.array([1.5, 2.0, 3.0, 4.0, 4.5, 7.0, 16.0, 33.0, 64.0])
    accountant = their_rdp.RdpAccountant(orders=orders, neighboring_relation=REPLACE_ONE)
    gauss = dp_accounting.GaussianDpEvent(noise_multiplier=float(noise))
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(10_000, round(rate * 10_000), gauss))
    theirs = np.minimum(accountant.rdp, curves.gaussian(noise, orders))
    np.testing.assert_allclose(curves.wor_gaussian(rate, noise, orders), theirs, rtol=1e-6)


@pytest.mark.parametrize(("rate", "noise"), [(0.001, 0.6), (0.01, 1.0), (0.1, 3.0), (0.7, 10.0)])
def test_poisson_curve_equals_dp_accountings(rate, noise) -> None:
    orders = np.array([2.0, 3.0, 8.0, 20.0, 50.0])
    accountant = their_rdp.RdpAccountant(orders=orders, neighboring_relation=ADD_REMOVE)
    gauss = dp_accounting.GaussianDpEvent(noise_multiplier=float(noise))
    accountant.compose(dp_accounting.PoissonSampledDpEvent(sampling_probability=rate, event=gauss))
    np.testing.assert_allclose(curves.poisson_add_remove(rate, noise, orders), accountant.rdp, rtol=1e-8)


@pytest.mark.parametrize(("rate", "noise", "order"), [(0.01, 1.0, 2.0), (0.2, 0.8, 3.5), (0.9, 2.0, 12.0)])
def test_poisson_replace_curve_with_fifty_digits(rate, noise, order) -> None:
    with mpmath.workdps(50):

        def ratio_power(x: mpmath.mpf) -> mpmath.mpf:
            still, up, down = (mpmath.npdf(x, mean, noise) for mean in (0, mpmath.mpf(1) / 2, -mpmath.mpf(1) / 2))
            return ((1 - rate) * still + rate * up) ** order * ((1 - rate) * still + rate * down) ** (1 - order)

        moment = mpmath.quad(ratio_power, [-15 * noise - order, -1, 0, 1, order, 15 * noise + order])
        exact = float(mpmath.log(moment) / (order - 1))
    assert curves.poisson_replace(rate, noise, np.array([order]))[0] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("noise", "epsilon"), [(0.3, 1.0), (1.0, 0.5), (5.0, 3.0), (0.05, 300.0)])
def test_gaussian_delta_with_fifty_digits(noise, epsilon) -> None:
    with mpmath.workdps(50):
        mu, e = 1 / mpmath.mpf(noise), mpmath.mpf(epsilon)
        exact = float(mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu))
    assert gaussian_delta(noise, epsilon) == pytest.approx(exact, rel=1e-8)


def test_one_wor_release_with_fifty_digits(spend) -> None:
    """T = 1: δ(ε) is h(e^ε) itself."""
    rate, noise, epsilon = mpmath.mpf(1) / 100, mpmath.mpf(1), mpmath.mpf("0.05")
    with mpmath.workdps(50):
        inner = 1 + mpmath.expm1(epsilon) / rate
        half, shift = 1 / (2 * noise), noise * mpmath.log(inner)
        exact = float(rate * (mpmath.ncdf(half - shift) - inner * mpmath.ncdf(-half - shift)))
    found = PLD.delta(spend(1000, 10, 1, 1.0), 0.05).delta
    assert exact <= found <= exact * (1 + 1e-3)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 1000), (0.002, 0.8, 3000)])
def test_rdp9_equals_autodp(spend, rate, noise, steps) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from autodp import rdp_acct, rdp_bank

        accountant = rdp_acct.anaRDPacct()
        accountant.compose_subsampled_mechanism(
            lambda order: rdp_bank.RDP_gaussian({"sigma": noise}, order), rate, coeff=steps
        )
        theirs = accountant.get_eps(1e-5)
    assert RDP9.epsilon(spend(10_000, round(rate * 10_000), steps, noise), 1e-5).epsilon == pytest.approx(
        theirs, rel=1e-3
    )


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 1000), (0.05, 3.0, 200)])
def test_poisson_add_remove_within_prv_accountants_bounds(spend, rate, noise, steps) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

        mechanism = PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
        accountant = PRVAccountant(prvs=[mechanism], max_self_compositions=[steps], eps_error=0.01, delta_error=1e-10)
        low, estimate, high = accountant.compute_epsilon(delta=1e-5, num_self_compositions=[steps])
    ours = PLD.epsilon(spend(10_000, round(rate * 10_000), steps, noise, "poisson", "add-remove"), 1e-5).epsilon
    assert low <= ours <= high
    assert ours == pytest.approx(estimate, rel=1e-3)


def test_every_curve_rises_with_the_order() -> None:
    orders = np.linspace(1.1, 60, 200)
    for curve in (curves.wor_gaussian, curves.poisson_replace, curves.poisson_add_remove):
        values = curve(0.01, 1.0, orders)
        assert np.all(np.diff(values) >= -1e-15)
        assert np.all(values >= 0)
        assert math.isfinite(values[-1])
    assert RDP.name == "rdp"
