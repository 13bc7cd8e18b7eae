"""How good a model is. Exact functions of the records they are computed on: private, unless those are public."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

_GROUPS = 20


def classification_metrics(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Log-loss, 0/1 error and AUC of logits: shape (N,) or (N, 1) for two classes, (N, K) for K.

    Edge cases: AUC is NaN where only one class occurs in `targets` or an output is NaN; for K > 2 it is the mean
    one-against-rest AUC of the classes that occur.

    >>> classification_metrics(torch.tensor([-1.0, 1.0]), torch.tensor([0, 1]))["auc"]
    1.0
    """
    logits = outputs.detach().double()
    logits = logits.squeeze(1) if logits.ndim == 2 and logits.shape[1] == 1 else logits
    if logits.ndim == 1:
        logits = torch.stack([torch.zeros_like(logits), logits], dim=1)
    labels = targets.long()
    return {
        "log_loss": float(F.cross_entropy(logits, labels)),
        "error": float((logits.argmax(dim=1) != labels).double().mean()),
        "auc": _auc(logits.softmax(dim=1).numpy(), labels.numpy()),
    }


def regression_metrics(predicted: npt.NDArray[np.float64], targets: npt.NDArray[np.float64]) -> dict[str, float]:
    """R², root mean squared error and mean absolute error, in the target's own unit.

    Edge cases: R² is NaN where all targets are the same.

    >>> regression_metrics(np.array([1.0, 2.0]), np.array([1.0, 4.0]))["mae"]
    1.0
    """
    errors, spread = predicted - targets, float(((targets - targets.mean()) ** 2).mean())
    square = float((errors**2).mean())
    return {
        "r2": 1 - square / spread if spread > 0 else float("nan"),
        "rmse": math.sqrt(square),
        "mae": float(np.abs(errors).mean()),
    }


def half_widths(measure: Callable[[Any, Any], dict[str, float]], outputs: Any, targets: Any) -> dict[str, float]:
    """Half the width of each metric's 95 % confidence interval, leaving out one of twenty groups of records at a time.

    Edge cases: NaN with fewer than forty records, or where a group leaves a metric undefined.

    >>> half = half_widths(classification_metrics, torch.zeros(400), torch.arange(400) % 2)
    >>> round(half["error"], 3)
    0.0
    """
    n = len(targets)
    if n < 2 * _GROUPS:
        return dict.fromkeys(measure(outputs, targets), float("nan"))
    kept = [np.arange(n) // 2 % _GROUPS != group for group in range(_GROUPS)]  # pairs, so that -1,1,-1,1 … stays mixed
    found = [measure(outputs[keep], targets[keep]) for keep in kept]
    values = {name: np.array([each[name] for each in found]) for name in found[0]}
    spread = {name: math.sqrt((_GROUPS - 1) * float(np.var(each))) for name, each in values.items()}
    return {name: 2.093 * each for name, each in spread.items()}  # Student's t, 19 degrees of freedom


def _auc(
    probabilities: np.ndarray[tuple[int, int], np.dtype[np.float64]], labels: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> float:
    """The area under the ROC curve, or NaN where it is not defined."""
    present = np.unique(labels)
    if len(present) < 2 or np.isnan(probabilities).any():
        return float("nan")
    if probabilities.shape[1] == 2:
        return _rank_auc(labels == 1, probabilities[:, 1])
    return float(np.mean([_rank_auc(labels == k, probabilities[:, k]) for k in present]))


def _rank_auc(positive: np.ndarray[tuple[int], np.dtype[np.bool_]], scores: np.ndarray[Any, Any]) -> float:
    """How often a positive example scores above a negative one, ties counting half: the Mann-Whitney statistic."""
    above, below = int(positive.sum()), int((~positive).sum())
    _, place, ties = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (ties.cumsum() - (ties - 1) / 2)[place]
    return float((rank[positive].sum() - above * (above + 1) / 2) / (above * below))
