"""Every method × every property: deterministic, charged as predicted, stopped by the budget, resumable, textbook limit,
any model, clear refusals."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from conftest import make_problem
from dpsrm.core.errors import BudgetExceeded, InputError
from dpsrm.core.events import Charge, Spending, UnprotectedRelease, ZcdpRelease
from dpsrm.core.files import read_toml, write_toml
from dpsrm.data import Records
from dpsrm.gradients import Layout
from dpsrm.methods import (
    METHODS,
    Agd,
    Choice,
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
    Storm,
    method_class,
)
from dpsrm.runs.certificate import prove
from dpsrm.runs.ledger import read_ledger
from dpsrm.training import Privacy, Settings, Training, config_from, settings_to_dict, train
from dpsrm.training.plan import Plan

N, D, STEPS = 40, 5, 9
PRIVACY = Privacy(epsilon=4.0, delta=1e-5, sampling="wor", accountant="rdp")
FIXED = replace(PRIVACY, noise_multiplier=6.0)


@dataclass(frozen=True)
class Case:
    """A method under test, and what it is trained with."""

    method: object
    training: dict = field(default_factory=dict)

    def settings(self, privacy=FIXED, **changes):
        training = Training(**{"steps": STEPS, "learning_rate": 0.3, **self.training, **changes})
        promise = privacy if self.method.private else None
        return Settings(privacy=promise, method=self.method, training=training, seed=3)


BATCHES = {"batch": 8, "first_batch": 20}
CASES = {
    "srm": Case(Srm(gamma=0.3), BATCHES),
    "srm-relative": Case(Srm(gamma=0.3, relative=2.0), BATCHES),
    "srm-joint": Case(Srm(gamma=0.3, joint_norm=0.6), BATCHES),
    "srm-full-start": Case(Srm(gamma=0.3), {"batch": 8, "first_batch": N}),
    "srm-gamma": Case(Srm(gamma=0.3, gamma_schedule="cosine"), BATCHES),
    "srm-auto": Case(Srm(gamma=0.3, clip="auto"), BATCHES),
    "sgd": Case(Sgd(), BATCHES),
    "sgd-ema": Case(Sgd(momentum=0.8), BATCHES),
    "sgd-heavy-ball": Case(Sgd(momentum=0.8, momentum_kind="heavy-ball"), BATCHES),
    "sgd-auto": Case(Sgd(clip="auto"), BATCHES),
    "sgd-dp-adam": Case(Sgd(), {**BATCHES, "optimizer": "dp-adam", "decay": "cosine", "warmup": 3}),
    "gd": Case(Gd()),
    "rrpsgd": Case(Rrpsgd(), {"steps": 30}),
    "disk": Case(Disk(), BATCHES),
    "spider": Case(Spider(period=4), BATCHES),
    "agd": Case(Agd(candidates=6)),
    "agd-exponential": Case(Agd(candidates=6, selection="exponential")),
    "storm": Case(Storm(gamma=0.3), BATCHES),
}


@pytest.fixture(params=sorted(CASES))
def case(request):
    return CASES[request.param]


def records(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, D, generator=generator, dtype=dtype)
    return Records(X, (X.sum(dim=1) > 0).long())


def zero_logistic():
    module = torch.nn.Linear(D, 1).double()
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    return module


def run(settings, out):
    module = zero_logistic()
    loss = make_problem("logistic")[0].loss
    done = train(module, loss, records(), settings, out=out)
    return done, torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


def test_every_method_is_in_the_table_and_says_what_it_is():
    assert {case.method.name for case in CASES.values()} == set(METHODS)
    for name, cls in METHODS.items():
        assert method_class(name) is cls
        assert cls().name == name
        for text in (cls.summary, cls.guarantee, cls.use):
            assert isinstance(text, str)
            assert text
        assert cls.gradients_per_example in (1, 2)


def test_deterministic_under_a_research_seed(case, tmp_path):
    _, first = run(case.settings(), tmp_path / "a")
    _, again = run(case.settings(), tmp_path / "b")
    _, other = run(replace(case.settings(), seed=4), tmp_path / "c")
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.isfinite(first).all()


def test_the_ledger_written_is_the_ledger_predicted(case, tmp_path):
    done, _ = run(case.settings(PRIVACY), tmp_path / "run")
    facts = read_ledger(done.folder.ledger)
    if not case.method.private:
        assert {type(charge.event) for charge in facts.spending.charges} == {UnprotectedRelease}
        assert done.epsilon == math.inf
        return
    assert prove(facts, facts.closing).epsilon <= PRIVACY.epsilon
    if case.method.adaptive:
        assert {type(charge.event) for charge in facts.spending.charges} == {ZcdpRelease}
        assert facts.released == facts.spending.releases
    else:
        assert facts.spending == done.plan.spending
        assert prove(facts, facts.closing).epsilon > 0.98 * PRIVACY.epsilon
        assert facts.released == facts.spending.releases == done.plan.schedule.steps


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_both_adjacencies(name, adjacency, tmp_path):
    case = CASES[name]
    if not case.method.private:
        pytest.skip("not private")
    done, _ = run(case.settings(replace(FIXED, adjacency=adjacency, sampling="poisson")), tmp_path / "run")
    assert done.epsilon <= PRIVACY.epsilon
    assert done.guarantee.adjacency.value == adjacency


def test_the_budget_stops_it(case, tmp_path, monkeypatch):
    """The plan is made for its whole cost; the ledger's header allows the mean of that and the first release's."""
    if not case.method.private:
        pytest.skip("has no budget")
    real, allowed = Plan.header, []

    def tight(plan, **more):
        first = Spending.of([Charge(plan.spending.charges[0].event, 1)], adjacency=plan.spending.adjacency)
        allowed.append((plan.epsilon_of(first) + plan.guarantee.epsilon) / 2)
        return replace(real(plan, **more), epsilon=allowed[0])

    monkeypatch.setattr(Plan, "header", tight)
    if case.method.adaptive:
        run(case.settings(), tmp_path / "run")
    else:
        with pytest.raises(BudgetExceeded, match="not made"):
            run(case.settings(), tmp_path / "run")
    facts = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert prove(facts, facts.closing).epsilon <= allowed[0]
    assert facts.spending.releases >= 1


LAYOUT = Layout.of(zero_logistic())
STEPPERS = {
    "constant": lambda: ConstantStep(0.3),
    "dp-adam": lambda: CorrectedAdam(0.3),
    "torch-adam": lambda: OptimizerStep.made(
        lambda leaves: torch.optim.Adam(leaves, lr=0.1), LAYOUT, torch.zeros(D + 1, dtype=torch.float64)
    ),
    "scheduled": lambda: Scheduled(ConstantStep(0.3), RateSchedule(decay="linear", warmup=3, steps=STEPS)),
}


def plain(value):
    """Whether `value` is a tree of tensors and numbers."""
    if isinstance(value, dict):
        return all(isinstance(key, (str, int)) and plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(plain(item) for item in value)
    return value is None or isinstance(value, (torch.Tensor, float, int, bool))


def answer(walk, index):
    """A made-up release that depends on all that was asked; a choice that stays every third time."""
    ask = walk.ask()
    if isinstance(ask, Choice):
        return torch.tensor((index * 5) % 3)
    generator = torch.Generator().manual_seed(index)
    value = min(ask.query.bound, 1.0) * torch.randn(D + 1, generator=generator, dtype=torch.float64)
    for part in ask.query.parts:
        for share, point in zip(part.coefficients, ask.query.points, strict=True):
            value += part.weight * share * torch.cos(point)
    return value


@pytest.mark.parametrize("stepper", sorted(STEPPERS))
@pytest.mark.parametrize("middle", [1, 4])
def test_state_goes_on_as_if_nothing_had_happened(case, stepper, middle, tmp_path):
    if case.method.adaptive and stepper != "constant":
        pytest.skip("chooses its own steps")
    method, schedule = case.method.calibrated(2.0), Schedule(steps=STEPS, batch=8, first_batch=20)
    zero = torch.zeros(D + 1, dtype=torch.float64)
    straight = method.begin(zero, schedule=schedule, stepper=STEPPERS[stepper]())
    for index in range(9):
        if index == middle:
            assert plain(straight.state_dict())
            torch.save(straight.state_dict(), tmp_path / "state")
        straight.tell(answer(straight, index), std=0.5)
    resumed = method.begin(zero + 7, schedule=schedule, stepper=STEPPERS[stepper]())
    resumed.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    for index in range(middle, 9):
        resumed.tell(answer(resumed, index), std=0.5)
    assert torch.equal(straight.theta, resumed.theta)
    assert torch.equal(straight.direction, resumed.direction)
    assert (straight.time, straight.std) == (resumed.time, resumed.std)


@pytest.mark.parametrize("kind", ["logistic", "mlp", "cnn"])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_runs_on_any_model(name, kind, tmp_path):
    objective, make = make_problem(kind)
    settings = CASES[name].settings()
    before = objective.layout.read(objective.module)
    done = train(objective.module, objective.loss, Records(*make(N)), settings, out=tmp_path / "run")
    after = objective.layout.read(done.module)
    assert torch.isfinite(after).all()
    assert not torch.equal(before, after)


def test_settings_survive_a_config_file(case, tmp_path):
    settings = case.settings(PRIVACY)
    write_toml(tmp_path / "config.toml", {"data": {"path": "x.csv"}, **settings_to_dict(settings)})
    assert config_from(read_toml(tmp_path / "config.toml")).settings == settings


BAD = [
    (Srm, {"relative": -1.0}),
    (Srm, {"joint_norm": 0.0}),
    (Srm, {"relative": 1.0, "joint_norm": 1.0}),
    (Srm, {"gamma_schedule": "sometimes"}),
    (Srm, {"clip": "auto", "excess": "raise"}),
    (Sgd, {"max_grad_norm": 0.0}),
    (Sgd, {"momentum": 1.0}),
    (Sgd, {"momentum": -0.1}),
    (Sgd, {"momentum_kind": "nesterov"}),
    (Gd, {"max_grad_norm": math.nan}),
    (Rrpsgd, {"max_grad_norm": -1.0}),
    (Disk, {"kappa": 0.0}),
    (Disk, {"kappa": 1.2}),
    (Disk, {"lookahead": 0.0}),
    (Disk, {"max_grad_norm": 0.0}),
    (Spider, {"period": 0}),
    (Spider, {"smoothness": 0.0}),
    (Spider, {"max_diff_norm": 0.0}),
    (Agd, {"candidates": 0}),
    (Agd, {"growth": 0.0}),
    (Agd, {"rho": 0.0}),
    (Agd, {"max_loss": -1.0}),
    (Storm, {"gamma": 0.0}),
    (Storm, {"gamma_schedule": "sometimes"}),
]


@pytest.mark.parametrize(("cls", "bad"), BAD, ids=[f"{cls.name}-{'-'.join(bad)}" for cls, bad in BAD])
def test_settings_that_are_no_method_are_refused(cls, bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        cls(**bad)


def test_every_method_has_a_refusal_in_the_table():
    assert {cls.name for cls, _ in BAD} == set(METHODS)


@pytest.mark.parametrize(
    ("method", "training", "words"),
    [
        (Gd(), {"batch": 8}, "always of 40"),
        (Agd(), {"first_batch": 8}, "always of 40"),
        (Rrpsgd(), {"batch": 8}, "always of 1"),
        (Agd(), {"optimizer": "adam"}, "own step sizes"),
        (Agd(), {"decay": "linear"}, "own step sizes"),
        (Agd(), {"output": "tail"}, "not known beforehand"),
        (Sgd(), {"warmup": STEPS}, "shorter than the training"),
    ],
)
def test_training_that_does_not_suit_the_method_is_refused(method, training, words, tmp_path):
    with pytest.raises(InputError, match=words):
        run(Case(method).settings(**training), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_method_without_a_private_form_refuses_a_budget(tmp_path):
    settings = replace(CASES["storm"].settings(), privacy=PRIVACY)
    with pytest.raises(InputError, match="storm has no private form"):
        run(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
