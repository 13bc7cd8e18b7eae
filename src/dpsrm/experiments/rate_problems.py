"""Problems whose G, L and D_F are known: nonconvex logistic regression on records of norm 1, made up or of a9a.

The logistic loss of a record of norm 1 has G = 1 and L = ¼; the penalty λ·Σθ²/(1+θ²), data-independent and added
outside clip and noise, adds 2λ to the smoothness of F. F(0) = ln 2 and F ≥ 0, so D_F ≤ ln 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.data import Records, SparseRecords
from dpsrm.experiments.logistic import REGULARISER, load_logistic
from dpsrm.gradients import PerExampleLoss, binary_loss
from dpsrm.methods import Assumptions

PREFIX = "rates/"
LIPSCHITZ, SMOOTHNESS, GAP = 1.0, 0.25 + 2 * REGULARISER, math.log(2)
"""G, L and (a bound on) D_F of every problem here."""

_SPARSE = 0.25
_SEEDS = {"records": 19, "order": 20}
"""Of the records and of their order: the same for every trial."""


def problem_name(data: str, dimension: int, n: int) -> str:
    """How results and jobs call the problem.

    >>> problem_name("made", 10, 1250)
    'rates/made-10-1250'
    """
    return f"{PREFIX}{data}-{dimension}-{n}"


def assumptions(dimension: int, n: int, *, epsilon: float, delta: float) -> Assumptions:
    """What the theorems may assume of a problem of this size."""
    return Assumptions(
        lipschitz=LIPSCHITZ,
        smoothness=SMOOTHNESS,
        gap=GAP,
        dimension=dimension,
        n=n,
        epsilon=epsilon,
        delta=delta,
    )


@dataclass(frozen=True, eq=False)
class UnitLogistic:
    """Logistic regression without a bias on records of norm 1, started at θ = 0. There is one model, without a name."""

    train: Records
    regulariser: float = REGULARISER

    @property
    def facts(self) -> Mapping[str, str | float]:
        """How many records and parameters."""
        return {"n": len(self.train), "dimension": int(self.train.inputs.shape[1])}

    @cached_property
    def rows(self) -> Records | SparseRecords:
        """The records, without their zeros if there are many."""
        filled = float(torch.count_nonzero(self.train.inputs)) / self.train.inputs.numel()
        return self.train if filled >= _SPARSE else SparseRecords.of(self.train)

    def loss_of(self, model: str) -> PerExampleLoss:
        """The logistic loss."""
        return binary_loss

    def validation(self) -> UnitLogistic:
        """Nothing is tuned here."""
        raise AssertionError("the theorems' parameters are not searched")

    def start(self, model: str, seed: int) -> nn.Module:
        """θ = 0."""
        module = nn.Linear(int(self.train.inputs.shape[1]), 1, bias=False)
        nn.init.zeros_(module.weight)
        return module

    def progress(self, model: str, theta_P: Tensor) -> tuple[float, float]:
        """F(θ) and ‖∇F(θ)‖ over all records, the penalty included."""
        theta = theta_P.detach().double().numpy()
        X, y = self.train.inputs.numpy(), self.train.targets.numpy()
        logits = (X @ theta.astype(np.float32)).astype(np.float64)
        loss = float(np.mean(np.logaddexp(0, logits) - y * logits))
        slope = ((expit(logits) - y) / len(y)).astype(np.float32) @ X
        slope = slope.astype(np.float64) + 2 * REGULARISER * theta / (1 + theta**2) ** 2
        return loss + REGULARISER * float(np.sum(theta**2 / (1 + theta**2))), float(np.linalg.norm(slope))

    def measures(self, model: str, theta_P: Tensor) -> dict[str, float]:
        """F and ‖∇F‖ at the θ handed out."""
        objective, norm = self.progress(model, theta_P)
        return {"train_objective": objective, "gradient_norm": norm}


def load_rate_problem(name: str, folder: Path) -> UnitLogistic:
    """The problem called `name`, as `problem_name` makes names."""
    data, dimension, n = name.removeprefix(PREFIX).rsplit("-", 2)
    if data == "made":
        return UnitLogistic(made_records(int(dimension), int(n)))
    if data == "a9a":
        return UnitLogistic(_first(load_logistic("a9a", folder).train, int(n)))
    raise AssertionError(data)


def made_records(dimension: int, n: int) -> Records:
    """Random directions with labels from a logistic model whose weights have norm 8."""
    generator = torch.Generator().manual_seed(_SEEDS["records"])
    weights = torch.randn(dimension, generator=generator)
    inputs = nn.functional.normalize(torch.randn(n, dimension, generator=generator), dim=1)
    likely = torch.sigmoid(inputs @ (8 * weights / weights.norm()))
    return Records(inputs, (torch.rand(n, generator=generator) < likely).long())


def _first(records: Records, n: int) -> Records:
    """The first n of the records in a fixed random order, each scaled to norm 1."""
    need(n <= len(records), "there are not so many records", n=n)
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(_SEEDS["order"]))[:n]
    return Records(nn.functional.normalize(records.inputs[order], dim=1), records.targets[order])
