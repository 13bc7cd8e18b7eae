"""One release: its PLD against the profile it must dominate, computed independently of any grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binom, norm

from dpsrm.accounting import PldAccountant, curves, pld_atoms, pld_pairs
from dpsrm.accounting.guarantee import gaussian_delta
from dpsrm.accounting.pld_compose import compose
from dpsrm.accounting.pld_grid import Pld
from dpsrm.accounting.pld_tilt import tilt_for_delta
from dpsrm.core.events import Adjacency, Charge, PureRelease, Spending

RATES = [1e-4, 0.01, 0.3, 0.9]
NOISES = [0.4, 1.0, 3.0]


def profile(pld: Pld, gamma: float) -> float:
    """H_γ of a PLD, summed directly."""
    return pld.infinite + float(np.sum(np.maximum(pld.mass - gamma * pld.mass * np.exp(-pld.losses), 0)))


def h(gamma: float, rate: float, noise: float) -> float:
    """The WOR profile of the design: q·G_s(1 + (γ−1)/q), and its mirror image below 1."""
    if gamma < 1:
        return 1 - gamma + gamma * h(1 / gamma, rate, noise)
    inner = 1 + (gamma - 1) / rate
    half, shift = 1 / (2 * noise), noise * math.log(inner)
    return rate * float(ndtr(half - shift) - inner * ndtr(-half - shift))


def opposed(gamma: float, rate: float, noise: float, g: float = 0.5, other: float = -0.5) -> float:
    """H_γ((1−q)N(0)+qN(g) ‖ (1−q)N(0)+qN(other)) by a fine sum."""
    x = np.arange(-1 - 12 * noise, 1 + 12 * noise, noise / 400)
    still = norm.pdf(x, 0, noise)
    p, q = ((1 - rate) * still + rate * norm.pdf(x, mean, noise) for mean in (g, other))
    return float(np.sum(np.maximum(p - gamma * q, 0)) * noise / 400)


@pytest.mark.parametrize("rate", [*RATES, 1.0])
@pytest.mark.parametrize("noise", NOISES)
def test_wor_dominates_its_profile_and_hardly_exceeds_it(rate, noise) -> None:
    dx = 0.02 * math.sqrt(pld_pairs.variance(pld_pairs.Shifted(rate=rate, noise=noise)))
    pld = pld_pairs.wor(rate, noise, dx)
    assert pld.mass.sum() + pld.infinite == pytest.approx(1, abs=1e-13)
    scale = 2 * h(1.0, rate, noise)
    for gamma in np.exp(scale * np.linspace(-3, 3, 25)):
        exact = h(float(gamma), rate, noise)
        assert exact - 1e-15 <= profile(pld, float(gamma)) <= exact + 2e-3 * h(1.0, rate, noise)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("noise", NOISES)
def test_mirror_law(rate, noise) -> None:
    dx = 0.02 * math.sqrt(pld_pairs.variance(pld_pairs.Opposed(rate=rate, noise=noise)))
    for pld in (pld_pairs.wor(rate, noise, dx), pld_pairs.poisson_replace(rate, noise, dx)):
        right, left = pld.index > 0, pld.index < 0
        np.testing.assert_array_equal(pld.index[left][::-1], -pld.index[right])
        np.testing.assert_allclose(pld.mass[left][::-1], pld.mass[right] * np.exp(-pld.losses[right]), rtol=1e-12)
        assert pld.mass.sum() + pld.infinite == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("noise", NOISES)
def test_poisson_replace_dominates_its_pair(rate, noise) -> None:
    dx = 0.02 * math.sqrt(pld_pairs.variance(pld_pairs.Opposed(rate=rate, noise=noise)))
    pld = pld_pairs.poisson_replace(rate, noise, dx)
    for loss in dx * np.array([-80.0, -3.3, 0.0, 10.5, 60.7, 150.2]):
        exact = opposed(math.exp(loss), rate, noise)
        assert exact - 1e-7 * rate <= profile(pld, math.exp(loss)) <= exact + 2e-3 * opposed(1.0, rate, noise)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    rate=st.floats(0.01, 0.99),
    noise=st.floats(0.2, 4),
    g=st.floats(-0.5, 0.5),
    other=st.floats(-0.5, 0.5),
    gamma=st.floats(0.3, 4),
)
def test_no_placement_of_two_records_beats_the_opposed_pair(rate, noise, g, other, gamma) -> None:
    """Kahane's inequality (docs/decisions/poisson.md), checked on a line."""
    assert opposed(gamma, rate, noise, g, other) <= opposed(gamma, rate, noise) + 1e-7


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("noise", NOISES)
def test_add_and_remove_are_exchanged_sides_of_one_pair(rate, noise) -> None:
    """H_γ(base‖mix) = 1 − γ + γ·H_{1/γ}(mix‖base), and mix‖base is h at γ ≥ 1."""
    dx = 0.02 * math.sqrt(pld_pairs.variance(pld_pairs.Shifted(rate=rate, noise=noise)))
    remove, add = pld_pairs.poisson_remove(rate, noise, dx), pld_pairs.poisson_add(rate, noise, dx)
    for pld in (remove, add):
        assert pld.mass.sum() + pld.infinite == pytest.approx(1, abs=1e-12)
    for k in (0, 1, 7, 30, 90):
        exact = h(math.exp(k * dx), rate, noise)
        assert profile(remove, math.exp(k * dx)) == pytest.approx(exact, rel=1e-6, abs=1e-17)
        mirrored = 1 - math.exp(-k * dx) + math.exp(-k * dx) * exact
        assert profile(add, math.exp(-k * dx)) == pytest.approx(mirrored, rel=1e-9)


