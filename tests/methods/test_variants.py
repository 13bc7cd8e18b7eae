"""DP-SRM's variants, DiSK, SPIDER, clip rules, schedules, DP-Adam: what each promises beyond the conformance table."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from conftest import make_problem
from dpsrm.core.errors import InputError
from dpsrm.core.secret import Streams
from dpsrm.data import Records
from dpsrm.gradients import ENGINES, ClipRule, Layout, Part, Query, engine
from dpsrm.methods import (
    ConstantStep,
    CorrectedAdam,
    Disk,
    Gd,
    OptimizerStep,
    RateSchedule,
    Rrpsgd,
    Schedule,
    Scheduled,
    Sgd,
    Spider,
    Srm,
    exact_noise,
    papers_noise,
)
from dpsrm.training import Privacy, Settings, Training, make_plan, train

SCHEDULE = Schedule(steps=8, batch=4, first_batch=6)


def begin(method, *, rate=0.5, size=3):
    return method.begin(torch.zeros(size, dtype=torch.float64), schedule=SCHEDULE, stepper=ConstantStep(rate))


def ones(size=3):
    return torch.ones(size, dtype=torch.float64)


def trained(method, out, **training):
    objective, make = make_problem("mlp", dtype=torch.float64)
    settings = Settings(
        privacy=Privacy(epsilon=50.0, delta=1e-5, sampling="wor", accountant="rdp", noise_multiplier=2.0),
        method=method,
        training=Training(**{"steps": 8, "batch": 5, "learning_rate": 0.2, "output": "last", **training}),
        seed=2,
    )
    train(objective.module, objective.loss, Records(*make(30)), settings, out=out)
    return objective.layout.read(objective.module)


def test_disk_looking_back_is_srm_with_a_joint_clip(tmp_path):
    """With noise: κ times the noise of a clip C is the noise of a clip κ·C."""
    disk = trained(Disk(kappa=0.4, lookahead=-1.0, max_grad_norm=0.8), tmp_path / "disk")
    srm = trained(Srm(gamma=0.4, max_grad_norm=0.8, joint_norm=0.4 * 0.8), tmp_path / "srm")
    assert torch.allclose(disk, srm, rtol=1e-9)


def test_disk_with_full_gain_is_dp_sgd(tmp_path):
    assert torch.equal(trained(Disk(kappa=1.0), tmp_path / "disk"), trained(Sgd(), tmp_path / "sgd"))


def test_spider_that_always_restarts_is_dp_sgd(tmp_path):
    assert torch.equal(trained(Spider(period=1), tmp_path / "spider"), trained(Sgd(), tmp_path / "sgd"))


def test_disk_leaves_out_points_of_no_weight():
    walk = begin(Disk(kappa=0.5, lookahead=1.0))  # a = 1: only the look-ahead point
    walk.tell(ones())
    (point,) = walk.ask().query.points
    assert torch.allclose(point, walk.theta + (walk.theta - walk.previous))


def test_relative_c2_shrinks_with_the_step():
    walk = begin(Srm(gamma=0.25, max_grad_norm=2.0, max_diff_norm=0.7, relative=1.5))
    assert walk.ask().query.bound == 2.0
    walk.tell(0.1 * ones())  # ‖d‖ = 0.5·0.1·√3
    assert walk.ask().query.bound == pytest.approx(0.75 * 1.5 * 0.05 * math.sqrt(3) + 0.25 * 2.0)
    walk.tell(100 * ones())
    assert walk.ask().query.bound == pytest.approx(0.75 * 0.7 + 0.25 * 2.0)


def test_a_step_of_no_length_is_no_special_case(tmp_path):
    walk = begin(Spider(period=3))
    walk.tell(0 * ones())
    assert 0 < walk.ask().query.bound < 1e-90
    assert torch.isfinite(trained(Spider(period=3), tmp_path / "run", learning_rate=1e-300)).all()


def test_joint_clip_is_one_part():
    walk = begin(Srm(gamma=0.25, joint_norm=0.3))
    walk.tell(ones())
    (part,) = walk.ask().query.parts
    assert part.coefficients == (1.0, -0.75)
    assert walk.ask().query.bound == 0.3


def test_gamma_schedule_starts_as_dp_sgd_and_is_public():
    walk = begin(Srm(gamma=0.2, gamma_schedule="linear"))
    gammas = []
    for _ in range(8):
        query = walk.ask().query
        gammas.append(query.parts[-1].weight)
        walk.tell(ones())
    assert gammas == pytest.approx([1.0, *(0.2 + 0.8 * (1 - t / 7) for t in range(7))])


def test_spiders_radius_is_relative_and_capped():
    walk = begin(Spider(period=3, smoothness=2.0, max_diff_norm=0.3))
    assert walk.ask().query.bound == 1.0
    walk.tell(0.01 * ones())
    assert walk.ask().query.bound == pytest.approx(2.0 * 0.005 * math.sqrt(3))
    walk.tell(ones())
    assert walk.ask().query.bound == 0.3
    walk.tell(ones())
    assert (walk.ask().query.bound, walk.ask().batch) == (1.0, 6)


@pytest.mark.parametrize(
    "method",
    [
        Srm(gamma=0.2),
        Srm(gamma=0.2, gamma_schedule="sqrt"),
        Sgd(momentum=0.9),
        Sgd(momentum=0.9, momentum_kind="heavy-ball"),
        Disk(kappa=0.3),
        Spider(period=5),
    ],
    ids=lambda method: method.name,
)
def test_the_noise_in_the_direction_is_known(method):
    walk, stream = begin(method, size=30_000, rate=1e-9), np.random.default_rng(0)
    for std in (0.5, 2.0, 1.0, 1.0, 3.0, 0.1, 1.0):
        walk.tell(torch.from_numpy(std * stream.standard_normal(30_000)), std=std)
        assert float(walk.direction.std()) == pytest.approx(walk.std, rel=0.03)


@pytest.mark.parametrize("name", sorted(set(ENGINES) - {"linear"}))
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_automatic_clipping_is_the_formula_and_stays_within_the_clip(name, scale):
    objective, make = make_problem("mlp", dtype=torch.float64)
    point = objective.layout.read(objective.module)
    inputs, targets = make(3, scale=scale)
    query = Query(points=(point,), parts=(Part(coefficients=(1.0,), clip=0.7, rule=ClipRule.AUTO),))
    raw = Query(points=(point,), parts=(Part(coefficients=(1.0,), clip=math.inf),))
    run, by_hand = engine(name, objective), 0
    for i in range(3):
        one = inputs[i : i + 1], targets[i : i + 1]
        g = run(raw, one).secret
        clipped = 0.7 * g / (g.norm() + 0.01)
        assert torch.allclose(run(query, one).secret, clipped, rtol=1e-6)
        assert float(run(query, one).secret.norm()) <= 0.7
        by_hand = by_hand + clipped
    assert torch.allclose(run(query, (inputs, targets)).secret, by_hand, rtol=1e-6)


def test_automatic_clipping_needs_a_clip():
    with pytest.raises(InputError, match="finite"):
        Part(coefficients=(1.0,), clip=math.inf, rule=ClipRule.AUTO)


def test_dp_adam_without_noise_is_adam():
    module = nn.Linear(4, 1)
    layout, stream = Layout.of(module), torch.Generator().manual_seed(0)
    theta = layout.read(module).double()
    ours = CorrectedAdam(0.1)
    theirs = OptimizerStep.made(lambda leaves: torch.optim.Adam(leaves, lr=0.1), layout, theta)
    a = b = theta
    for _ in range(20):
        g = torch.randn(layout.size, generator=stream, dtype=torch.float64)
        a, b = ours.advance(a, g), theirs.advance(b, g)
    assert torch.allclose(a, b, rtol=1e-9)


def test_dp_adam_takes_the_known_noise_out():
    """Gradients 1 and 0.2 under noise of std 1: corrected steps are alike, uncorrected ones differ by the gradients."""
    size, steps, stream = 2000, 400, np.random.default_rng(0)
    truth = np.repeat([1.0, 0.2], size // 2)
    moved = {}
    for told in (1.0, 0.0):
        adam, theta = CorrectedAdam(0.01, betas=(0.9, 0.99), floor=0.15), torch.zeros(size, dtype=torch.float64)
        for t in range(steps):
            if t == steps // 2:
                half = theta.clone()
            noise = stream.standard_normal(size)
            theta = adam.advance(theta, torch.from_numpy(truth + noise), std=told)
        step = -(theta - half) / (steps - steps // 2) / 0.01
        moved[told] = float(step[: size // 2].mean()), float(step[size // 2 :].mean())
    assert moved[1.0][0] == pytest.approx(1.0, rel=0.15)
    assert moved[0.0][0] == pytest.approx(1 / math.sqrt(2), rel=0.15)
    assert moved[1.0][1] > 2.5 * moved[0.0][1]


def test_the_step_rule_is_told_the_noise_of_the_run(tmp_path, monkeypatch):
    """s·2R/b for DP-SRM's releases, mixed as v mixes them."""
    told, real = [], CorrectedAdam.advance
    monkeypatch.setattr(
        CorrectedAdam, "advance", lambda adam, *args, std: told.append(std) or real(adam, *args, std=std)
    )
    trained(Srm(gamma=0.25, max_grad_norm=2.0, max_diff_norm=0.4), tmp_path / "run", optimizer="dp-adam", steps=3)
    first, later = 2.0 * 2 * 2.0 / 5, 2.0 * 2 * (0.75 * 0.4 + 0.25 * 2.0) / 5
    second = math.hypot(later, 0.75 * first)
    assert told == pytest.approx([first, second, math.hypot(later, 0.75 * second)])


