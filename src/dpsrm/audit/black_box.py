"""Black box: records with a coin for a label, a whole training, and the finished model's losses.

Shapes: m canaries, K classes.
"""

from __future__ import annotations

import copy
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsrm.audit.bounds import Bound, guess_bound
from dpsrm.audit.prove import quiet
from dpsrm.core.errors import need
from dpsrm.core.secret import Streams
from dpsrm.gradients import PerExampleLoss
from dpsrm.training import Plan, Settings, train

Array = npt.NDArray[np.float64]
KINDS = ("mislabelled", "out-of-distribution")


@dataclass(frozen=True, kw_only=True)
class BlackBox:
    """A membership test of a finished model.

    Attributes:
        scores: the loss under the second label less that under the first, less the same of the public first model.
        signs_m: the coins: 1 where the first label was trained with.
    """

    plan: Plan
    scores: Array
    signs_m: npt.NDArray[np.int64]
    bound: Bound
    seconds: float

    @property
    def auc(self) -> float:
        """The share of pairs, one of each coin, that the scores put in order."""
        order = np.argsort(np.argsort(self.scores)) + 1.0
        plus, minus = int((self.signs_m == 1).sum()), int((self.signs_m == -1).sum())
        return float((order[self.signs_m == 1].sum() - plus * (plus + 1) / 2) / max(1, plus * minus))

    def roc(self) -> tuple[Array, Array]:
        """False-positive and true-positive rates at every threshold."""
        coins = self.signs_m[np.argsort(-self.scores, kind="stable")]
        tp, fp = np.cumsum(coins == 1), np.cumsum(coins == -1)
        return fp / max(1, fp[-1]), tp / max(1, tp[-1])

    def true_positives(self, at: float) -> float:
        """The true-positive rate at a false-positive rate."""
        fpr, tpr = self.roc()
        return float(tpr[fpr <= at].max(initial=0.0))


def black_box(
    model: nn.Module,
    loss: PerExampleLoss,
    data: tuple[Tensor, Tensor],
    settings: Settings,
    *,
    canaries: int,
    kind: str = "out-of-distribution",
    confidence: float = 0.95,
) -> BlackBox:
    """Train `model` (a copy is made) on `data` and canaries, and guess every canary's label from the finished model.

    Args:
        loss: (outputs, targets) → a loss per record, targets 0 … K−1.
        data: inputs and targets; K is taken from the targets.
        settings: as in `train`, with a seed.
        kind: "mislabelled": records of `data` (taken out of it) with a wrong label; "out-of-distribution": noise of
            the inputs' mean and spread. Either has two labels, and a coin picks the one it is trained with.

    Guarantee: the bound is that of `one_run`; the attacker sees the finished model only.
    """
    need(settings.privacy is not None and settings.seed is not None, "a black-box audit has a budget and a seed")
    need(kind in KINDS, f"kind must be one of {', '.join(KINDS)}", kind=kind)
    start = time.monotonic()
    inputs, targets = data
    need(2 * canaries <= len(inputs), "there must be twice as many records as canaries", canaries=canaries)
    stream = Streams.seeded(int(settings.seed or 0) + 1).output
    x, labels_m2 = _canaries(inputs, targets, canaries, kind, stream)
    signs_m = 2 * stream.integers(0, 2, canaries) - 1
    given_m = torch.from_numpy(np.where(signs_m == 1, labels_m2[:, 0], labels_m2[:, 1]))
    records = torch.cat([x, inputs[canaries:]]), torch.cat([given_m, targets[canaries:]])
    before = _scores(model, loss, x, labels_m2)
    with tempfile.TemporaryDirectory() as folder, quiet():
        run = train(copy.deepcopy(model), loss, records, settings, out=Path(folder) / "run")
    scores = _without_labels(_scores(run.module, loss, x, labels_m2) - before, labels_m2)
    bound = guess_bound(run.plan, scores, signs_m, confidence=confidence)
    return BlackBox(plan=run.plan, scores=scores, signs_m=signs_m, bound=bound, seconds=time.monotonic() - start)


def _canaries(inputs: Tensor, targets: Tensor, m: int, kind: str, stream: Any) -> tuple[Tensor, Any]:
    """The canaries' inputs, and two labels for each, both wrong."""
    classes, own_m = int(targets.max()) + 1, targets[:m].numpy()
    shifts = np.stack([stream.permutation(max(1, classes - 1))[:2] + 1 for _ in range(m)])
    if classes == 2:
        shifts = np.tile([0, 1], (m, 1))
    labels_m2 = (own_m[:, None] + shifts) % classes
    if kind == "mislabelled":
        return inputs[:m], labels_m2
    noise = torch.from_numpy(stream.standard_normal(tuple(inputs[:m].shape))).to(inputs)
    return inputs.mean() + inputs.std() * noise, labels_m2


def _without_labels(scores: Array, labels_m2: Any) -> Array:
    """The scores without what the labels alone explain: that a class has become likelier says nothing of a record."""
    classes, rows = int(labels_m2.max()) + 1, np.arange(len(scores))
    design = np.zeros((len(scores), classes))
    design[rows, labels_m2[:, 0]] += 1
    design[rows, labels_m2[:, 1]] -= 1
    found: Array = scores - design @ np.linalg.lstsq(design, scores, rcond=None)[0]
    return found


@torch.no_grad()
def _scores(module: nn.Module, loss: PerExampleLoss, x: Tensor, labels_m2: Any) -> Array:
    """The loss under the second label less that under the first."""
    outputs = copy.deepcopy(module).eval()(x)
    first, second = (loss(outputs, torch.from_numpy(labels_m2[:, side].copy())) for side in (0, 1))
    found: Array = (second - first).double().numpy()
    return found
