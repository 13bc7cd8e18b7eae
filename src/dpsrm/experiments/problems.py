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
RECORDS = {"a9a": 32561, "ijcnn1": 49990}
"""Public facts about the two training sets."""

_PART = 5
"""One training record in so many is held out to tune on."""


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
        """A problem made of the training records alone: a random fifth is measured on, the others train.

        Not every fifth in a row: ijcnn1 is a time series whose first ten features tell the time modulo ten.
        """
        held = torch.zeros(len(self.train), dtype=torch.bool)
        held[np.random.Generator(np.random.PCG64(0)).permutation(len(self.train))[: len(self.train) // _PART]] = True
        parts = [Records(self.train.inputs[m], self.train.targets[m]) for m in (~held, held)]
        return Problem(f"{self.name}-validation", *parts)


def load_problem(name: str, folder: Path) -> Problem:
    """a9a or ijcnn1, raw features plus the model's bias."""
    train_path, test_path = public_files(name, folder)
    train = load(train_path, features=FEATURES[name])
    return Problem(name, train.records, load_like(test_path, train).records)


def progress(problem: Problem, theta_P: Tensor) -> tuple[float, float]:
    """Training objective and norm of the full gradient: what the figures show."""
    theta = theta_P.detach().double().numpy()
    loss, gradient, _ = _evaluate(problem.train, theta)
    gradient = gradient + REGULARISER * 2 * theta / (1 + theta**2) ** 2
    return loss + _penalty(theta), float(np.linalg.norm(gradient))


def measures(problem: Problem, theta_P: Tensor) -> dict[str, float]:
    """Everything the tables report about one θ.

    Objective = mean logistic loss + λ·Σθ²/(1+θ²); the gradient norm is that of the full training objective.
    """
    theta = theta_P.detach().double().numpy()
    objective, gradient_norm = progress(problem, theta_P)
    test_loss, _, error = _evaluate(problem.test, theta)
    return {
        "test_objective": test_loss + _penalty(theta),
        "test_log_loss": test_loss,
        "test_error": error,
        "train_objective": objective,
        "gradient_norm": gradient_norm,
    }


def _penalty(theta: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """λ·Σθ²/(1+θ²)."""
    return REGULARISER * float(np.sum(theta**2 / (1 + theta**2)))


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