def test_a_pure_noise_coordinate_does_not_run_away():
    adam, theta, stream = CorrectedAdam(0.01), torch.zeros(1000, dtype=torch.float64), np.random.default_rng(1)
    for _ in range(200):
        theta = adam.advance(theta, torch.from_numpy(stream.standard_normal(1000)), std=1.0)
    assert float(theta.abs().max()) < 200 * 0.01


def test_a_schedule_is_the_schedule_of_the_learning_rate():
    """Against torch's own LambdaLR on Adam, which remembers."""
    module = nn.Linear(4, 1).double()
    layout, stream = Layout.of(module), torch.Generator().manual_seed(0)
    rate = RateSchedule(decay="cosine", warmup=3, steps=10)
    start = layout.read(module)
    step = Scheduled(OptimizerStep.made(lambda leaves: torch.optim.AdamW(leaves, lr=0.1), layout, start), rate)
    theirs = torch.optim.AdamW(module.parameters(), lr=0.1)
    torch_schedule = torch.optim.lr_scheduler.LambdaLR(theirs, rate)
    theta = start
    for _ in range(10):
        g = torch.randn(layout.size, generator=stream, dtype=torch.float64)
        theta = step.advance(theta, g)
        for name, p in module.named_parameters():
            p.grad = layout.split(g)[name].clone()
        theirs.step()
        torch_schedule.step()
    assert torch.allclose(theta, layout.read(module), rtol=1e-9)


