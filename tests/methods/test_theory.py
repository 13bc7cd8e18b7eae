"""The theory planner: the utility theorem's parameters, worked by hand, and its conditions."""

import json
import math
from itertools import pairwise

import pytest
import torch

from conftest import make_problem
from dpsrm.accounting import calibrate_noise
from dpsrm.accounting.calibrate import ACCOUNTANTS
from dpsrm.core.errors import BoundExceeded, BudgetExceeded, InputError
from dpsrm.core.events import Adjacency, Charge, GaussianRelease, Sampling, Scheme, Spending
from dpsrm.data import Records
from dpsrm.gradients import binary_loss
from dpsrm.methods import (
    AdaptiveStep,
    Assumptions,
    best_theorem_noise,
    corollary_beta,
    corollary_steps,
    plan_theory,
    theorem_noise,
)
from dpsrm.methods.theorem_noise import corollary_batch, order_for
from dpsrm.training import Privacy, Settings, Theory, Training, settings_to_dict, train
from dpsrm.training.config import settings_from


def assumptions(**changes):
    base = {"lipschitz": 2.0, "smoothness": 4.0, "gap": 0.5, "dimension": 125, "n": 1000, "epsilon": 1.0}
    return Assumptions(**{**base, "delta": math.exp(-16), **changes})


def test_golden_values_worked_by_hand():
    """G=2, L=4, D_F=1/2, d=125, n·ε=1000, ln(1/δ)=16:
    n0 = L·D_F/G² = 2/4 = 0.5
    ζ = (G·L·D_F·d·16)^{1/3}/1000^{2/3} = (2·4·0.5·125·16)^{1/3}/100 = 8000^{1/3}/100 = 0.2
    γ = √2·ζ/(n0·G) = √2·0.2
    b = G/(n0·ζ) = 2/0.1 = 20;  b0 = G³/(ζ·L·D_F) = 8/0.4 = 20
    T = ⌊4·n0·L·D_F/ζ²⌋ + 1 = ⌊4·0.5·2/0.04⌋ + 1 = 100 + 1
    """
    plan = plan_theory(assumptions())
    assert plan.n0 == pytest.approx(0.5)
    assert plan.zeta == pytest.approx(0.2)
    assert plan.gamma == pytest.approx(0.2 * math.sqrt(2))
    assert plan.b == pytest.approx(20)
    assert plan.b0 == pytest.approx(20)
    assert plan.steps in (100, 101)  # 4·n0·L·D_F/ζ² is 100 up to rounding
    assert plan.method().max_grad_norm == 2.0
    assert plan.method().max_diff_norm == pytest.approx(0.4)


def test_golden_values_off_the_integers():
    """G=1, L=2, D_F=3, d=10, n=500, ε=2, δ=1e-5: n0=6; ζ=(6·10·11.512925)^{1/3}/1000^{2/3}=8.8396/100."""
    plan = plan_theory(
        Assumptions(lipschitz=1.0, smoothness=2.0, gap=3.0, dimension=10, n=500, epsilon=2.0, delta=1e-5)
    )
    assert plan.n0 == pytest.approx(6.0)
    assert plan.zeta == pytest.approx(0.0883978, rel=1e-5)
    assert plan.gamma == pytest.approx(math.sqrt(2) * 0.0883978 / 6, rel=1e-5)
    assert plan.b == pytest.approx(1 / (6 * 0.0883978), rel=1e-5)
    assert plan.b0 == pytest.approx(1 / (0.0883978 * 6), rel=1e-5)
    assert plan.steps == 18428  # ⌊4·n0·L·D_F/ζ²⌋ + 1 = ⌊144·10⁴/690.77552790^{2/3}⌋ + 1 = ⌊18427.7…⌋ + 1
    assert (plan.batch, plan.first_batch) == (2, 2)


def test_conditions_are_named_with_their_numbers():
    few = plan_theory(assumptions(n=100))
    assert not few.conditions[0].holds
    assert "γ" in few.conditions[0].text
    many = plan_theory(assumptions(n=10**9))
    assert all(condition.holds for condition in many.conditions[:3])


def test_the_papers_noise_condition_by_hand():
    """σ'² = σ²b²/(4R²) with σ² = 14·T·R²·α/(β·n²·ε), so 3.5·b²·T·α/(β·n²·ε); β = 1/2, α = 2·16 + 1 = 33."""
    plan = plan_theory(assumptions())
    s2 = 3.5 * plan.batch**2 * plan.steps * 33 / (0.5 * 1000**2)
    found = {condition.name: condition for condition in plan.conditions}
    assert plan.noise_of_theorem.order == 33
    assert plan.noise_of_theorem.noise_multiplier**2 == pytest.approx(s2)
    assert f"{s2:.4g}" in found["noise"].text
    assert found["noise"].holds == (s2 >= 0.7)
    assert found["rate"].holds == (plan.batch / 1000 * 33 * (1 + s2) < 1)


