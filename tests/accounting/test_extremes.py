"""Whatever a ledger or a budget can hold, every accountant answers or refuses in its own words, and never too little.

DPSRM_FUZZ multiplies the number of spendings tried (docs/robustness.md says how many were).
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsrm.accounting import Guarantee, attack_epsilon, strict_epsilon
from dpsrm.accounting.calibrate import ACCOUNTANTS
from dpsrm.accounting.guarantee import gaussian_delta, gaussian_epsilon
from dpsrm.core.errors import DpsrmError, InputError
from dpsrm.core.events import (
    LARGEST,
    Adjacency,
    Charge,
    Event,
    GaussianRelease,
    PureRelease,
    Sampling,
    Scheme,
    Spending,
    UnprotectedRelease,
    ZcdpRelease,
)

TIMES = int(os.environ.get("DPSRM_FUZZ", "1"))
extreme = settings(
    max_examples=60 * TIMES,
    derandomize=TIMES == 1,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NAMES = list(ACCOUNTANTS)
SECONDS = 120  # of processor time that any one question may take, at the very most

powers = st.one_of(st.floats(-300, 300), st.floats(-12, 4)).map(lambda power: 10.0**power)
edges = st.sampled_from([5e-324, 1.7e308, 1e-162, 1e-154, 1e154, 1e-16, 1e16, 0.0099, 0.01, 1.0, 40.0, 41.0, 131072.0])
numbers = st.one_of(powers, edges)
counts = st.one_of(st.just(1), st.integers(1, 1000), st.floats(0, 53).map(lambda power: int(2**power)))
deltas = st.one_of(
    st.just(0.999), st.floats(-300, -1e-3).map(lambda p: 10.0**p), st.floats(-9, -1e-3).map(lambda p: 10.0**p)
)


@st.composite
def gaussians(draw) -> GaussianRelease:
    """Any noise on any batch."""
    n = draw(st.one_of(st.integers(1, 10**6), st.integers(1, LARGEST)))
    scheme = draw(st.sampled_from(list(Scheme)))
    batch = n if scheme is Scheme.FULL else draw(st.sampled_from([1, n, max(1, n - 1), max(1, n // 1000)]))
    sampling = Sampling(scheme=scheme, population=n, batch=batch)
    return GaussianRelease(noise_multiplier=draw(numbers), sampling=sampling)


events = st.one_of(
    gaussians(),
    gaussians(),
    numbers.map(lambda epsilon: PureRelease(epsilon=epsilon)),
    numbers.map(lambda rho: ZcdpRelease(rho=rho)),
    st.just(UnprotectedRelease(what="a mean")),
)
spendings = st.builds(
    lambda charges, adjacency: Spending.of([Charge(*each) for each in charges], adjacency=adjacency),
    st.lists(st.tuples(events, counts), min_size=1, max_size=4, unique_by=lambda charge: charge[0]),
    st.sampled_from(list(Adjacency)),
)


def answered(ask) -> Guarantee | None:
    """The guarantee, well formed and in time; None if it was refused in the project's own words."""
    start = time.process_time()
    try:
        found = ask()
    except DpsrmError:
        found = None
    assert time.process_time() - start < SECONDS
    if found is not None:
        assert found.epsilon >= 0
        assert 0 <= found.delta <= 1
        assert found.holds == (found.epsilon < math.inf and found.delta < 1) == (not found.reason)
    return found


def tail(x: mpmath.mpf) -> mpmath.mpf:
    """P(N(0,1) > x); far out, where `erfc` gives up, 1 − 0 or the Mills ratio's upper bound."""
    if abs(x) > 10**6:
        return mpmath.exp(-x * x / 2) / (x * mpmath.sqrt(2 * mpmath.pi)) if x > 0 else mpmath.mpf(1)
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def gaussian_attacks(q, s, epsilon, *, means):
    """(P(x > t), Q(x > t)) at a few t for (1−q)N(0,s²) + q·N(mean,s²), one mean for P, one for Q."""
    best = mpmath.mpf("0.5") + s * s * mpmath.log1p(mpmath.expm1(min(epsilon, mpmath.mpf(10) ** 9)) / q)
    for t in (0, mpmath.mpf("0.25"), mpmath.mpf("0.5"), 1, best, s, 3 * s):
        yield tuple((1 - q) * tail(t / s) + q * tail((t - mean) / s) for mean in means)


