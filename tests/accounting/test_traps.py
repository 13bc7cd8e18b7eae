"""Traps in dp-accounting 0.6.0 (accounting.md §4): these tests fail when upstream changes, and we must look again."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp

from dpsrm.accounting.guarantee import gaussian_epsilon

REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
ADD_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


def wor(noise: float) -> dp_accounting.DpEvent:
    """Their event for 2000 releases on 256 of 50 000 records."""
    gauss = dp_accounting.GaussianDpEvent(noise_multiplier=noise)
    return dp_accounting.SelfComposedDpEvent(dp_accounting.SampledWithoutReplacementDpEvent(50_000, 256, gauss), 2000)


def test_under_replace_one_rdp_reads_std_over_sensitivity_but_pld_std_over_clip() -> None:
    event = dp_accounting.GaussianDpEvent(noise_multiplier=2.0)
    by_rdp = rdp.RdpAccountant(orders=[2.0], neighboring_relation=REPLACE_ONE).compose(event).rdp[0]
    by_pld = pld.PLDAccountant(neighboring_relation=REPLACE_ONE).compose(event).get_epsilon(1e-5)
    assert by_rdp == pytest.approx(2 / (2 * 2.0**2))  # α/(2s²) with s = 2: σ/Δ
    assert by_pld == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-3)  # s = 1: it doubled the sensitivity


def test_an_integer_noise_multiplier_is_under_counted_when_nested() -> None:
    """A nested int or float32 is not a `float`, so a ComposedDpEvent of Gaussians loses its noise multiplier."""
    inner = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(2), dp_accounting.GaussianDpEvent(2)])
    honest = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(2.0), dp_accounting.GaussianDpEvent(2.0)])
    found = []
    for event in (inner, honest):
        accountant = rdp.RdpAccountant(orders=[2.0], neighboring_relation=ADD_REMOVE)
        found.append(accountant.compose(dp_accounting.PoissonSampledDpEvent(0.1, event)).rdp[0])
    assert found[0] < 0.6 * found[1]


def test_the_default_bracket_of_their_calibration_divides_by_zero() -> None:
    def make() -> rdp.RdpAccountant:
        return rdp.RdpAccountant(orders=[4.0, 8.0, 9.0, 10.0, 12.0], neighboring_relation=REPLACE_ONE)

    with pytest.raises(ZeroDivisionError):
        dp_accounting.calibrate_dp_mechanism(make, wor, 2.0, 1e-5)
    bracket = dp_accounting.LowerEndpointAndGuess(0.3, 2.0)
    assert dp_accounting.calibrate_dp_mechanism(make, wor, 2.0, 1e-5, bracket) == pytest.approx(1.21, abs=0.01)


def test_the_accountants_constructors_take_their_arguments_in_different_orders() -> None:
    orders = [2.0, 3.0]
    assert list(rdp.RdpAccountant(orders, ADD_REMOVE).orders) == orders
    assert pld.PLDAccountant(ADD_REMOVE).neighboring_relation is ADD_REMOVE
    with pytest.raises((TypeError, ValueError, AttributeError)):
        rdp.RdpAccountant(ADD_REMOVE).compose(dp_accounting.GaussianDpEvent(1.0))


def test_their_pld_does_not_know_sampling_without_replacement() -> None:
    """If this starts to pass upstream, there is a second opinion to compare with."""
    accountant = pld.PLDAccountant(neighboring_relation=REPLACE_ONE)
    assert not accountant.supports(wor(1.0))


def test_their_rdp_does_not_know_poisson_under_replace_one() -> None:
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
    assert not rdp.RdpAccountant(neighboring_relation=REPLACE_ONE).supports(event)


def test_their_forward_differences_lose_the_high_moments() -> None:
    """Why `curves` integrates instead: at s = 30 their 20th difference is rounding noise."""
    from dp_accounting.rdp import rdp_privacy_accountant as theirs

    from dpsrm.accounting import curves

    logs, _ = theirs._get_forward_diffs(lambda x: x * (x + 1) / (2 * 30.0**2), 30)
    ours = curves._log_even_moments(30.0, 10)
    assert ours[0] == pytest.approx(logs[1], rel=1e-6)
    assert ours[-1] == pytest.approx(np.log(654729075.0) - 20 * np.log(30.0), rel=0.05)  # 19!!/s²⁰
    assert abs(ours[-1] - logs[19]) > 1