def test_lemma_1_fails_with_the_theorems_batches_for_every_large_n():
    """q ~ n^{-1/3} and s² ~ n^{2/3}, so qα(1+s²) ~ n^{1/3}: more records make it worse, not better."""
    plans = [plan_theory(assumptions(n=10**k)) for k in (6, 9, 12)]
    product = [p.batch / p.assumptions.n * 33 * (1 + p.noise_of_theorem.noise_multiplier**2) for p in plans]
    assert product[0] > 1
    for fewer, more in pairwise(product):
        assert more / fewer == pytest.approx(10, rel=0.02)
    assert not any(c.holds for p in plans for c in p.conditions if c.name == "rate")


def test_the_corollarys_plan_by_hand():
    """T = 100 or 101 as above (4·n0·L·D_F/ζ² is 100 up to rounding); with n·ε = 1000 still, but n = 1250 and ε = 0.8,
    b = b0 = n·√(ε/T) = 1250·√(0.8/100) = 111.8, rounded down. The threshold at ε = 1, α = 33 is
    33²·(1 + 7·33)²·e^{3·32/(7·33)} = 7656²·e^{0.41558} = 8.88e7."""
    plan = plan_theory(assumptions(n=1250, epsilon=0.8), batches="corollary")
    assert plan.b == plan.b0 == pytest.approx(1250 * math.sqrt(0.8 / plan.steps))
    assert (plan.steps, plan.batch, plan.first_batch) in ((100, 111, 111), (101, 111, 111))
    (threshold,) = (c for c in plan.conditions if c.name == "corollary")
    assert not threshold.holds
    assert corollary_steps(epsilon=1.0, delta=math.exp(-16)) == pytest.approx(8.8814e7, rel=1e-4)


def spend(n, batch, steps, noise):
    wor = Sampling(scheme=Scheme.WOR, population=n, batch=batch)
    charge = Charge(GaussianRelease(noise_multiplier=noise, sampling=wor), steps)
    return Spending.of([charge], adjacency=Adjacency.REPLACE_ONE)


def corollarys_guarantee(n, steps, epsilon, delta, beta, *, batch=None):
    batch = batch or corollary_batch(n, steps, epsilon=epsilon)
    noise = theorem_noise(batch / n, steps, epsilon=epsilon, delta=delta, beta=beta).noise_multiplier
    return ACCOUNTANTS["paper"].epsilon(spend(n, batch, steps, noise), delta)


def test_the_threshold_by_hand_is_where_the_papers_accountant_begins_to_hold():
    """ε = 8, δ = e⁻⁴, β = ½: α = 4/(½·8) + 1 = 2, s² = 7α = 14, qα(1+s²) = 30·√(8/T);
    T ≥ 8·30²·e^{6·½·1/(7·2)} = 7200·e^{3/14} = 8920.6."""
    epsilon, delta, n = 8.0, math.exp(-4), 10**6
    assert order_for(0.5, epsilon=epsilon, delta=delta) == 2
    assert corollary_steps(epsilon=epsilon, delta=delta) == 8921
    at = corollarys_guarantee(n, 8921, epsilon, delta, 0.5)
    assert at.holds
    assert at.epsilon <= epsilon
    below = corollarys_guarantee(n, 8900, epsilon, delta, 0.5)
    assert not below.holds
    assert "Lemma 1 does not apply" in below.reason


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("beta", [0.1, 1 / 3, 0.5, 0.9])
def test_the_papers_accountant_holds_from_the_threshold_on_for_every_n(epsilon, beta):
    """The proof's claim for whole batches: rounded down they are between half of n·√(ε/T) and all of it."""
    for delta in (0.01, 1e-5):
        least = corollary_steps(epsilon=epsilon, delta=delta, beta=beta)
        for steps in (least, 2 * least, 50 * least):
            one = math.ceil(math.sqrt(steps / epsilon))  # the n whose batch is 1
            for n in (one, 2 * one - 3, 10 * one, 10**4 * one):
                found = corollarys_guarantee(n, steps, epsilon, delta, beta)
                assert found.holds, found.reason
                assert found.epsilon <= epsilon


