"""Guards of the composition: each test fails if the error it is about is left out of δ."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from dpsrm.accounting import (
    PldAccountant,
    attack_epsilon,
    pld_atoms,
    pld_pairs,
    runs_to_gamma,
    searched_guarantee,
)
from dpsrm.accounting.calibrate import ACCOUNTANTS
from dpsrm.accounting.pld_compose import _hockey_sticks, compose
from dpsrm.accounting.pld_grid import connect
from dpsrm.accounting.pld_release import profiles
from dpsrm.accounting.pld_tilt import Tilt, bins, tilt_for_delta, untilted
from dpsrm.core.events import Adjacency, Charge, PureRelease, Spending, ZcdpRelease

EPSILON = 0.5


def exact_delta(at: float, count: int, epsilon: float = EPSILON) -> float:
    """δ of `count` randomised responses: a binomial."""
    ups = np.arange(count + 1)
    mass = binom.pmf(ups, count, 1 / (1 + math.exp(-epsilon)))
    return float(np.sum(mass * np.maximum(-np.expm1(at - epsilon * (2 * ups - count)), 0)))


def test_mass_that_wraps_around_from_above_is_added_to_delta() -> None:
    """A window that ends below the largest loss: what lies above it comes out at the bottom, and must be paid for."""
    parts = [(pld_atoms.pure(EPSILON, EPSILON), 3)]
    lost = (1 / (1 + math.exp(-EPSILON))) ** 3  # all three up: loss 1.5
    small = Tilt(theta=0.0, cost=0.0, low=-1.5, high=-1.0, outside=lost)
    found = compose(parts, small)
    last = found.first + found.dx * (found.deltas.size - 1)
    assert last < 1.5
    for at in np.arange(found.first, last, found.dx):
        assert found.delta(float(at))[0] >= min(exact_delta(float(at), 3), 1.0)


def test_the_windows_outside_mass_is_in_the_error_budget_at_both_ends() -> None:
    parts = [(pld_atoms.pure(EPSILON, EPSILON), 3)]
    tilt = untilted(parts, scale=1.0)
    plain, wide = compose(parts, replace(tilt, outside=0.0)), compose(parts, replace(tilt, outside=1e-3))
    np.testing.assert_allclose(wide.budget - plain.budget, 2e-3, rtol=1e-9)
    np.testing.assert_allclose(wide.deltas - plain.deltas, 2e-3, rtol=1e-9)


@pytest.mark.parametrize("count", [1, 100, 10_000])
def test_the_ffts_error_is_in_the_budget_and_the_budget_is_in_delta(count) -> None:
    """8 ulp per release in the 2-norm of the spectrum, times what the tilt is undone by."""
    parts = [(pld_atoms.pure(0.01, 0.01), count)]
    tilt = replace(tilt_for_delta(parts, 1e-5, scale=0.01 * math.sqrt(count)), outside=0.0)
    found = compose(parts, tilt)
    losses = found.first + found.dx * np.arange(found.deltas.size)
    width = -math.expm1(-found.dx * bins(tilt, found.dx))
    least = 2.0**-52 * 8 * count * width * np.exp(tilt.cost - tilt.theta * losses)
    assert np.all(found.budget >= least)
    assert np.all(found.deltas >= found.budget)
    assert found.deltas[-1] == pytest.approx(float(found.budget[-1]), rel=1e-12)


def test_the_interpolated_epsilon_is_never_below_the_binomials() -> None:
    for count in (1, 7, 60):
        parts = [(pld_atoms.pure(EPSILON, EPSILON / 3), count)]
        found = compose(parts, tilt_for_delta(parts, 1e-6, scale=EPSILON * math.sqrt(count)))
        for delta in np.geomspace(1e-8, 1e-3, 23):
            assert exact_delta(found.epsilon(float(delta))[0], count) <= delta


def test_a_composition_that_does_not_fit_has_no_guarantee() -> None:
    """Atoms at ±1e-9 beside a loss that is almost never finite: δ = 1, not 0 and not an error."""
    charges = [Charge(PureRelease(epsilon=1.0), 1), Charge(ZcdpRelease(rho=900.0), 1)]
    spent = Spending.of(charges, adjacency=Adjacency.REPLACE_ONE)
    found = profiles(spent, lambda parts, scale: untilted(parts, scale=scale), resolution=0.02)
    assert [profile.delta(5.0)[0] for profile in found] == [1.0]
    assert PldAccountant().epsilon(spent, 1e-5).epsilon == math.inf


def test_the_worse_direction_counts_and_undoing_the_tilt_is_exact() -> None:
    parts = [(pld_pairs.poisson_remove(0.2, 0.7, 0.01), 20)]
    tilted = compose(parts, tilt_for_delta(parts, 1e-5, scale=1.0))
    plain = compose(parts, untilted(parts, scale=1.0))
    assert tilted.epsilon(1e-5)[0] == pytest.approx(plain.epsilon(1e-5)[0], rel=1e-6)


def test_under_add_remove_the_dearer_of_adding_and_removing_is_told(spend) -> None:
    """One release: removing costs more at small δ, adding more at large δ; the answer is the larger each time."""
    from dpsrm.accounting.pld_tilt import Parts

    spent = spend(10, 5, 1, 0.6, "poisson", "add-remove")
    both = []
    for make in (pld_pairs.poisson_remove, pld_pairs.poisson_add):
        parts: Parts = [(make(0.5, 0.6, 0.005), 1)]
        both.append(compose(parts, untilted(parts, scale=1.0)))
    for delta in (1e-6, 1e-3, 0.1, 0.3):
        wanted = max(profile.epsilon(delta)[0] for profile in both)
        assert ACCOUNTANTS["pld"].epsilon(spent, delta).epsilon == pytest.approx(wanted, rel=1e-3)


def test_a_search_pays_for_every_run_and_once_more_for_composing_them() -> None:
    epsilon, delta = searched_guarantee(0.1, 1e-6, runs=10)
    assert delta == pytest.approx(1 - (1 - 1e-6) ** 11, rel=1e-9)
    pure = Spending.of([Charge(PureRelease(epsilon=0.1), 10)], adjacency=Adjacency.REPLACE_ONE)
    assert epsilon == PldAccountant().epsilon(pure, 1e-6).epsilon
    assert runs_to_gamma(24, eta=0.0) < 0.02


def test_the_attack_is_below_the_truth_of_a_gaussian(spend) -> None:
    """The figure is a lower bound: the grid's error is taken off, not added."""
    from dpsrm.accounting.guarantee import gaussian_epsilon

    spent = spend(20_000, 19_999, 50, 5.0, "poisson", "add-remove")
    assert attack_epsilon(spent, 1e-5) <= gaussian_epsilon(5.0 / math.sqrt(50), 1e-5)


