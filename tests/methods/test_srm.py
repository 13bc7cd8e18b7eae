"""DP-SRM: without noise and clips it is STORM, with γ = 1 it is DP-SGD; its sensitivity is the right one."""

import math

import numpy as np
import pytest
import torch

from conftest import make_problem
from dpsrm.core.errors import InputError
from dpsrm.data import Records
from dpsrm.gradients import Excess
from dpsrm.methods import ConstantStep, Schedule, Srm
from dpsrm.training import Privacy, Settings, Training, train

N, D, STEPS, BATCH, FIRST, RATE, GAMMA = 60, 5, 12, 8, 20, 0.3, 0.2


def storm_in_numpy(X, y, batches, *, rate, gamma):
    """An independent STORM for logistic regression with bias: the θ after every step."""
    theta = np.zeros(X.shape[1] + 1)
    X1 = np.hstack([X, np.ones((len(X), 1))])

    def gradient(at, batch):
        return X1[batch].T @ (1 / (1 + np.exp(-X1[batch] @ at)) - y[batch]) / len(batch)

    v, previous, path = np.zeros_like(theta), theta, []
    for t, batch in enumerate(batches):
        carried = (1 - gamma) * (v - gradient(previous, batch)) if t > 0 else 0.0
        v = gradient(theta, batch) + carried
        previous, theta = theta, theta - rate * v
        path.append(theta)
    return np.array(path)


def logistic_records():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(N, D, generator=generator, dtype=torch.float64)
    return X, (torch.rand(N, generator=generator) < 0.5).long()


def zero_logistic():
    module = torch.nn.Linear(D, 1).double()
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    return module


def run(tmp_path, settings):
    objective, _ = make_problem("logistic")
    module = zero_logistic()
    X, y = logistic_records()
    train(module, objective.loss, Records(X, y), settings, out=tmp_path / "run")
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


@pytest.mark.parametrize("steps", [1, 2, STEPS])
def test_without_noise_and_clips_it_is_storm(tmp_path, spied, steps):
    training = Training(steps=steps, batch=BATCH, first_batch=FIRST, learning_rate=RATE, output="last")
    theta = run(tmp_path, Settings(privacy=None, method=Srm(gamma=GAMMA), training=training, seed=4))
    X, y = logistic_records()
    path = storm_in_numpy(X.numpy(), y.numpy(), spied, rate=RATE, gamma=GAMMA)
    assert [len(batch) for batch in spied] == [FIRST] + [BATCH] * (steps - 1)
    assert np.allclose(theta, path[-1], rtol=1e-12, atol=1e-14)


def test_with_gamma_one_it_is_dp_sgd(tmp_path, spied):
    """Clip, mean, the same noise, step: nothing of the earlier gradients remains."""
    from dpsrm.core.secret import Streams
    from dpsrm.mechanisms.airlock import gaussian_noise

    C1, s = 0.4, 1.3
    privacy = Privacy(epsilon=1e6, delta=1e-5, noise_multiplier=s)
    training = Training(steps=STEPS, batch=BATCH, learning_rate=RATE, output="last")
    method = Srm(gamma=1.0, max_grad_norm=C1, max_diff_norm=99.0)
    theta = run(tmp_path, Settings(privacy=privacy, method=method, training=training, seed=4))

    X, y = (part.numpy() for part in logistic_records())
    X1, streams = np.hstack([X, np.ones((N, 1))]), Streams.seeded(4)
    by_hand = np.zeros(D + 1)
    for release, batch in enumerate(spied):
        streams.seek(release)
        rows = (1 / (1 + np.exp(-X1[batch] @ by_hand)) - y[batch])[:, None] * X1[batch]
        rows *= np.minimum(1, C1 / np.linalg.norm(rows, axis=1))[:, None]
        step = rows.sum(axis=0) + gaussian_noise(s * 2 * C1, D + 1, streams.noise).numpy()
        by_hand -= RATE * step / BATCH
    assert np.allclose(theta, by_hand, rtol=1e-9)


def test_the_bound_is_the_sections_5_one_not_the_experiments_swap():
    """R = (1−γ)·C2 + γ·C1; the paper's experiments swap C1 and C2."""
    walk = Srm(max_grad_norm=1.0, max_diff_norm=0.01, gamma=0.01).begin(
        torch.zeros(3), schedule=Schedule(steps=3, batch=2, first_batch=5), stepper=ConstantStep(1.0)
    )
    first = walk.ask()
    assert (first.query.bound, first.batch) == (1.0, 5)
    walk.tell(torch.zeros(3, dtype=torch.float64))
    later = walk.ask()
    assert later.query.bound == pytest.approx(0.99 * 0.01 + 0.01 * 1.0)
    assert later.batch == 2


def test_t_updates_need_t_releases():
    stages = Srm().stages(Schedule(steps=5, batch=2, first_batch=7))
    assert [(stage.batch, stage.count) for stage in stages] == [(7, 1), (2, 4)]
    assert sum(stage.count for stage in Srm().stages(Schedule(steps=1, batch=2, first_batch=7))) == 1


@pytest.mark.parametrize(("C1", "C2", "gamma"), [(1.0, 0.01, 0.01), (2.0, 0.5, 0.25), (1.0, 3.0, 1.0)])
def test_gamma_auto_is_the_ratio_of_the_clips(C1, C2, gamma):
    assert Srm(max_grad_norm=C1, max_diff_norm=C2).momentum == gamma


@pytest.mark.parametrize(
    "bad",
    [
        {"gamma": 0.0},
        {"gamma": 1.5},
        {"gamma": math.nan},
        {"gamma": "big"},
        {"gamma": True},
        {"max_grad_norm": 0.0},
        {"max_diff_norm": -1.0},
        {"max_grad_norm": math.nan},
    ],
)
def test_settings_that_are_no_method_are_refused(bad):
    with pytest.raises(InputError):
        Srm(**bad)


def test_a_walk_goes_on_from_its_state():
    schedule, generator = Schedule(steps=6, batch=2, first_batch=2), torch.Generator().manual_seed(0)
    releases = [torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(6)]
    straight = Srm(gamma=0.3).begin(torch.zeros(3), schedule=schedule, stepper=ConstantStep(0.1))
    for value in releases:
        straight.tell(value)
    first = Srm(gamma=0.3).begin(torch.zeros(3), schedule=schedule, stepper=ConstantStep(0.1))
    for value in releases[:3]:
        first.tell(value)
    second = Srm(gamma=0.3).begin(torch.ones(3), schedule=schedule, stepper=ConstantStep(0.1))
    second.load_state_dict(first.state_dict())
    for value in releases[3:]:
        second.tell(value)
    assert torch.equal(straight.theta, second.theta)


def test_excess_may_be_named_by_a_word():
    assert Srm(excess="raise").excess is Excess.RAISE
