"""Laws every accountant must obey (accounting.md §6), on random plans; `derandomize` keeps them reproducible."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsrm.accounting import PldAccountant, attack_epsilon
from dpsrm.accounting.calibrate import ACCOUNTANTS
from dpsrm.accounting.guarantee import gaussian_epsilon
from dpsrm.core.events import (
    Adjacency,
    Charge,
    GaussianRelease,
    PureRelease,
    Sampling,
    Scheme,
    Spending,
    ZcdpRelease,
)

PLD, RDP, RDP9, PAPER = (ACCOUNTANTS[name] for name in ("pld", "rdp", "rdp9", "paper"))
GRID = 2e-4  # relative: the grid's own error, which may differ between two questions

law = settings(max_examples=12, derandomize=True, deadline=None)
batches = st.integers(10, 2000)
noises = st.floats(0.5, 6)
steps = st.integers(1, 3000)
deltas = st.sampled_from([1e-8, 1e-5, 1e-2])
schemes = st.sampled_from([("wor", "replace-one"), ("poisson", "replace-one"), ("poisson", "add-remove")])


def spending(charges: list[tuple[int, int, float]], scheme: tuple[str, str] = ("wor", "replace-one")) -> Spending:
    """Releases (batch, steps, noise) on 20 000 records."""
    return Spending.of(
        [
            Charge(
                GaussianRelease(
                    noise_multiplier=noise, sampling=Sampling(scheme=Scheme(scheme[0]), population=20_000, batch=batch)
                ),
                count,
            )
            for batch, count, noise in charges
        ],
        adjacency=Adjacency(scheme[1]),
    )


@law
@given(batch=batches, count=steps, noise=noises, delta=deltas)
def test_pld_is_below_rdp_is_below_rdp9_and_above_the_attack(batch, count, noise, delta) -> None:
    spent = spending([(batch, count, noise)])
    pld, rdp, rdp9 = (each.epsilon(spent, delta).epsilon for each in (PLD, RDP, RDP9))
    assert attack_epsilon(spent, delta) <= pld * (1 + 1e-6)
    assert pld <= rdp * (1 + GRID) + 1e-9
    assert rdp <= rdp9 * (1 + 1e-9)


@law
@given(batch=st.integers(2, 60), count=steps, noise=st.floats(0.84, 4), delta=deltas)
def test_paper_is_above_pld_where_its_conditions_hold(batch, count, noise, delta) -> None:
    spent = spending([(batch, count, noise)])
    paper = PAPER.epsilon(spent, delta)
    assert paper.holds
    assert all(condition.holds for condition in paper.conditions)
    assert paper.epsilon >= RDP9.epsilon(spent, delta).epsilon * (1 - 1e-12)
    assert paper.epsilon >= PLD.epsilon(spent, delta).epsilon


@law
@given(batch=batches, count=steps, noise=noises, delta=deltas, scheme=schemes)
def test_epsilon_is_monotone(batch, count, noise, delta, scheme) -> None:
    for each in (PLD, RDP):
        here = each.epsilon(spending([(batch, count, noise)], scheme), delta).epsilon
        more_noise = each.epsilon(spending([(batch, count, 1.1 * noise)], scheme), delta).epsilon
        more_delta = each.epsilon(spending([(batch, count, noise)], scheme), 2 * delta).epsilon
        more_steps = each.epsilon(spending([(batch, 2 * count, noise)], scheme), delta).epsilon
        more_batch = each.epsilon(spending([(batch + 10, count, noise)], scheme), delta).epsilon
        assert max(more_noise, more_delta) <= here <= min(more_steps, more_batch) * (1 + GRID) + 1e-12


@law
@given(batch=batches, count=steps, noise=noises, delta=deltas, scheme=schemes)
def test_epsilon_and_delta_are_inverse(batch, count, noise, delta, scheme) -> None:
    spent = spending([(batch, count, noise)], scheme)
    for each in (PLD, RDP):
        found = each.epsilon(spent, delta)
        if found.epsilon > 0:
            assert each.delta(spent, found.epsilon).delta == pytest.approx(delta, rel=1e-3)


@law
@given(first=st.tuples(batches, steps, noises), second=st.tuples(batches, steps, noises), scheme=schemes)
def test_order_does_not_matter_and_a_mixture_lies_between_its_parts(first, second, scheme) -> None:
    both = PLD.epsilon(spending([first, second], scheme), 1e-5).epsilon
    assert PLD.epsilon(spending([second, first], scheme), 1e-5).epsilon == pytest.approx(both, rel=1e-9)
    alone = max(PLD.epsilon(spending([each], scheme), 1e-5).epsilon for each in (first, second))
    summed = sum(PLD.epsilon(spending([each], scheme), 5e-6).epsilon for each in (first, second))
    assert alone <= both * (1 + GRID)
    assert both <= summed * (1 + GRID) + 1e-9


@law
@given(batch=batches, one=steps, two=steps, noise=noises, scheme=schemes)
def test_counts_add_up(batch, one, two, noise, scheme) -> None:
    """Composing T1 and T2 separately — as two events that differ by one part in 10¹² — is composing T1 + T2."""
    together = PLD.epsilon(spending([(batch, one + two, noise)], scheme), 1e-5).epsilon
    apart = PLD.epsilon(spending([(batch, one, noise), (batch, two, noise * (1 + 1e-12))], scheme), 1e-5).epsilon
    assert apart == pytest.approx(together, rel=GRID, abs=1e-9)


@law
@given(batch=batches, count=steps, noise=noises, scheme=schemes)
def test_a_finer_grid_only_lowers_epsilon_and_hardly(batch, count, noise, scheme) -> None:
    spent = spending([(batch, count, noise)], scheme)
    coarse, usual, fine = (PldAccountant(resolution=r).epsilon(spent, 1e-5).epsilon for r in (0.08, 0.02, 0.005))
    assert fine <= usual * (1 + 1e-6) <= coarse * (1 + 2e-6)
    assert usual <= fine * (1 + GRID) + 1e-6


@law
@given(count=steps, noise=st.floats(1, 60), delta=deltas, adjacency=st.sampled_from(list(Adjacency)))
def test_full_batches_are_the_analytic_gaussian(count, noise, delta, adjacency) -> None:
    exact = gaussian_epsilon(noise / count**0.5, delta)
    for scheme in Scheme:
        spent = spending([(20_000, count, noise)], (scheme.value, adjacency.value))
        assert PLD.epsilon(spent, delta).epsilon == pytest.approx(exact, rel=1e-9)


@law
@given(count=st.integers(1, 3000), share=st.floats(0.2, 3))
def test_the_fft_path_meets_the_analytic_gaussian_as_q_nears_1(count, share) -> None:
    """19 999 of 20 000 records: no closed form is used, yet the answer is the Gaussian's to within 1e-3."""
    noise = share * count**0.5
    exact = gaussian_epsilon(share, 1e-5)
    found = PLD.epsilon(spending([(19_999, count, noise)]), 1e-5).epsilon
    assert found == pytest.approx(exact, rel=1e-3)