def test_rounded_up_the_corollarys_batch_would_break_it():
    """n·√(8/8921) is 29.95 for n = 1000 and 32.94 for n = 1100: one record more, and Lemma 1 does not apply."""
    for n in (1050, 1100):
        batch = corollary_batch(n, 8921, epsilon=8.0)
        assert corollarys_guarantee(n, 8921, 8.0, math.exp(-4), 0.5).holds
        assert not corollarys_guarantee(n, 8921, 8.0, math.exp(-4), 0.5, batch=batch + 1).holds


def test_the_corollarys_best_beta_by_hand():
    """T* ~ α⁴·e^{6β/7}/β² with α ~ 1/(1−β): 4/(1−β) − 2/β + 6/7 = 0, so β = 0.303."""
    for epsilon in (0.1, 1.0):
        beta = corollary_beta(epsilon=epsilon, delta=1e-5)
        assert beta == pytest.approx(0.303, abs=0.025)
        least = corollary_steps(epsilon=epsilon, delta=1e-5, beta=beta)
        assert all(least <= corollary_steps(epsilon=epsilon, delta=1e-5, beta=b) for b in (0.1, 0.25, 0.4, 0.5))


BOUND_BY_THE_ORDER = (50000, 128, 2.0, 6800)


@pytest.mark.parametrize(
    ("n", "batch", "epsilon", "steps"), [(60000, 512, 3.0, 1172), (50000, 256, 8.0, 26000), BOUND_BY_THE_ORDER]
)
def test_the_best_beta_needs_the_noise_that_calibration_finds(n, batch, epsilon, steps):
    """The scan of `calibrate_noise` knows nothing of β, and the paper's accountant agrees with both."""
    best = best_theorem_noise(batch / n, steps, epsilon=epsilon, delta=1e-5)
    proof = ACCOUNTANTS["paper"]
    scanned = calibrate_noise(lambda s: spend(n, batch, steps, s), accountant=proof, epsilon=epsilon, delta=1e-5)
    assert best.noise_multiplier == pytest.approx(scanned, rel=2e-3)
    found = proof.epsilon(spend(n, batch, steps, best.noise_multiplier), 1e-5)
    assert found.holds
    assert found.epsilon <= epsilon


@pytest.mark.parametrize("bad", [{"lipschitz": 0.0}, {"gap": math.nan}, {"delta": 1.0}, {"n": 0}, {"epsilon": -1.0}])
def test_constants_that_make_no_problem_are_refused(bad):
    with pytest.raises(InputError):
        assumptions(**bad)


def test_the_adaptive_step_never_goes_further_than_it_may():
    step = AdaptiveStep(zeta=0.1, n0=2.0, smoothness=0.5)
    theta = torch.zeros(4, dtype=torch.float64)
    for size in (0.0, 1e-9, 0.05, 1.0, 1e9):
        direction = torch.full((4,), size, dtype=torch.float64)
        moved = float((step.advance(theta, direction) - theta).norm())
        assert moved <= 0.1 / (2.0 * 0.5) * (1 + 1e-12)
    small = torch.full((4,), 1e-6, dtype=torch.float64)
    assert torch.allclose(step.advance(theta, small), -small / (2 * 2.0 * 0.5))


def unit_records(n=400):
    generator = torch.Generator().manual_seed(0)
    X = torch.nn.functional.normalize(torch.randn(n, 5, generator=generator), dim=1)
    return Records(X, (torch.rand(n, generator=generator) < 0.5).long())


def theory_settings(**constants):
    """Logistic loss on unit records with bias: ‖∇f‖ ≤ √2 and L = ‖(x,1)‖²/4 ≤ 1/2."""
    theory = Theory(**{"lipschitz": 1.4143, "smoothness": 0.5, **constants})
    return Settings(
        privacy=Privacy(epsilon=2.0, delta=1e-5),
        theory=theory,
        training=Training(batch=40, steps=30, output="random"),
        seed=1,
    )


def test_theory_mode_trains_when_the_assumption_is_true(tmp_path):
    module = make_problem("logistic")[0].module
    run = train(module, binary_loss, unit_records(), theory_settings(zeta=0.05, n0=0.5), out=tmp_path / "run")
    assert run.epsilon <= 2.0
    assert run.plan.method.max_diff_norm == pytest.approx(0.1)


def test_theory_mode_plans_from_the_theorem(tmp_path):
    module = make_problem("logistic")[0].module
    run = train(module, binary_loss, unit_records(), theory_settings(gap=0.69), out=tmp_path / "run")
    plan = plan_theory(
        Assumptions(lipschitz=1.4143, smoothness=0.5, gap=0.69, dimension=6, n=400, epsilon=2.0, delta=1e-5)
    )
    assert run.plan.schedule == plan.schedule
    assert run.plan.method == plan.method()


