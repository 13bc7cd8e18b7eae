"""Opacus' variants of the benchmark compute what ours compute; its two open defects with transformers are not ours."""

import pytest
import torch

from dpsrm.bench import two_points
from dpsrm.bench.models import build
from dpsrm.bench.two_points import GHOST, variant

pytest.importorskip("opacus", reason="pip install 'dpsrm[compare]'")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(two_points, "build", lambda model, batch: build(model, batch, tiny=True))


@pytest.mark.parametrize(
    ("name", "model", "points"),
    [("opacus", "wrn", 2), ("opacus", "lora", 2), ("opacus", "vit", 1), (GHOST, "lora", 1)],
)
def test_the_same_sum(name, model, points):
    theirs, ours = (variant(each, model, 3, points=points)() for each in (name, "ours"))
    assert float((theirs - ours.secret).norm() / ours.secret.norm()) < 1e-4


@pytest.mark.parametrize("model", ["bert", "gpt2", "convnext"])
def test_what_it_cannot_run(model):
    """BERT's and GPT-2's positions have one row for all examples (its issue 841). Of ConvNeXt, whose second strided
    convolution follows a permuted norm, its per-example gradients do not add up to the gradient.
    """
    with pytest.raises((RuntimeError, ValueError, NotImplementedError, AttributeError)):
        variant("opacus", model, 3, points=1)()
    assert torch.isfinite(variant("ours", model, 3, points=1)().secret).all()
