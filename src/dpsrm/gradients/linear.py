"""The closed form for logistic, softmax and linear regression, dense or sparse: compiled, exact norms, one pass.

Shapes: n records, B examples, D features.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.core.secret import ClippedSum
from dpsrm.core.tree import Bundles
from dpsrm.gradients.batch import Batch
from dpsrm.gradients.linear_sums import LinearSums, PeopleSums, kernels
from dpsrm.gradients.objective import Objective
from dpsrm.gradients.passes import ModelLosses, PerExampleLoss
from dpsrm.gradients.query import Query
from dpsrm.gradients.standard_losses import CLOSED_FORMS, MULTICLASS

Array = npt.NDArray[Any]
Matrix = tuple[Array, Array, Array]
_INVALID = "sparse inputs must have increasing columns in every row, all below the number of features"
MOST_ROWS = 2**22
"""What a margin is made for where the number of records is not the same for neighbours: 5e-6 of every clip."""
_NO_COLUMNS = np.empty(0, dtype=np.uint32)


class LinearEngine:
    """Clipped sums of a single `nn.Linear` under one of the standard losses, in float64 throughout.

    An example's gradient is residual ⊗ (x, 1), so its norm is |residual|·‖(x, 1)‖; a combination over points is
    (combination of residuals) ⊗ (x, 1), so differences of near-equal gradients lose nothing to cancellation.

    Args:
        objective: the module and its loss.
        population: the most rows a sum can have: a public number, on which the rounding margin depends. None takes the
            batch's own size, which is only right where that is public (not under Poisson sampling).
        steady: False where neighbouring datasets may differ in size (add/remove): a margin from the size would then
            move every contribution, so that it is made from a constant, 2²² rows, instead of `population`.

    Guarantee: as every engine's, rounding included (docs/decisions/linear-rounding.md).

    Edge cases: inputs may be dense (B, D) of any floating type, or `torch.sparse_csr` without repeated columns; an
    example whose ‖x‖ overflows float64 counts as not finite; a clip below 1e-200 lets nothing through. Targets of
    `multiclass_loss` must be classes, or −100 to be ignored. The first call in a fresh installation compiles for some
    seconds; the result is kept on disk.

    >>> LinearEngine.applies(Objective.of(nn.Linear(3, 1), lambda outputs, targets: outputs.sum(1)))
    False
    """

    def __init__(self, objective: Objective, *, population: int | None = None, steady: bool = True) -> None:
        """Check that the closed form is the objective's."""
        module = objective.module
        if not self.applies(objective) or not isinstance(module, nn.Linear):
            need(
                False,
                "the linear engine is for one nn.Linear, all of it trainable, on the CPU, under a standard loss",
                module=type(module).__name__,
                loss=getattr(objective.loss, "__name__", objective.loss),
                remedy='use engine "auto"',
            )
            raise AssertionError
        self.model = (
            CLOSED_FORMS[cast(PerExampleLoss, objective.loss)],
            module.in_features,
            float(module.bias is not None),
        )
        self.outputs = module.out_features
        self.population = population if steady else MOST_ROWS

    @staticmethod
    def applies(objective: Objective) -> bool:
        """Whether the objective is one this engine knows in closed form."""
        if isinstance(objective.loss, ModelLosses):
            return False
        module, kind = objective.module, CLOSED_FORMS.get(objective.loss)
        if kind is None or type(module) is not nn.Linear or module._forward_hooks or module._forward_pre_hooks:
            return False
        if "forward" in vars(module):  # somebody's own, for this one layer
            return False
        ours = all(p.requires_grad and p.device.type == "cpu" for p in module.parameters())
        return ours and (kind == MULTICLASS or module.out_features == 1)

    def __call__(self, query: Query, batch: Batch) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the batch (inputs, targets)."""
        if isinstance(batch, Bundles):
            inputs, targets = (tensor.flatten(0, 1) for tensor in batch.rows)
            counts_Bk = batch.counts.numpy() > 0
            rows_R, starts = np.flatnonzero(counts_Bk), np.cumsum([0, *counts_Bk.sum(1)])
            return self.over(inputs, targets, people=True)(query, (rows_R, starts))
        inputs, targets = batch
        return self.over(inputs, targets)(query, _everyone(len(targets)))

    def over(self, inputs: Tensor, targets: Tensor, *, people: bool = False) -> LinearSums:
        """Sums over these records, of which each call picks some: nothing is gathered or measured twice.

        Args:
            people: an example is a person with several rows (see `PeopleSums`), not a row.
        """
        _, D, bias = self.model
        (starts, columns, values), targets_n = self._batch(inputs, targets)
        valid, lengths_n = kernels().lengths(starts, columns, values, D, bias)
        need(valid, _INVALID)
        rows = starts, columns, values, lengths_n, targets_n
        kind = PeopleSums if people else LinearSums
        return kind(rows, self.model, outputs=self.outputs, population=self.population or len(targets_n))

    def _batch(self, inputs: Tensor, targets: Tensor) -> tuple[Matrix, Array]:
        """The inputs as starts, columns and values, and the targets in float64."""
        kind, D, _ = self.model
        x, y = inputs.shape, targets.shape
        fits = len(y) == 1 and x == (y[0], D)
        need(fits, "inputs are (examples, features) and targets (examples)", inputs=x, features=D, targets=y)
        targets_B = targets.detach().numpy().astype(np.float64)
        if kind == MULTICLASS:
            known = ((targets_B >= 0) & (targets_B < self.outputs)) | (targets_B == -100)
            need(bool(known.all()), "targets must be classes", classes=self.outputs, got=targets_B[~known][:1].tolist())
        return _matrix(inputs.detach()), targets_B


@lru_cache(maxsize=16)
def _everyone(rows: int) -> Array:
    """All indices."""
    return np.arange(rows)


@lru_cache(maxsize=16)
def _dense_starts(rows: int, features: int) -> Array:
    """Where each row of a dense matrix begins."""
    return np.arange(0, rows * features + 1, max(features, 1), dtype=np.int64)


def _matrix(inputs: Tensor) -> Matrix:
    """A dense or sparse matrix as starts, columns (none if dense) and values."""
    if inputs.layout == torch.sparse_csr:
        starts, columns = inputs.crow_indices().numpy(), inputs.col_indices().numpy()
        return starts.astype(np.int64, copy=False), columns.astype(np.uint32), _values(inputs.values())
    if inputs.layout != torch.strided:
        need(False, "inputs must be dense or sparse CSR", layout=str(inputs.layout))
    rows, features = inputs.shape
    return _dense_starts(rows, features), _NO_COLUMNS, _values(inputs.reshape(-1))


def _values(numbers: Tensor) -> Array:
    """float32 and float64 as they are, anything else in float64."""
    keep = numbers.dtype in (torch.float32, torch.float64)
    return (numbers if keep else numbers.double()).numpy()
