"""The paper's first problem: logistic regression with a nonconvex regulariser on a9a and ijcnn1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit
from torch import Tensor, nn

from dpsrm.data import Records, SparseRecords, load, load_like
from dpsrm.data.public import public_files
from dpsrm.experiments.held_out import held_out
from dpsrm.gradients import PerExampleLoss, binary_loss

REGULARISER = 1e-3
"""λ of λ·Σθ²/(1+θ²), over all coordinates, as in the paper."""

FEATURES = {"a9a": 123, "ijcnn1": 22}

_SPARSE = 0.25
"""Records with a smaller share of non-zeros than this are read without their zeros."""

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Logistic:
    """Records to train on and records to measure on; θ = (weights, bias). There is one model, without a name."""

    name: str
    train: Records
    test: Records
    regulariser: float = REGULARISER
    facts: Mapping[str, str | float] = field(default_factory=dict)

    @property
    def features(self) -> int:
        """How many features a record has."""
        return int(self.train.inputs.shape[1])

    @cached_property
    def rows(self) -> Records | SparseRecords:
        """The records to train on, without their zeros if there are many."""
        filled = float(torch.count_nonzero(self.train.inputs)) / self.train.inputs.numel()
        return self.train if filled >= _SPARSE else SparseRecords.of(self.train)

    def loss_of(self, model: str) -> PerExampleLoss:
        """The logistic loss."""
        return binary_loss

    def validation(self) -> Logistic:
        """A problem made of the training records alone: a random fifth is measured on, the others train."""
        return Logistic(f"{self.name}-validation", *held_out(self.train))

    def start(self, model: str, seed: int) -> nn.Module:
        """Logistic regression at θ = 0."""
        module = nn.Linear(self.features, 1)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        return module

    def progress(self, model: str, theta_P: Tensor) -> tuple[float, float]:
        """Training objective and norm of the full gradient: what the figures show."""
        theta = theta_P.detach().double().numpy()
        loss, gradient, _ = _evaluate(self.train, theta)
        gradient = gradient + REGULARISER * 2 * theta / (1 + theta**2) ** 2
        return loss + _penalty(theta), float(np.linalg.norm(gradient))

    def measures(self, model: str, theta_P: Tensor) -> dict[str, float]:
        """Everything the tables report about one θ.

        Objective = mean logistic loss + λ·Σθ²/(1+θ²); the gradient norm is that of the full training objective.
        """
        theta = theta_P.detach().double().numpy()
        with np.errstate(invalid="ignore"):  # the θ of a trial that diverged is NaN
            objective, gradient_norm = self.progress(model, theta_P)
            test_loss, _, error = _evaluate(self.test, theta)
            return {
                "test_objective": test_loss + _penalty(theta),
                "test_log_loss": test_loss,
                "test_error": error,
                "train_objective": objective,
                "gradient_norm": gradient_norm,
            }


def load_logistic(name: str, folder: Path) -> Logistic:
    """a9a or ijcnn1, raw features plus the model's bias."""
    train_path, test_path = public_files(name, folder)
    train = load(train_path, features=FEATURES[name])
    return Logistic(name, train.records, load_like(test_path, train).records)


def _penalty(theta: Vector) -> float:
    """λ·Σθ²/(1+θ²)."""
    return REGULARISER * float(np.sum(theta**2 / (1 + theta**2)))


def _evaluate(records: Records, theta: Vector) -> tuple[float, Vector, float]:
    """Mean logistic loss, its gradient, and the 0/1 error."""
    X, y = records.inputs.numpy(), records.targets.numpy()
    logits = X @ theta[:-1].astype(np.float32) + np.float32(theta[-1])
    logits = logits.astype(np.float64)
    loss = float(np.mean(np.logaddexp(0, logits) - y * logits))
    residual = (expit(logits) - y) / len(y)
    gradient = np.append(residual.astype(np.float32) @ X, residual.sum()).astype(np.float64)
    return loss, gradient, float(np.mean((logits > 0) != y))
