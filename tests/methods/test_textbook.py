"""Without clips and noise every method is a textbook one: independent NumPy versions for logistic regression."""

import numpy as np
import pytest
import torch

from dpsrm.data import Records
from dpsrm.gradients import binary_loss
from dpsrm.methods import Agd, Disk, Gd, Rrpsgd, Sgd, Spider, Srm, Storm
from dpsrm.training import Settings, Training, train

N, D, STEPS, RATE = 40, 5, 12, 0.4


def data():
    stream = np.random.default_rng(5)
    X = stream.standard_normal((N, D))
    return X, (X[:, 0] + 0.5 * stream.standard_normal(N) > 0).astype(int)


X, Y = data()
X1 = np.hstack([X, np.ones((N, 1))])
ALL = np.arange(N)


def gradient(theta, batch=ALL):
    """The mean gradient of the logistic loss over a batch."""
    return X1[batch].T @ (1 / (1 + np.exp(-X1[batch] @ theta)) - Y[batch]) / len(batch)


def loss(theta):
    """The mean logistic loss over everything."""
    return np.logaddexp(0, -(2 * Y - 1) * (X1 @ theta)).mean()


def ours(method, out, **training):
    module = torch.nn.Linear(D, 1).double()
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    chosen = Training(**{"steps": STEPS, "learning_rate": RATE, "output": "last", **training})
    settings = Settings(privacy=None, method=method, training=chosen, seed=1)
    train(module, binary_loss, Records(torch.from_numpy(X), torch.from_numpy(Y)), settings, out=out)
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


def sgd(batches, *, beta=0.0, heavy=False):
    theta, v = np.zeros(D + 1), None
    for batch in batches:
        g = gradient(theta, batch)
        v = g if v is None else beta * v + (g if heavy else (1 - beta) * g)
        theta = theta - RATE * v
    return theta


def storm(batches, *, gamma):
    theta, v, before = np.zeros(D + 1), None, None
    for t, batch in enumerate(batches):
        now = gradient(theta, batch)
        v = now if v is None else now + (1 - gamma(t)) * (v - gradient(before, batch))
        before, theta = theta, theta - RATE * v
    return theta


def disk(batches, *, kappa, ahead):
    theta, v, before = np.zeros(D + 1), None, np.zeros(D + 1)
    share = (1 - kappa) / (kappa * ahead)
    for batch in batches:
        look = theta + ahead * (theta - before)
        r = share * gradient(look, batch) + (1 - share) * gradient(theta, batch)
        v = gradient(theta, batch) if v is None else (1 - kappa) * v + kappa * r
        before, theta = theta, theta - RATE * v
    return theta


def spider(batches, *, period):
    theta, v, before = np.zeros(D + 1), None, None
    for t, batch in enumerate(batches):
        fresh = gradient(theta, batch)
        v = fresh if t % period == 0 else v + fresh - gradient(before, batch)
        before, theta = theta, theta - RATE * v
    return theta


def line_search(steps, *, m, reach, penalty=0.0):
    """Gradient descent; the best of m+1 multiples of the step, longest adapted as DP-AGD does."""

    def value(at):
        return loss(at) + penalty * (at**2 / (1 + at**2)).sum()

    theta, longest = np.zeros(D + 1), 0.0
    for t in range(1, steps + 1):
        g = gradient(theta) + penalty * 2 * theta / (1 + theta**2) ** 2
        sizes = reach * np.arange(m + 1) / m
        j = int(np.argmin([value(theta - size * RATE * g) for size in sizes]))
        if j == 0:
            reach *= 0.8
            continue
        theta, longest = theta - sizes[j] * RATE * g, max(longest, sizes[j])
        if t % 10 == 0 and longest > 0:
            reach, longest = 1.1 * longest, 0.0
    return theta


BATCHES = {"batch": 7, "first_batch": 15}


@pytest.mark.parametrize(
    ("method", "textbook"),
    [
        (Sgd(), sgd),
        (Sgd(momentum=0.7), lambda b: sgd(b, beta=0.7)),
        (Sgd(momentum=0.7, momentum_kind="heavy-ball"), lambda b: sgd(b, beta=0.7, heavy=True)),
        (Sgd(clip="auto"), sgd),
        (Storm(gamma=0.3), lambda b: storm(b, gamma=lambda t: 0.3)),
        (Srm(gamma=0.3, relative=1.0), lambda b: storm(b, gamma=lambda t: 0.3)),
        (Srm(gamma=0.3, joint_norm=1.0), lambda b: storm(b, gamma=lambda t: 0.3)),
        (
            Srm(gamma=0.3, gamma_schedule="linear"),
            lambda b: storm(b, gamma=lambda t: 0.3 + 0.7 * (1 - (t - 1) / (STEPS - 1))),
        ),
        (Disk(kappa=0.6, lookahead=0.5), lambda b: disk(b, kappa=0.6, ahead=0.5)),
        (Disk(kappa=0.6, lookahead=-1.0), lambda b: storm(b, gamma=lambda t: 0.6)),
        (Spider(period=5), lambda b: spider(b, period=5)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_sampled_methods(method, textbook, spied, tmp_path):
    theta = ours(method, tmp_path / "run", **BATCHES)
    assert len(spied) == STEPS
    assert np.allclose(theta, textbook(spied), rtol=1e-11, atol=1e-13)


def test_spider_restarts_over_the_first_batch(spied, tmp_path):
    ours(Spider(period=5), tmp_path / "run", **BATCHES)
    assert [len(batch) for batch in spied] == [15, 7, 7, 7, 7, 15, 7, 7, 7, 7, 15, 7]


def test_gd_is_gradient_descent(tmp_path):
    assert np.allclose(ours(Gd(), tmp_path / "run"), sgd([ALL] * STEPS), rtol=1e-11)


def test_rrpsgd_is_single_example_sgd(spied, tmp_path):
    theta = ours(Rrpsgd(), tmp_path / "run", steps=30)
    assert all(len(batch) == 1 for batch in spied)
    assert 1 <= len(spied) <= 30
    assert np.allclose(theta, sgd(spied), rtol=1e-11)


@pytest.mark.parametrize("penalty", [0.0, 0.05])
def test_agd_is_gradient_descent_with_an_exact_line_search(penalty, tmp_path):
    theta = ours(Agd(candidates=8, reach=30.0), tmp_path / "run", steps=25, regulariser=penalty)
    assert np.allclose(theta, line_search(25, m=8, reach=30.0, penalty=penalty), rtol=1e-9)


def test_a_decayed_learning_rate_is_the_textbook_one(spied, tmp_path):
    theta = ours(Sgd(), tmp_path / "run", **BATCHES, decay="sqrt", warmup=2)
    by_hand = np.zeros(D + 1)
    for t, batch in enumerate(spied):
        factor = (t + 1) / 2 if t < 2 else 1 / np.sqrt(t - 1)
        by_hand -= RATE * factor * gradient(by_hand, batch)
    assert np.allclose(theta, by_hand, rtol=1e-11)
