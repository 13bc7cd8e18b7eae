"""A small problem and a recipe for it, for the tests of experiments."""

import torch

from dpsrm.data import Records
from dpsrm.experiments.logistic import Logistic
from dpsrm.experiments.recipes import Recipe

RECIPE = Recipe(
    label="DP-SRM",
    method="srm",
    settings={"max_grad_norm": 1.0},
    training={"batch": 40, "epochs": 3.0, "learning_rate": 0.5},
    epsilon=2.0,
)


def toy_problem():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(600, 6, generator=generator)
    y = (X[:, 0] + 0.5 * torch.randn(600, generator=generator) > 0).long()
    return Logistic("toy", Records(X[:400], y[:400]), Records(X[400:], y[400:]))
