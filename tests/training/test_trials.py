"""Trials run in compiled blocks are the runs that `train` makes: same draws, noise, charges and iterates."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dpsrm.core.book import MemoryBook
from dpsrm.core.errors import BudgetExceeded, InputError
from dpsrm.core.events import Adjacency
from dpsrm.core.ledger import Header, read_ledger
from dpsrm.data import Records, SparseRecords
from dpsrm.gradients import binary_loss, multiclass_loss, squared_loss
from dpsrm.methods import OUTPUTS, Disk, Gd, Rrpsgd, Sgd, Spider, Srm, Storm, make_output, output_shares
from dpsrm.training import Performance, Privacy, Settings, Training, run_trials, train
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


def assert_same(settings, tmp_path, *, data=None, loss=binary_loss, outputs=1, dtype=torch.float32):
    """`train` and a trial with the same settings end at the same θ and charge the same."""
    data, module = data or records(), start(outputs, dtype)
    before = flat(module)
    (trial,) = run_trials(module, loss, data, [settings])
    assert torch.equal(flat(module), before)
    run = train(module, loss, data, settings, out=tmp_path / "run")
    assert float((flat(module) - before).norm()) > 1e-3
    assert torch.allclose(trial.theta, flat(module), rtol=1e-5, atol=2e-6 if dtype == torch.float32 else 1e-12)
    assert trial.theta.dtype == dtype
    assert trial.spending == read_ledger(run.folder.ledger).spending == run.plan.spending
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
    "sgd without privacy": asked(method=Sgd(), privacy=False),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_trial_is_the_run_that_train_makes(name, tmp_path):
    assert_same(METHODS[name], tmp_path)


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_output(output, tmp_path):
    assert_same(asked(output=output, steps=30), tmp_path)


def test_softmax_squared_sparse_and_double(tmp_path):
    assert_same(asked(), tmp_path / "a", data=records(3), loss=multiclass_loss, outputs=3)
    assert_same(asked(), tmp_path / "b", data=records(1), loss=squared_loss)
    assert_same(asked(), tmp_path / "c", data=SparseRecords.of(records(share=0.1)))
    assert_same(asked(), tmp_path / "d", data=records(share=0.1))
    double = asked(method=Srm(max_diff_norm=0.1), regulariser=0.1)
    assert_same(double, tmp_path / "e", data=records(dtype=torch.float64), dtype=torch.float64)


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


@pytest.mark.parametrize(
    "wrong",
    [
        asked(None),
        asked(optimizer="adam"),
        asked(method=Srm(relative=1.0)),
        asked(method=Spider()),
    ],
)
def test_what_a_block_cannot_do_is_refused(wrong):
    with pytest.raises(InputError, match="use train"):
        run_trials(start(), binary_loss, records(), [wrong])


def test_memory_keeps_no_private_runs_charges():
    header = Header(adjacency=Adjacency.REPLACE_ONE, epsilon=1.0, delta=1e-5, accountant="pld", private_randomness=True)
    with pytest.raises(InputError, match="disk"):
        MemoryBook(header)


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_shares_are_the_outputs(name, steps):
    stream = np.random.default_rng(steps)
    output = make_output(name, steps=steps, stream=np.random.default_rng(steps))
    kept = np.zeros(3)
    for time, share in enumerate(output_shares(name, steps=steps, stream=stream)):
        theta = torch.tensor([math.sin(time), float(time), 1.0], dtype=torch.float64)
        output.observe(time, theta)
        kept += share * (theta.numpy() - kept)
    assert np.allclose(kept, output.result().numpy(), rtol=1e-12)