def test_decay_needs_a_name_and_room():
    with pytest.raises(InputError, match="cosine"):
        RateSchedule(decay="exponential", warmup=0, steps=5)
    with pytest.raises(InputError, match="shorter"):
        RateSchedule(decay="linear", warmup=5, steps=5)


@pytest.mark.parametrize(("name", "slack"), [("pld", 1.005), ("rdp", 1.2)])
@pytest.mark.parametrize(("epsilon", "mu"), [(0.2, 0.06133), (0.5, 0.14221)])
def test_dp_gd_needs_the_exact_noise(name, slack, epsilon, mu):
    n, steps = 32561, 20
    schedule = Schedule(steps=steps, batch=n, first_batch=n)
    plan = make_plan(Gd(), schedule, n=n, privacy=Privacy(epsilon=epsilon, delta=1e-5, sampling="wor", accountant=name))
    ours, exact = plan.noise_multiplier * 2 * 1.0 / n, exact_noise(clip=1.0, n=n, steps=steps, mu=mu)
    assert exact * 0.9999 <= ours <= slack * exact


def test_rrpsgds_own_noise_is_sound_and_loose():
    """The strong-composition formula asks for several times what the accountant finds enough."""
    n, rounds = 100, 100**2
    papers = papers_noise(n=n, epsilon=0.5, delta=1e-5)
    schedule = Schedule(steps=rounds, batch=1, first_batch=1)
    privacy = Privacy(epsilon=0.5, delta=1e-5, sampling="wor", accountant="rdp")
    assert make_plan(Rrpsgd(), schedule, n=n, privacy=privacy).noise_multiplier < papers / 4
    with pytest.raises(InputError, match="epsilon"):
        papers_noise(n=n, epsilon=2.0, delta=1e-5)


def test_rrpsgds_rounds_are_uniform_and_drawn_from_the_stream():
    stream = Streams.seeded(0).output
    counts = np.bincount([Rrpsgd().rounds(10, stream) for _ in range(5000)], minlength=11)
    assert counts[0] == 0
    assert np.abs((counts[1:] - 500) / math.sqrt(450)).max() < 5


def test_rrpsgd_is_charged_for_its_own_rounds(tmp_path):
    objective, make = make_problem("logistic")
    settings = Settings(
        privacy=Privacy(epsilon=2.0, delta=1e-5, sampling="wor", accountant="rdp"),
        method=Rrpsgd(),
        training=Training(steps=50),
        seed=1,
    )
    run = train(objective.module, objective.loss, Records(*make(100)), settings, out=tmp_path / "run")
    expected = Rrpsgd().rounds(50, Streams.seeded(1).output)
    assert run.plan.spending.releases == expected == run.plan.schedule.steps < 50
    longest = make_plan(Rrpsgd(), Schedule(steps=50, batch=1, first_batch=1), n=100, privacy=settings.privacy)
    assert run.plan.noise_multiplier == longest.noise_multiplier
    assert run.epsilon < longest.guarantee.epsilon <= 2.0
