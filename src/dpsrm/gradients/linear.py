"""The closed form for logistic, softmax and linear regression, dense or sparse: compiled, exact norms, one pass.

Shapes: B examples, D features, C outputs, P parameters, K points, M parts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.core.secret import ClippedSum, Diagnostics
from dpsrm.gradients.objective import Objective
from dpsrm.gradients.query import MARGIN, ClipRule, Excess, Part, Query, refuse_excess
from dpsrm.gradients.standard_losses import CLOSED_FORMS, MULTICLASS

Array = npt.NDArray[Any]
Matrix = tuple[Array, Array, Array]
Rows = tuple[Array, Array, Array, Array, Array]
_INVALID = "sparse inputs must have increasing columns in every row, all below the number of features"
_NO_COLUMNS = np.empty(0, dtype=np.uint32)
_EPS = float(np.finfo(np.float64).eps)


class LinearEngine:
    """Clipped sums of a single `nn.Linear` under one of the standard losses, in float64 throughout.

    An example's gradient is residual ⊗ (x, 1), so its norm is |residual|·‖(x, 1)‖; a combination over points is
    (combination of residuals) ⊗ (x, 1), so differences of near-equal gradients lose nothing to cancellation.

    Guarantee: as every engine's; the rounding margin grows with the number of features, as a norm's rounding does.

    Edge cases: inputs may be dense (B, D) of any floating type, or `torch.sparse_csr` without repeated columns; an
    example whose ‖x‖ overflows float64 counts as not finite. Targets of `multiclass_loss` must be classes, or −100 to
    be ignored. The first call in a fresh installation compiles for some seconds; the result is kept on disk.

    >>> LinearEngine.applies(Objective.of(nn.Linear(3, 1), lambda outputs, targets: outputs.sum(1)))
    False
    """

    def __init__(self, objective: Objective) -> None:
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
        from dpsrm.gradients import linear_kernels  # Numba takes a third of a second to import

        self.model = (CLOSED_FORMS[objective.loss], module.in_features, float(module.bias is not None))
        self.outputs = module.out_features
        self.margin = MARGIN + module.in_features * _EPS
        self._kernels = linear_kernels

    @staticmethod
    def applies(objective: Objective) -> bool:
        """Whether the objective is one this engine knows in closed form."""
        module, kind = objective.module, CLOSED_FORMS.get(objective.loss)
        if kind is None or type(module) is not nn.Linear or module._forward_hooks or module._forward_pre_hooks:
            return False
        ours = all(p.requires_grad and p.device.type == "cpu" for p in module.parameters())
        return ours and (kind == MULTICLASS or module.out_features == 1)

    def __call__(self, query: Query, inputs: Tensor, targets: Tensor) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the batch."""
        matrix, targets_B, parts = *self._batch(inputs, targets), query.parts
        points_KP = np.empty((len(query.points), query.points[0].numel()))
        for k, point_P in enumerate(query.points):
            points_KP[k] = point_P.detach().numpy()
        total_P = np.zeros(points_KP.shape[1])
        asked = *_tables(parts), self.margin
        valid, loss, counts, norms_BM = self._kernels.clipped_sum(
            matrix, targets_B, self.model, points_KP, asked, total_P
        )
        need(valid, _INVALID)
        if query.excess is Excess.RAISE:
            for part, norm_B in zip(parts, torch.from_numpy(norms_BM).unbind(1), strict=True):
                if part.weight > 0:
                    refuse_excess(norm_B, part)
        *clipped, nonfinite = counts.tolist()
        B = len(targets_B)
        shares = tuple(count / max(B, 1) for count in clipped)
        facts = Diagnostics(loss=loss / max(B, 1), clipped=shares, nonfinite=int(nonfinite))
        return ClippedSum(secret=torch.from_numpy(total_P), bound=query.bound, rows=B, diagnostics=facts)

    def rows(self, inputs: Tensor, targets: Tensor) -> Rows:
        """Records as the kernels read it: starts, columns, values, ‖(x, 1)‖², targets."""
        _, D, bias = self.model
        (starts, columns, values), targets_n = self._batch(inputs, targets)
        valid, norms_n = self._kernels.square_norms(starts, columns, values, D, bias)
        need(valid, _INVALID)
        return starts, columns, values, norms_n, targets_n

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
def _tables(parts: tuple[Part, ...]) -> tuple[Array, Array]:
    """(clip, weight, 1 for AUTO-S) per part, and the coefficients, as the kernels read them."""
    rules = np.array([(part.clip, part.weight, float(part.rule is ClipRule.AUTO)) for part in parts])
    return rules, np.array([part.coefficients for part in parts], dtype=np.float64)


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