def attacks(event: Event, count: int, epsilon: mpmath.mpf, adjacency: Adjacency):
    """Probabilities of some outcome under two neighbouring datasets, in closed form, for one kind of release."""
    if isinstance(event, GaussianRelease):
        q, s = mpmath.mpf(event.sampling.batch) / event.sampling.population, mpmath.mpf(event.noise_multiplier)
        opposed = event.sampling.scheme is Scheme.POISSON and adjacency is Adjacency.REPLACE_ONE
        half = mpmath.mpf("0.5")
        s = s / mpmath.sqrt(count) if q == 1 else s
        yield from gaussian_attacks(q, s, epsilon, means=(half, -half) if opposed else (1, 0))
    elif isinstance(event, ZcdpRelease):
        s = 1 / mpmath.sqrt(2 * mpmath.mpf(event.rho) * count)
        yield from gaussian_attacks(mpmath.mpf(1), s, epsilon, means=(1, 0))
    elif isinstance(event, PureRelease):
        down = 1 / (1 + mpmath.exp(min(mpmath.mpf(event.epsilon), mpmath.mpf(10) ** 9)))
        yield 1 - down, down
        yield (1 - down) ** count, down**count
    else:
        raise AssertionError(event)


def believable(found: Guarantee, spending: Spending) -> None:
    """No closed-form attack on one of the releases contradicts (ε, δ)."""
    if not found.holds:
        return
    with mpmath.workdps(50):
        epsilon, room = mpmath.mpf(found.epsilon), mpmath.mpf(found.delta) * (1 + mpmath.mpf("1e-9"))
        for charge in spending.charges:
            for p, q in attacks(charge.event, charge.count, epsilon, spending.adjacency):
                if p > room:
                    assert q > 0, charge
                    assert mpmath.log((p - room) / q) <= epsilon * (1 + mpmath.mpf("1e-9")), charge


@extreme
@given(spending=spendings, delta=deltas, name=st.sampled_from(NAMES))
def test_epsilon_is_answered_or_refused_and_never_too_small(spending, delta, name) -> None:
    found = answered(lambda: ACCOUNTANTS[name].epsilon(spending, delta))
    strict = answered(lambda: strict_epsilon(ACCOUNTANTS[name], spending, delta))
    assert strict == found
    if found is not None:
        believable(found, spending)


@extreme
@given(spending=spendings, epsilon=st.one_of(st.just(0.0), numbers), name=st.sampled_from(NAMES))
def test_delta_is_answered_or_refused_and_never_too_small(spending, epsilon, name) -> None:
    found = answered(lambda: ACCOUNTANTS[name].delta(spending, epsilon))
    if found is not None:
        believable(found, spending)


@extreme
@given(spending=spendings, delta=deltas)
def test_the_attack_is_computed_or_refused(spending, delta) -> None:
    try:
        found = attack_epsilon(spending, delta)
    except DpsrmError:
        return
    assert found >= 0
    accountants = answered(lambda: ACCOUNTANTS["pld"].epsilon(spending, delta))
    assert accountants is not None
    assert found <= accountants.epsilon * (1 + 1e-6)


def of(*charges: tuple[Event, int], adjacency: Adjacency = Adjacency.REPLACE_ONE) -> Spending:
    """A spending of (event, count) pairs."""
    return Spending.of([Charge(*each) for each in charges], adjacency=adjacency)


def sampled(noise: float, *, n: int = 1000, batch: int = 10, scheme: Scheme = Scheme.WOR) -> GaussianRelease:
    """A release on a batch."""
    return GaussianRelease(noise_multiplier=noise, sampling=Sampling(scheme=scheme, population=n, batch=batch))