def test_infinite_losses_add_up_over_the_releases(spend) -> None:
    """s = 0.02 on a tenth of the records: a record that is drawn is seen, and being drawn once in 5 is enough."""
    found = ACCOUNTANTS["pld"].delta(spend(1000, 100, 5, 0.02), 300.0).delta
    assert found == pytest.approx(1 - 0.9**5, rel=1e-3)


def test_the_renyi_curve_of_zcdp() -> None:
    from dpsrm.accounting import rdp_curve

    curve = rdp_curve(Spending.of([Charge(ZcdpRelease(rho=0.1), 3)], adjacency=Adjacency.ADD_REMOVE))
    np.testing.assert_allclose(curve.values, 0.3 * np.array(curve.orders), rtol=1e-12)


@pytest.mark.parametrize(("batch", "noise"), [(5000, 2.0), (400, 6.0), (30_000, 0.9)])
def test_paper_has_no_order_beyond_its_lemma(spend, batch, noise) -> None:
    """qα(1+s²) is 1 or more, or so near 1 that not even α = 2 is allowed."""
    from dpsrm.accounting.paper import largest_order

    spent = spend(30_001, batch, 10, noise)
    assert largest_order(spent) == 0
    assert ACCOUNTANTS["paper"].epsilon(spent, 1e-5).epsilon == math.inf


def test_connecting_dots_keeps_all_mass() -> None:
    """Nothing of a release is lost: cells, what lies below them (rounded up), the tail and what has no end."""
    index = np.arange(3, dtype=np.int64)
    mass, gap = np.array([0.2, 0.1]), np.array([0.005, 0.002])
    found = connect(index=index, dx=0.1, mass=mass, gap=gap, tail=(0.3, 0.25), below=0.4)
    assert found.mass.sum() + found.infinite == pytest.approx(1, abs=1e-15)
    assert found.mass[0] >= 0.4
    assert found.infinite == 0.25


@pytest.mark.parametrize("dx", [1e-3, 0.3, 1.3, 5.7, 60.0])
@pytest.mark.parametrize("spread", [0.0, 3.0, 100.0])
def test_hockey_sticks_summed_in_blocks_equal_the_recurrence(dx, spread) -> None:
    """On fine grids in a few long blocks, on coarse ones in many short ones; masses alike or of all sizes."""
    mass = np.exp(np.clip(spread * np.random.default_rng(0).normal(size=1001), -600, 200))
    wanted, above, deltas = 0.0, 0.0, np.empty_like(mass)
    for j in range(mass.size - 1, -1, -1):
        deltas[j] = wanted = math.exp(-dx) * wanted - math.expm1(-dx) * above
        above += mass[j]
    assert _hockey_sticks(mass, dx) == pytest.approx(deltas, rel=1e-12, abs=0)
