"""The theorems' bounds: worked by hand, their exponents, and who is ahead from which n on."""

import math
from dataclasses import replace
from functools import partial

import pytest

from dpsrm.accounting.calibrate import ACCOUNTANTS
from dpsrm.core.events import Adjacency, Charge, GaussianRelease, Sampling, Scheme, Spending
from dpsrm.methods import Assumptions, papers_noise, plan_theory
from dpsrm.methods.rates import ahead_from, gd_rate, rrpsgd_rate, srm_bound, srm_rate


def assumptions(**changes):
    base = {"lipschitz": 1.0, "smoothness": 2.0, "gap": 0.25, "dimension": 25, "n": 1000, "epsilon": 1.0}
    return Assumptions(**{**base, "delta": math.exp(-12), **changes})


def test_dp_srms_bound_by_hand():
    """G=2, L·D_F=2, d=125, n0=½, ζ=0.2, γ=¼, b=b0=20, T=100, s=1:
    R = ¾·0.2/½ + ¼·2 = 0.8, σ = 2R/b = 0.08, σ0 = 2G/b0 = 0.2
    E = 2·0.04/(¼·¼·20) + 2·¼·4/20 + (125·0.0064 + 125·0.04/100 + 4/(100·20))/¼ = 0.064 + 0.1 + 0.852·4 = 3.572
    bound = 4·½·2/(100·0.2) + 0.4 + 3.572/0.2 + √3.572 = 0.2 + 0.4 + 17.86 + 1.88997
    """
    a = assumptions(lipschitz=2.0, smoothness=4.0, gap=0.5, dimension=125, delta=math.exp(-16))
    plan = replace(plan_theory(a), gamma=0.25, zeta=0.2, batch=20, first_batch=20, steps=100)
    assert plan.n0 == 0.5
    assert srm_bound(plan, 1.0) == pytest.approx(20.34997, abs=1e-5)
    assert srm_bound(plan, 0.0) == pytest.approx(0.6 + 0.172 / 0.2 + math.sqrt(0.172), abs=1e-9)


def test_without_noise_the_proofs_constant_is_below_its_15():
    """γb = √2/n0² and b = b0, so E/ζ² = √2 + 2√2 + √2/8 = 4.4194, and 4n0·L·D_F/(Tζ) = ζ:
    1 + 2 + 4.4194 + √4.4194 = 9.5217. (In the paper's (7) the second √2 is not doubled: a slip its 15 has room for.)"""
    plan = plan_theory(assumptions(n=10**9))
    assert srm_bound(plan, 0.0) / plan.zeta == pytest.approx(9.5217, abs=1e-3)


def test_dp_gds_theorem_by_hand():
    """α = 12/½ + 1 = 25; σ²/T = 2·25/(½·10⁶) = 1e-4; 2L·D_F = 1; T = √(1/(25·1e-4)) = 20;
    E‖∇F‖² ≤ 1/20 + 25·20·1e-4 = 0.1; s² = T·α/(2βε) = 500."""
    rate = gd_rate(assumptions())
    assert rate.steps == 20
    assert rate.utility == pytest.approx(math.sqrt(0.1))
    assert rate.noise_multiplier == pytest.approx(math.sqrt(500))
    assert rate.gradients == 20_000
    assert rate.learning_rate == 0.5


def test_dp_gds_noise_is_proved_by_the_papers_accountant():
    rate = gd_rate(assumptions())
    full = Sampling(scheme=Scheme.FULL, population=1000, batch=1000)
    charge = Charge(GaussianRelease(noise_multiplier=rate.noise_multiplier, sampling=full), rate.steps)
    found = ACCOUNTANTS["paper"].epsilon(Spending.of([charge], adjacency=Adjacency.REPLACE_ONE), math.exp(-12))
    assert found.holds
    assert 0.99 < found.epsilon <= 1.0


def test_rrpsgds_theorem_by_hand():
    """s = ½: σ = 1, V = 1 + 3 = 4; T = 100; η = √(2/(2·4·100)) = 0.05;
    (2 + 2·4·100·0.0025)/(100·(0.1 − 2·0.0025)) = 4/9.5."""
    a = assumptions(dimension=3, gap=1.0, n=10)
    rate = rrpsgd_rate(a, noise_multiplier=0.5)
    assert rate.learning_rate == pytest.approx(0.05)
    assert rate.utility == pytest.approx(math.sqrt(4 / 9.5))
    assert rate.steps == rate.gradients == 100
    assert rrpsgd_rate(a).noise_multiplier == pytest.approx(papers_noise(n=10, epsilon=1.0, delta=a.delta))
    assert not rrpsgd_rate(replace(a, epsilon=2.0)).conditions[0].holds


EXPONENTS = {
    "DP-SRM": (srm_rate, -2 / 3),
    "DP-SRM, constant 1": (partial(srm_rate, zeta_factor=1.0), -2 / 3),
    "corollary's batches, ζ ~ n^{-2/3}": (partial(srm_rate, batches="corollary", zeta_factor=3.0), -1 / 3),
    "corollary's batches, best ζ": (partial(srm_rate, batches="corollary"), -1 / 2),
    "DP-GD": (gd_rate, -1 / 2),
}


@pytest.mark.parametrize("name", EXPONENTS)
def test_the_exponents_of_n(name):
    """What the proofs give for large n; with the corollary's batches DP-SRM is no faster than DP-GD."""
    rate, exponent = EXPONENTS[name]
    low, high = (rate(assumptions(n=n)).utility for n in (10**13, 10**15))
    assert math.log(high / low) / math.log(100) == pytest.approx(exponent, abs=0.02)


def test_gradient_complexities_are_the_papers_table():
    """(nε)²/(d·log) for DP-SRM, n²ε/√(d·log) for DP-GD: both grow as n², and d enters by d⁻¹ and d^{-½}."""
    for rate, power in ((partial(srm_rate, zeta_factor=1.0), 1.0), (gd_rate, 0.5)):
        base = rate(assumptions(n=10**8)).gradients
        assert rate(assumptions(n=10**9)).gradients / base == pytest.approx(100, rel=0.01)
        assert base / rate(assumptions(n=10**8, dimension=2500)).gradients == pytest.approx(100**power, rel=0.01)


def test_who_is_ahead_from_which_n_on():
    a = assumptions(lipschitz=1.0, smoothness=0.252, gap=math.log(2), dimension=10, delta=1e-5)
    n = ahead_from(a, srm_rate, gd_rate)
    assert n == pytest.approx(4.6e9, rel=0.03)
    assert srm_rate(replace(a, n=n)).utility < gd_rate(replace(a, n=n)).utility
    assert srm_rate(replace(a, n=int(n / 1.05))).utility > gd_rate(replace(a, n=int(n / 1.05))).utility
    assert ahead_from(a, gd_rate, rrpsgd_rate) == 10
    assert ahead_from(a, partial(srm_rate, batches="corollary"), gd_rate) is None


def test_no_bound_where_the_parameters_cannot_be_run():
    assert srm_rate(assumptions(n=10), zeta_factor=1.0).utility == math.inf
