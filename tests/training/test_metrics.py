"""Metrics against scikit-learn, for two classes and for several."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from dpsrm.training import classification_metrics


def test_two_classes_in_either_shape():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(50, generator=generator), torch.randint(2, (50,), generator=generator)
    probability = torch.sigmoid(logits.double()).numpy()
    for shape in (logits, logits[:, None]):
        metrics = classification_metrics(shape, labels)
        assert metrics["log_loss"] == pytest.approx(log_loss(labels, probability))
        assert metrics["auc"] == pytest.approx(roc_auc_score(labels, probability))
        assert metrics["error"] == pytest.approx(np.mean((probability > 0.5) != labels.numpy()))


def test_several_classes():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(60, 3, generator=generator), torch.randint(3, (60,), generator=generator)
    probabilities = logits.double().softmax(dim=1).numpy()
    metrics = classification_metrics(logits, labels)
    assert metrics["log_loss"] == pytest.approx(log_loss(labels, probabilities))
    assert metrics["auc"] == pytest.approx(roc_auc_score(labels, probabilities, multi_class="ovr"))


def test_one_class_has_no_auc():
    assert math.isnan(classification_metrics(torch.zeros(3), torch.ones(3))["auc"])