def test_theory_mode_stops_when_the_assumption_is_false_and_releases_nothing(tmp_path):
    module = make_problem("logistic")[0].module
    settings = theory_settings(lipschitz=0.01, zeta=0.05, n0=0.5)
    with pytest.raises(BoundExceeded, match="nothing was released"):
        train(module, binary_loss, unit_records(), settings, out=tmp_path / "run")
    assert len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()) == 1


def test_theory_mode_clips_when_told_to(tmp_path):
    module = make_problem("logistic")[0].module
    settings = theory_settings(lipschitz=0.01, zeta=0.05, n0=0.5, excess="clip")
    assert train(module, binary_loss, unit_records(), settings, out=tmp_path / "run").epsilon <= 2.0


def corollary_run(tmp_path, *, steps, accountant="paper", beta=0.5):
    theory = Theory(lipschitz=1.4143, smoothness=0.5, zeta=0.05, n0=0.5, batches="corollary", beta=beta)
    privacy = Privacy(epsilon=8.0, delta=math.exp(-4), sampling="wor", accountant=accountant)
    training = Training(steps=steps, output="random")
    settings = Settings(privacy=privacy, theory=theory, training=training, seed=1)
    return train(make_problem("logistic")[0].module, binary_loss, unit_records(), settings, out=tmp_path / "run")


def test_the_corollary_runs_end_to_end_and_its_ledger_is_verified_under_the_papers_accountant(tmp_path, dpsrm):
    run = corollary_run(tmp_path, steps=8921)
    assert run.plan.schedule.batch == 11  # ⌊400·√(8/8921)⌋ = ⌊11.98⌋
    assert run.plan.noise_multiplier**2 == pytest.approx(3.5 * (11 / 400) ** 2 * 8921 * 2 / (0.5 * 8))
    assert run.epsilon <= 8.0
    checked = dpsrm("verify", tmp_path / "run", "--json")
    found = json.loads(checked.stdout)
    assert found["ok"]
    assert found["accountant"] == "paper"
    assert found["holds"]
    assert 7.5 < found["epsilon"] <= 8.0


def test_below_the_threshold_the_papers_accountant_refuses_the_run(tmp_path):
    with pytest.raises(BudgetExceeded, match="Lemma 1 does not apply"):
        corollary_run(tmp_path, steps=2000)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_the_best_beta_runs_or_says_that_there_is_none(tmp_path):
    run = corollary_run(tmp_path, steps=600, accountant="pld", beta=0.5)
    assert run.epsilon < 8.0
    with pytest.raises(InputError, match="at no beta"):
        corollary_run(tmp_path / "none", steps=40, beta="best")


@pytest.mark.parametrize("beta", [None, 0.25, "best"])
def test_a_config_file_holds_the_mode(beta):
    theory = Theory(lipschitz=1.0, smoothness=2.0, gap=3.0, batches="corollary", beta=beta, zeta_factor=6.0)
    settings = Settings(privacy=Privacy(epsilon=1.0, delta=1e-5), theory=theory)
    assert settings_from(settings_to_dict(settings)) == settings
    wrong = settings_to_dict(settings)
    wrong["theory"]["batches"] = "large"
    with pytest.raises(InputError, match=r"theory.batches"):
        settings_from(wrong)


@pytest.mark.parametrize("bad", [{"batches": "large"}, {"beta": 1.0}, {"beta": "worst"}, {"zeta_factor": 0.0}])
def test_settings_that_are_none_are_refused(bad):
    with pytest.raises(InputError):
        Theory(lipschitz=1.0, smoothness=1.0, gap=1.0, **bad)


def test_the_factor_of_zeta_by_hand():
    """Twice ζ: half of b, a quarter of T, twice γ."""
    once, twice = plan_theory(assumptions(n=10**5)), plan_theory(assumptions(n=10**5), zeta_factor=2.0)
    assert twice.zeta == pytest.approx(2 * once.zeta)
    assert twice.b == pytest.approx(once.b / 2)
    assert twice.gamma == pytest.approx(2 * once.gamma)
    assert twice.steps == pytest.approx(once.steps / 4, rel=1e-3)


@pytest.mark.parametrize("bad", [{}, {"zeta": 1.0}, {"gap": 1.0, "zeta": 1.0, "n0": 1.0}, {"gap": -1.0}])
def test_half_given_constants_are_refused(bad):
    with pytest.raises(InputError):
        Theory(lipschitz=1.0, smoothness=1.0, **bad)
