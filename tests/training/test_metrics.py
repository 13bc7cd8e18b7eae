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


@pytest.mark.parametrize("n", [2, 3, 10, 1000])
@pytest.mark.parametrize("scores", [1, 2, 5, 10**9])
def test_auc_with_ties_is_scikit_learns(n, scores):
    """Few different scores are mostly ties; the smallest sets have one example of a class."""
    generator = torch.Generator().manual_seed(n * scores)
    logits = torch.randint(scores, (n,), generator=generator).double() / scores
    labels = torch.randint(2, (n,), generator=generator)
    labels[0], labels[-1] = 0, 1
    found = classification_metrics(logits, labels)["auc"]
    assert found == pytest.approx(roc_auc_score(labels, logits), rel=1e-12)


def test_several_classes_with_ties_one_of_them_absent():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(3, (80, 4), generator=generator).double()
    labels = torch.randint(3, (80,), generator=generator)
    probabilities = logits.softmax(dim=1).numpy()
    each = [roc_auc_score(labels.numpy() == k, probabilities[:, k]) for k in range(3)]
    assert classification_metrics(logits, labels)["auc"] == pytest.approx(np.mean(each), rel=1e-12)


def test_no_auc_of_one_class_or_of_outputs_that_are_not_numbers():
    assert math.isnan(classification_metrics(torch.zeros(3), torch.ones(3))["auc"])
    assert math.isnan(classification_metrics(torch.tensor([0.0, math.nan]), torch.tensor([0, 1]))["auc"])
