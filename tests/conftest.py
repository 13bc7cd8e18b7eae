"""Shared by the tests: small models and records, and the command line inside the test's own process."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from dpsrm.cli.app import main
from dpsrm.gradients import Objective, binary_loss, multiclass_loss

SHARED = Path(__file__).resolve().parents[2] / "shared"


def make_problem(kind, *, dtype=torch.float32, seed=0):
    """(objective, a function that makes b records) for a logistic model, an MLP or a CNN."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "logistic":
            module, shape, classes = nn.Linear(5, 1), (5,), 2
        elif kind == "mlp":
            module, shape, classes = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), (5,), 3
        elif kind == "cnn":
            layers = nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)
            module, shape, classes = nn.Sequential(*layers), (1, 8, 8), 4
        else:
            raise AssertionError(kind)
    module = module.to(dtype)

    def records(b, *, seed=1, scale=1.0):
        generator = torch.Generator().manual_seed(seed)
        inputs = scale * torch.randn(b, *shape, generator=generator, dtype=dtype)
        return inputs, torch.randint(classes, (b,), generator=generator)

    return Objective.of(module, binary_loss if classes == 2 else multiclass_loss), records


@pytest.fixture(params=["logistic", "mlp", "cnn"])
def problem(request):
    return make_problem(request.param)


@pytest.fixture
def spied(monkeypatch):
    """Remember every batch that a step draws."""
    from dpsrm.training import step

    drawn, real = [], step.draw

    def spy(sampling, stream):
        batch = real(sampling, stream)
        drawn.append(batch.copy())
        return batch

    monkeypatch.setattr(step, "draw", spy)
    return drawn


@dataclass(frozen=True)
class Result:
    code: int
    stdout: str
    stderr: str


@pytest.fixture
def dpsrm(capsys, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["dpsrm", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def answer(dpsrm):
    """The JSON that a command prints, which must succeed."""

    def ask(*arguments):
        result = dpsrm(*arguments, "--json")
        assert result.code == 0, result.stderr
        return json.loads(result.stdout)

    return ask