@pytest.mark.parametrize("rho", [1e-4, 0.02, 0.5, 5.0])
def test_the_zcdp_profile_dominates_the_gaussian_and_randomised_response(rho) -> None:
    """Both are ρ-zCDP: the Gaussian with 1/(2s²) = ρ, and ε-DP with ε²/2 = ρ."""
    pld = pld_atoms.zcdp(rho, 0.01 * math.sqrt(rho))
    assert pld.mass.sum() + pld.infinite == pytest.approx(1, abs=1e-9)
    epsilon = math.sqrt(2 * rho)
    response = 1 / (1 + math.exp(-epsilon))
    for loss in math.sqrt(rho) * np.linspace(0, 8, 30):
        found = profile(pld, math.exp(loss))
        assert found >= gaussian_delta(math.sqrt(1 / (2 * rho)), loss)
        assert found >= response - math.exp(loss) * (1 - response)
        left = profile(pld, math.exp(-loss))
        assert left >= 1 - math.exp(-loss) + math.exp(-loss) * gaussian_delta(math.sqrt(1 / (2 * rho)), loss) - 1e-12


@pytest.mark.parametrize(("epsilon", "count"), [(0.5, 3), (0.1, 40), (0.01, 20_000)])
def test_many_pure_releases_against_the_binomial_and_within_the_error_budget(epsilon, count) -> None:
    """Randomised response composes to a binomial: an exact oracle for the FFT, its tilt and its error budget."""
    pld = pld_atoms.pure(epsilon, epsilon)
    parts = [(pld, count)]
    found = compose(parts, tilt_for_delta(parts, 1e-5, scale=epsilon * math.sqrt(count)))
    ups = np.arange(count + 1)
    mass = binom.pmf(ups, count, 1 / (1 + math.exp(-epsilon)))
    at, budget = found.epsilon(1e-5)
    exact = float(np.sum(mass * np.maximum(-np.expm1(at - epsilon * (2 * ups - count)), 0)))
    assert exact <= 1e-5
    assert exact >= 1e-5 - 2 * budget - 1e-15
    assert budget < 1e-9


def test_one_pure_release_costs_its_epsilon_and_the_curve_is_tight() -> None:
    spent = Spending.of([Charge(PureRelease(epsilon=0.7), 1)], adjacency=Adjacency.ADD_REMOVE)
    assert PldAccountant().epsilon(spent, 1e-9).epsilon == pytest.approx(0.7, rel=1e-6)
    up = 1 / (1 + math.exp(-0.7))
    assert PldAccountant().delta(spent, 0.3).delta == pytest.approx(up - math.exp(0.3) * (1 - up), rel=1e-9)
    divergence = math.log(up**2 / (1 - up) + (1 - up) ** 2 / up)
    assert curves.pure(0.7, np.array([2.0]))[0] == pytest.approx(divergence, rel=1e-12)
