"""`audit`: pinned bounds, power, no false alarms, and bugs that only statistics see."""

import csv
import random

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from torch import nn

import dpsrm as package
from dpsrm.audit import Target, audit, black_box, one_run_epsilon
from dpsrm.audit.one_run import gaussian_inverse, refutes
from dpsrm.core.errors import InputError
from dpsrm.mechanisms import airlock
from dpsrm.methods import Sgd, Srm
from dpsrm.training import step

SMALL = Target(method=Srm(), epsilon=4.0, canaries=20_000, steps=6)


@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "epsilon"),
    [
        (100, 100, 100, 0.0, 3.4930),
        (1000, 1000, 900, 1e-5, 2.0206),
        (1000, 100, 95, 1e-5, 2.1652),
        (1000, 1000, 500, 1e-5, 0.0),
    ],
)
def test_the_pinned_values_of_the_one_run_bound(m, r, v, delta, epsilon):
    assert one_run_epsilon(m=m, r=r, v=v, delta=delta) == pytest.approx(epsilon, abs=5e-5)


def test_more_right_guesses_than_guesses_are_refused():
    with pytest.raises(InputError, match="no more right guesses"):
        one_run_epsilon(m=10, r=5, v=6, delta=0.0)


def test_a_curve_is_not_refuted_by_what_keeps_it():
    """1000 ideal μ-GDP runs with their true curve: at 80 % confidence at most 20 % may be refuted."""
    rng, mu, m, r = np.random.default_rng(3), 1.0, 400, 40
    alarms = 0
    for _ in range(1000):
        signs = rng.choice([-1, 1], m)
        x = signs * mu / 2 + rng.standard_normal(m)
        chosen = np.argsort(-abs(x))[:r]
        v = int((np.sign(x[chosen]) == signs[chosen]).sum())
        alarms += refutes(lambda y: gaussian_inverse(y, mu=mu), m=m, r=r, v=v, confidence=0.8)
    assert alarms <= 200
    assert refutes(lambda y: gaussian_inverse(y, mu=mu / 2), m=m, r=r, v=round(r * float(ndtr(2.2))), confidence=0.8)


def test_one_run_is_powerful():
    found = audit(SMALL)
    assert not found.violated
    assert 2.2 <= found.bound.epsilon <= 4
    assert 1.5 <= found.bound.strict <= found.bound.epsilon
    assert "not contradicted" in str(found)


@pytest.mark.parametrize("method", [Srm(), Sgd()], ids=["srm", "sgd"])
def test_per_step_is_within_a_tenth_of_the_claim(method):
    found = audit(Target(method=method, epsilon=4.0, canaries=50_000, steps=6), bound="per-step")
    assert 3.6 <= found.bound.epsilon <= 4
    assert not found.violated


@pytest.mark.parametrize(("bound", "share"), [("one-run", 0.2), ("per-step", 2 / 3)])
def test_too_little_noise_is_noticed(monkeypatch, bound, share):
    real = airlock.gaussian_noise
    monkeypatch.setattr(airlock, "gaussian_noise", lambda std, size, stream: real(share * std, size, stream))
    found = audit(SMALL, bound=bound)
    assert found.violated
    assert found.bound.epsilon > 4


def test_drawing_more_than_is_charged_is_noticed(monkeypatch):
    real = step.draw
    both = lambda sampling, stream: np.union1d(real(sampling, stream), real(sampling, stream))  # noqa: E731
    monkeypatch.setattr(step, "draw", both)
    assert audit(SMALL, bound="per-step").violated


def test_the_command_says_what_was_asked_for(answer, tmp_path):
    found = answer("audit", "--epsilon", 4, "--canaries", 5000, "--steps", 4, "--plot", tmp_path / "roc.svg")
    assert found["claimed_epsilon"] == 4
    assert 0 < found["lower_bound"] < 4
    assert found["confidence"] == 0.95
    assert found["seconds"] > 0
    assert "</svg>" in (tmp_path / "roc.svg").read_text()


def test_a_finished_run_is_audited_where_that_is_possible(tmp_path, dpsrm, answer):
    rng = random.Random(0)
    for name in ("in", "out"):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            rows = [[rng.randint(18, 90), rng.choice(["yes", "no"])] for _ in range(400)]
            csv.writer(file).writerows([["age", "ill"], *rows])
    budget = ["--epsilon", 1, "--delta", 1e-4, "--set", "training.steps=5", "--set", "training.batch=50"]
    answer("train", "--data", tmp_path / "in.csv", "--target", "ill", *budget, "--out", tmp_path / "run")
    told = dpsrm("audit", tmp_path / "run", "--data", tmp_path / "in.csv")
    assert told.code == 2
    assert "left out of it by coin" in told.stderr
    files = "--data", tmp_path / "in.csv", "--against", tmp_path / "out.csv"
    found = answer("audit", tmp_path / "run", *files)
    assert found["claimed_epsilon"] == pytest.approx(1, abs=0.01)
    assert found["lower_bound"] <= 1


def test_black_box_sees_a_model_that_memorises():
    """With an enormous ε the labels show; the ROC says so."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(240, 30), torch.randint(0, 4, (240,))
    settings = package.Settings(
        privacy=package.Privacy(epsilon=5000.0, delta=1e-5, accountant="rdp"),
        method=Sgd(max_grad_norm=0.5),
        training=package.Training(batch=60, steps=60, learning_rate=5.0, output="last"),
        seed=1,
    )
    model = nn.Sequential(nn.Linear(30, 200), nn.Tanh(), nn.Linear(200, 4))
    found = black_box(model, package.multiclass_loss, (inputs, targets), settings, canaries=100, kind="mislabelled")
    assert found.auc > 0.75
    assert found.true_positives(0.1) > 0.3
    assert found.bound.strict > 0.3