@law
@given(
    rho=st.floats(1e-4, 1),
    epsilon=st.floats(0.01, 1),
    count=st.integers(1, 20),
    adjacency=st.sampled_from(list(Adjacency)),
)
def test_pure_and_zcdp_releases_compose_with_the_rest(rho, epsilon, count, adjacency) -> None:
    base = spending([(200, 500, 1.0)], ("poisson", adjacency.value))
    mixed = base.plus(PureRelease(epsilon=epsilon), count).plus(ZcdpRelease(rho=rho), 2)
    alone = PLD.epsilon(base, 1e-5).epsilon
    split = PLD.epsilon(base.plus(PureRelease(epsilon=epsilon), count), 5e-6).epsilon
    zcdp = Spending.of([Charge(ZcdpRelease(rho=rho), 2)], adjacency=adjacency)
    found = PLD.epsilon(mixed, 1e-5).epsilon
    assert alone < found <= split + RDP.epsilon(zcdp, 5e-6).epsilon
    assert found <= RDP.epsilon(mixed, 1e-5).epsilon * 1.02


@law
@given(rho=st.floats(1e-4, 3), delta=deltas)
def test_zcdp_alone_costs_what_its_renyi_curve_says_and_more_than_the_gaussian(rho, delta) -> None:
    spent = Spending.of([Charge(ZcdpRelease(rho=rho), 1)], adjacency=Adjacency.REPLACE_ONE)
    found = PLD.epsilon(spent, delta).epsilon
    assert found >= gaussian_epsilon((1 / (2 * rho)) ** 0.5, delta)
    assert found <= RDP.epsilon(spent, delta).epsilon * 1.002 + 1e-6
    thirds = Spending.of([Charge(ZcdpRelease(rho=rho / 3), 3)], adjacency=Adjacency.REPLACE_ONE)
    assert PLD.epsilon(thirds, delta).epsilon == pytest.approx(found, rel=1e-9)


@law
@given(batch=st.integers(1, 50), noise=noises, delta=deltas)
def test_poisson_costs_less_than_wor_under_the_same_adjacency(batch, noise, delta) -> None:
    wor, poisson = (
        PLD.epsilon(spending([(batch, 300, noise)], (scheme, "replace-one")), delta) for scheme in ("wor", "poisson")
    )
    assert poisson.epsilon <= wor.epsilon * (1 + GRID) + 1e-12