def test_what_is_negligible_is_added_to_delta_and_not_dropped() -> None:
    pld = ACCOUNTANTS["pld"]
    assert pld.epsilon(of((PureRelease(epsilon=6e-274), 2)), 1e-5).epsilon <= 1.2e-273
    usual = of((sampled(1.0), 100))
    base = pld.delta(usual, 1.0).delta
    for tiny, variation in [
        (PureRelease(epsilon=1e-15), 5e-16),
        (ZcdpRelease(rho=1e-31), math.sqrt(5e-32)),
        (sampled(1e13), 4e-16),
        (sampled(2.0**55, batch=1000, scheme=Scheme.FULL), 0.4 / 2**55),
    ]:
        both = Spending.of([*usual.charges, Charge(tiny, 1)], adjacency=Adjacency.REPLACE_ONE)
        assert pld.delta(both, 1.0).delta == pytest.approx(base + variation, rel=0, abs=variation / 4)


def test_no_noise_on_a_batch_costs_the_probability_of_being_drawn() -> None:
    for scheme in (Scheme.WOR, Scheme.POISSON):
        spent = of((sampled(1e-200, scheme=scheme), 3))
        drawn = 1 - 0.99**3
        assert ACCOUNTANTS["pld"].delta(spent, 5.0).delta == pytest.approx(drawn, rel=1e-9)
        assert ACCOUNTANTS["pld"].delta(spent, 5.0).delta >= drawn
        assert ACCOUNTANTS["pld"].epsilon(spent, 0.9 * drawn).epsilon == math.inf
        assert ACCOUNTANTS["pld"].epsilon(spent, 1.1 * drawn).epsilon == 0


def test_a_steep_pure_release_adds_its_epsilon() -> None:
    base = ACCOUNTANTS["pld"].epsilon(of((sampled(1.0), 100)), 1e-5).epsilon
    both = of((sampled(1.0), 100), (PureRelease(epsilon=1000.0), 3))
    assert ACCOUNTANTS["pld"].epsilon(both, 1e-5).epsilon == pytest.approx(3000 + base, rel=1e-12)
    assert ACCOUNTANTS["pld"].delta(both, 2999.0).delta == 1


def test_more_noise_than_can_be_told_apart_counts_as_less() -> None:
    """2⁴⁰ releases with a noise of 2⁴⁰: counted with 2¹⁷, so dearer, and still answered."""
    spent = of((sampled(2.0**40, n=2, batch=1), 2**40))
    truth = gaussian_epsilon(2.0**21, 1e-9)
    assert ACCOUNTANTS["pld"].epsilon(spent, 1e-9).epsilon >= truth
    assert ACCOUNTANTS["rdp"].epsilon(spent, 1e-9).epsilon >= truth


@pytest.mark.parametrize("rho", [1e-20, 1e-13, 1e-10])
def test_a_small_rho_is_rounded_up_alone_and_beside_others(rho) -> None:
    pld = ACCOUNTANTS["pld"]
    found = pld.epsilon(of((ZcdpRelease(rho=rho), 1)), 1e-9).epsilon
    assert gaussian_epsilon(math.sqrt(1 / (2 * rho)), 1e-9) <= found <= 1e-3
    base = pld.epsilon(of((sampled(1.0), 100)), 1e-5).epsilon
    assert base <= pld.epsilon(of((sampled(1.0), 100), (ZcdpRelease(rho=rho), 1)), 1e-5).epsilon <= base * 1.001


def test_too_many_releases_to_bound_the_ffts_error_have_no_guarantee() -> None:
    found = ACCOUNTANTS["pld"].epsilon(of((sampled(1e5, n=LARGEST, batch=1000), 2**48 + 1)), 1e-5)
    assert (found.epsilon, found.holds) == (math.inf, False)
    assert "2⁴⁸ releases" in found.reason
    assert ACCOUNTANTS["pld"].epsilon(of((PureRelease(epsilon=1e-12), 2**50)), 1e-5).epsilon == 2**50 * 1e-12


@pytest.mark.parametrize("name", ["rdp", "rdp9", "paper"])
def test_many_tiny_pure_releases_are_not_lost_to_cancellation(name) -> None:
    """2⁵³ releases of ε = 1e-9: randomised response composes to about a Gaussian with 1/s² = 2⁵³·1e-18."""
    spent = of((PureRelease(epsilon=1e-9), LARGEST))
    truth = gaussian_epsilon(1 / math.sqrt(LARGEST * 1e-18), 1e-5)
    assert truth * 0.999 <= ACCOUNTANTS[name].epsilon(spent, 1e-5).epsilon <= 2 * truth


