"""How good a classifier is. Exact functions of the records they are computed on: private, unless those are public."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F


def classification_metrics(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Log-loss, 0/1 error and AUC of logits: shape (N,) or (N, 1) for two classes, (N, K) for K.

    Edge cases: AUC is NaN where only one class occurs in `targets`; for K > 2 it is the mean one-against-rest AUC.

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


def _auc(
    probabilities: np.ndarray[tuple[int, int], np.dtype[np.float64]], labels: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> float:
    """The area under the ROC curve, or NaN where it is not defined."""
    present = np.unique(labels)
    if len(present) < 2:
        return float("nan")
    if probabilities.shape[1] == 2:
        return float(roc_auc_score(labels, probabilities[:, 1]))
    each = [roc_auc_score(labels == k, probabilities[:, k]) for k in present]
    return float(np.mean(each))
