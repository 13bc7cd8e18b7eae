"""Trials are the runs that `train` makes, bit for bit: same draws, noise, charges and iterates."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from dpsrm.core.errors import BudgetExceeded, InputError
from dpsrm.core.events import Adjacency
from dpsrm.data import Records, SparseRecords
from dpsrm.gradients import binary_loss, multiclass_loss, squared_loss
from dpsrm.methods import OUTPUTS, Agd, Disk, Gd, Rrpsgd, Sgd, Spider, Srm, Storm
from dpsrm.runs.book import MemoryBook
from dpsrm.runs.ledger import Header, read_ledger
from dpsrm.training import Performance, Privacy, Settings, Theory, Training, run_trials, train
from dpsrm.training.plan import Plan

N, D = 150, 6


def records(classes=2, *, share=0.5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(N, D, generator=generator, dtype=dtype)
    inputs = inputs * (torch.rand(N, D, generator=generator) < share)
    scores = inputs @ torch.randn(D, max(classes, 2), generator=generator, dtype=dtype)
    return Records(inputs, scores.argmax(dim=1) if classes > 1 else scores[:, 0])


def start(outputs=1, dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Linear(D, outputs, dtype=dtype)


def asked(seed=1, *, method=None, sampling="wor", privacy=True, batch=7, steps=90, **training):
    adjacency = Adjacency.REPLACE_ONE
    promise = Privacy(epsilon=3.0, delta=1e-5, sampling=sampling, accountant="rdp", adjacency=adjacency)
    return Settings(
        privacy=promise if privacy else None,
        method=method or Srm(max_grad_norm=1.0, max_diff_norm=0.1),
        training=Training(batch=batch, steps=steps, **{"learning_rate": 0.3, **training}),
        performance=Performance(engine="linear"),
        seed=seed,
    )


def flat(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def assert_same(settings, tmp_path, *, data=None, loss=binary_loss, module=None):
    """`train` and a trial with the same settings end at the same θ, to the last bit, and charge the same."""
    data, module = data or records(), module or start()
    before = flat(module)
    (trial,) = run_trials(module, loss, data, [settings])
    assert torch.equal(flat(module), before)
    run = train(module, loss, data, settings, out=tmp_path / "run")
    assert float((flat(module) - before).norm()) > 1e-3
    assert torch.equal(trial.theta, flat(module))
    assert trial.theta.dtype == before.dtype
    assert trial.spending == read_ledger(run.folder.ledger).spending
    assert run.plan.method.adaptive or trial.spending == run.plan.spending
    assert trial.epsilon == run.epsilon


METHODS = {
    "srm": asked(regulariser=0.01),
    "srm poisson": asked(sampling="poisson", first_batch=40),
    "srm joint, auto, schedule": asked(method=Srm(joint_norm=0.5, gamma=0.2, gamma_schedule="linear")),
    "srm auto-s": asked(method=Srm(max_diff_norm=0.2, clip="auto")),
    "sgd": asked(method=Sgd()),
    "sgd momentum": asked(method=Sgd(momentum=0.8), decay="cosine", warmup=5),
    "sgd heavy ball": asked(method=Sgd(momentum=0.5, momentum_kind="heavy-ball"), sampling="poisson"),
    "gd": asked(method=Gd(), batch=None, steps=20),
    "disk": asked(method=Disk(kappa=0.5, lookahead=0.7)),
    "rrpsgd": asked(method=Rrpsgd(), batch=None, learning_rate=0.02),
    "storm": asked(method=Storm(), privacy=False),
    "srm relative": asked(method=Srm(relative=1.0)),
    "spider": asked(method=Spider(period=10), first_batch=40),
    "spider poisson": asked(method=Spider(period=10), first_batch=40, sampling="poisson"),
    "agd": asked(method=Agd(), batch=None, steps=30),
    "sgd adam": asked(method=Sgd(), optimizer="adam", learning_rate=0.05),
    "sgd without privacy": asked(method=Sgd(), privacy=False),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_trial_is_the_run_that_train_makes(name, tmp_path):
    assert_same(METHODS[name], tmp_path)


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_output(output, tmp_path):
    assert_same(asked(output=output, steps=30), tmp_path)


def test_softmax_squared_sparse_and_double(tmp_path):
    assert_same(asked(), tmp_path / "a", data=records(3), loss=multiclass_loss, module=start(3))
    assert_same(asked(), tmp_path / "b", data=records(1), loss=squared_loss)
    assert_same(asked(), tmp_path / "c", data=SparseRecords.of(records(share=0.1)))
    assert_same(asked(), tmp_path / "d", data=records(share=0.1))
    double = asked(method=Srm(max_diff_norm=0.1), regulariser=0.1)
    assert_same(double, tmp_path / "e", data=records(dtype=torch.float64), module=start(dtype=torch.float64))


def test_any_module_with_dropout_and_any_engine(tmp_path):
    for engine in ("auto", "functional"):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            module = nn.Sequential(nn.Linear(D, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 1))
        settings = replace(asked(steps=12), performance=Performance(engine=engine))
        assert_same(settings, tmp_path / engine, module=module)


def test_theory_mode(tmp_path):
    theory = Theory(lipschitz=20.0, smoothness=40.0, zeta=1.0, n0=1.0)
    assert_same(replace(asked(), theory=theory), tmp_path)


def test_each_trial_has_its_own_seed_and_settings_and_the_order_does_not_matter():
    trials = [asked(seed, method=method) for seed in range(3) for method in (Srm(), Sgd(max_grad_norm=0.5))]
    together = run_trials(start(), binary_loss, records(), trials)
    backwards = run_trials(start(), binary_loss, records(), trials[::-1])[::-1]
    assert [result.settings for result in together] == trials
    for one, other in zip(together, backwards, strict=True):
        assert torch.equal(one.theta, other.theta)
    assert len({tuple(result.theta.tolist()) for result in together}) == 6


def test_snapshots_change_nothing_and_are_the_iterates():
    plain, watched = (
        run_trials(start(), binary_loss, records(), [asked(output="last")], snapshots=at)[0] for at in ((), (0, 5, 90))
    )
    assert torch.equal(plain.theta, watched.theta)
    assert sorted(watched.iterates) == [0, 5, 90]
    assert torch.equal(watched.iterates[0], flat(start()))
    assert torch.equal(watched.iterates[90], watched.theta)
    short = run_trials(start(), binary_loss, records(), [asked(output="last", steps=5, privacy=False)])[0]
    longer = run_trials(start(), binary_loss, records(), [asked(output="last", privacy=False)], snapshots=(5,))[0]
    assert torch.equal(longer.iterates[5], short.theta)


def test_the_budget_is_checked_by_the_plans_accountant(monkeypatch):
    real = Plan.epsilon_of
    monkeypatch.setattr(Plan, "epsilon_of", lambda plan, spending: 2 * real(plan, spending))
    with pytest.raises(BudgetExceeded):
        run_trials(start(), binary_loss, records(), [asked()])


def test_what_trials_cannot_promise_is_refused():
    for wrong in (asked(None), replace(asked(), budget="budget.jsonl")):
        with pytest.raises(InputError, match="use train"):
            run_trials(start(), binary_loss, records(), [wrong])


def test_a_trial_that_diverges_has_no_theta_and_the_others_go_on():
    wild = asked(learning_rate=1e38)
    first, second = run_trials(start(), binary_loss, records(), [wild, asked()])
    assert first.theta.isnan().all()
    assert first.spending.releases > 0
    assert second.theta.isfinite().all()


def test_equal_settings_are_planned_once(monkeypatch):
    module, made = sys.modules["dpsrm.training.trials"], []
    module.forget_plans()
    real = module.noise_for
    monkeypatch.setattr(module, "noise_for", lambda *facts, **more: made.append(facts) or real(*facts, **more))
    trials = [asked(seed) for seed in range(3)] + [asked(learning_rate=0.1), asked(method=Sgd())]
    results = run_trials(start(), binary_loss, records(), trials)
    assert len(made) == 2
    assert results[0].plan is results[3].plan


def test_memory_keeps_no_private_runs_charges():
    header = Header(adjacency=Adjacency.REPLACE_ONE, epsilon=1.0, delta=1e-5, accountant="pld", private_randomness=True)
    with pytest.raises(InputError, match="disk"):
        MemoryBook(header)
