"""The paper's first problem: logistic regression with a nonconvex regulariser on a9a and ijcnn1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from dpsrm.data import Records, load, load_like
from dpsrm.data.public import public_files

REGULARISER = 1e-3
"""λ of λ·Σθ²/(1+θ²), over all coordinates, as in the paper."""

FEATURES = {"a9a": 123, "ijcnn1": 22}
"""Public facts about the two datasets."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Records to train on and records to measure on; θ = (weights, bias)."""

    name: str
    train: Records
    test: Records

    @property
    def features(self) -> int:
        """How many features a record has."""
        return int(self.train.inputs.shape[1])

    def validation(self) -> Problem:
        """A problem made of the training records alone: every fifth is measured on, the others train."""
        held = torch.arange(len(self.train)) % 5 == 4
        parts = [Records(self.train.inputs[m], self.train.targets[m]) for m in (~held, held)]
        return Problem(f"{self.name}-validation", *parts)


def load_problem(name: str, folder: Path) -> Problem:
    """a9a or ijcnn1, raw features plus the model's bias."""
    train_path, test_path = public_files(name, folder)
    train = load(train_path, features=FEATURES[name])
    return Problem(name, train.records, load_like(test_path, train).records)


def measures(problem: Problem, theta_P: Tensor) -> dict[str, float]:
    """Everything the tables report about one θ.

    Objective = mean logistic loss + λ·Σθ²/(1+θ²); the gradient norm is that of the full training objective.
    """
    theta = theta_P.detach().double().numpy()
    train_loss, gradient, _ = _evaluate(problem.train, theta)
    test_loss, _, error = _evaluate(problem.test, theta)
    penalty = REGULARISER * float(np.sum(theta**2 / (1 + theta**2)))
    gradient = gradient + REGULARISER * 2 * theta / (1 + theta**2) ** 2
    return {
        "test_objective": test_loss + penalty,
        "test_log_loss": test_loss,
        "test_error": error,
        "train_objective": train_loss + penalty,
        "gradient_norm": float(np.linalg.norm(gradient)),
    }


def _evaluate(
    records: Records, theta: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> tuple[float, np.ndarray[tuple[int], np.dtype[np.float64]], float]:
    """Mean logistic loss, its gradient, and the 0/1 error."""
    X, y = records.inputs.numpy(), records.targets.numpy()
    logits = X @ theta[:-1].astype(np.float32) + np.float32(theta[-1])
    logits = logits.astype(np.float64)
    loss = float(np.mean(np.logaddexp(0, logits) - y * logits))
    residual = (expit(logits) - y) / len(y)
    gradient = np.append(residual.astype(np.float32) @ X, residual.sum()).astype(np.float64)
    return loss, gradient, float(np.mean((logits > 0) != y))
