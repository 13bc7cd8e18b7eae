"""The theory planner: the utility theorem's parameters, worked by hand, and its conditions."""

import math

import pytest
import torch

from conftest import make_problem
from dpsrm.core.errors import BoundExceeded, InputError
from dpsrm.data import Records
from dpsrm.methods import AdaptiveStep, Assumptions, plan_theory
from dpsrm.training import Privacy, Settings, Theory, Training, train
from dpsrm.training.models import binary_loss


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
    s2 = 3.5 * 20**2 * plan.steps * 33 / (0.5 * 1000**2)
    assert f"{s2:.4g}" in plan.conditions[3].text
    assert plan.conditions[3].holds == (s2 >= 0.7)
    inside = 20 / 1000 * 33 * (1 + s2)
    assert plan.conditions[4].holds == (inside < 1)


@pytest.mark.parametrize("bad", [{"lipschitz": 0.0}, {"gap": math.nan}, {"delta": 1.0}, {"n": 0}, {"epsilon": -1.0}])
def test_constants_that_make_no_problem_are_refused(bad):
    with pytest.raises(InputError):
        assumptions(**bad)


def test_the_adaptive_step_never_goes_further_than_it_may():
    step = AdaptiveStep(zeta=0.1, n0=2.0, lipschitz=0.5)
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


@pytest.mark.parametrize("bad", [{}, {"zeta": 1.0}, {"gap": 1.0, "zeta": 1.0, "n0": 1.0}, {"gap": -1.0}])
def test_half_given_constants_are_refused(bad):
    with pytest.raises(InputError):
        Theory(lipschitz=1.0, smoothness=1.0, **bad)