@pytest.mark.parametrize("name", NAMES)
def test_a_cost_beyond_all_numbers_is_no_guarantee(name) -> None:
    for event in (PureRelease(epsilon=1e300), ZcdpRelease(rho=1e300), sampled(1e-300, batch=1000, scheme=Scheme.FULL)):
        found = ACCOUNTANTS[name].epsilon(of((event, LARGEST)), 1e-5)
        assert (found.epsilon, found.holds) == (math.inf, False)
        assert found.reason


@pytest.mark.parametrize("name", NAMES)
def test_a_file_with_too_many_kinds_of_release_is_refused(name) -> None:
    spent = of(*((PureRelease(epsilon=0.1 + i / 10**6), 1) for i in range(4097)))
    with pytest.raises(InputError, match="at most 4096 different releases"):
        ACCOUNTANTS[name].epsilon(spent, 1e-5)


@pytest.mark.parametrize("noise", [1e-300, 1.0, 1e300])
@pytest.mark.parametrize("name", ["pld", "rdp"])
def test_wor_under_add_remove_is_refused_whatever_its_noise(name, noise) -> None:
    with pytest.raises(InputError, match="no accountant covers wor sampling under add-remove"):
        ACCOUNTANTS[name].epsilon(of((sampled(noise), 1), adjacency=Adjacency.ADD_REMOVE), 1e-5)


@pytest.mark.parametrize("noise", [1e-9, 1e-6, 1e-3, 1.0, 1e3])
def test_the_gaussian_alone_is_rounded_up(noise) -> None:
    for delta in (1e-9, 1e-5, 0.1):
        found = mpmath.mpf(gaussian_epsilon(noise, delta))
        with mpmath.workdps(60):
            mu = 1 / mpmath.mpf(noise)
            exact = mpmath.ncdf(mu / 2 - found / mu) - mpmath.exp(found) * mpmath.ncdf(-mu / 2 - found / mu)
            assert exact <= delta
            assert gaussian_delta(noise, float(found)) >= exact


def test_renyi_curves_are_converted_as_dp_accounting_converts_them() -> None:
    from dp_accounting.rdp import rdp_privacy_accountant as theirs

    from dpsrm.accounting.conversion import CANONNE
    from dpsrm.accounting.rdp import RdpCurve, curve_epsilon

    orders = tuple(1 + i / 10 for i in range(1, 300))
    for scale in (1e-6, 1e-3, 0.05, 2.0):
        curve = RdpCurve(orders=orders, values=tuple(scale * a for a in orders))
        for delta in (1e-12, 1e-5, 0.1):
            wanted = theirs.compute_epsilon(orders, curve.values, delta)[0]
            assert curve_epsilon(curve, delta) == pytest.approx(wanted, rel=1e-12)
        for epsilon in (0.0, 0.5, 3.0):
            wanted = theirs.compute_delta(orders, curve.values, epsilon)[0]
            found = CANONNE.log_deltas(np.array(orders), np.array(curve.values), epsilon).min()
            assert math.exp(min(found, 0.0)) == pytest.approx(wanted, rel=1e-9)


def test_the_attack_is_not_above_the_truth_where_two_grids_agree_by_chance() -> None:
    """Found by 100 times the fuzzing: the exact ε, by mpmath, is 41.992757; two grids alone said 41.992918."""
    sampling = Sampling(scheme=Scheme.POISSON, population=1192, batch=1)
    event = GaussianRelease(noise_multiplier=10.0**-1.25, sampling=sampling)
    spending = Spending.of([Charge(event, 1)], adjacency=Adjacency.REPLACE_ONE)
    assert 41.9 < attack_epsilon(spending, 1e-4) < 41.992757 < ACCOUNTANTS["pld"].epsilon(spending, 1e-4).epsilon
    wor = replace(event, sampling=replace(sampling, scheme=Scheme.WOR, population=1196))
    both = Spending.of([Charge(wor, 1), Charge(PureRelease(epsilon=0.001), 1)], adjacency=Adjacency.REPLACE_ONE)
    assert attack_epsilon(both, 1e-4) < ACCOUNTANTS["pld"].epsilon(both, 1e-4).epsilon
