"""The closed form for logistic, softmax and linear regression, dense or sparse: compiled, exact norms, one pass.

Shapes: B examples, D features, C outputs, P parameters, K points, M parts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.core.secret import ClippedSum, Diagnostics
from dpsrm.gradients.linear_kernels import (
    BINARY,
    MULTICLASS,
    SQUARED,
    Array,
    Asked,
    Model,
    Rows,
    clipped_sum,
    square_norms,
)
from dpsrm.gradients.objective import Objective, PerExampleLoss
from dpsrm.gradients.query import MARGIN, ClipRule, Excess, Query, refuse_excess
from dpsrm.gradients.standard_losses import binary_loss, multiclass_loss, squared_loss

_KINDS: dict[PerExampleLoss, int] = {binary_loss: BINARY, multiclass_loss: MULTICLASS, squared_loss: SQUARED}
_NO_COLUMNS = np.empty(0, dtype=np.int64)
_EPS = float(np.finfo(np.float64).eps)


class LinearEngine:
    """Clipped sums of a single `nn.Linear` under one of the standard losses, in float64 throughout.

    An example's gradient is residual ⊗ (x, 1), so its norm is |residual|·‖(x, 1)‖; a combination over points is
    (combination of residuals) ⊗ (x, 1), so differences of near-equal gradients lose nothing to cancellation.

    Guarantee: as every engine's; the rounding margin grows with the number of features, as does a norm's rounding.

    Edge cases: inputs may be dense (B, D) of any floating type, or `torch.sparse_csr`; an example whose ‖x‖ overflows
    float64 counts as not finite. Targets of `multiclass_loss` must be classes, or −100 to be ignored.

    >>> objective = Objective.of(nn.Linear(3, 1), binary_loss)
    >>> LinearEngine.applies(objective), LinearEngine.applies(Objective.of(nn.Linear(3, 1), nn.functional.mse_loss))
    (True, False)
    """

    def __init__(self, objective: Objective) -> None:
        """Check that the closed form is the objective's."""
        need(
            self.applies(objective),
            "the linear engine is for one nn.Linear, all trainable, on the CPU, under a standard loss",
            module=type(objective.module).__name__,
            loss=getattr(objective.loss, "__name__", objective.loss),
            remedy='use engine "auto"',
        )
        self.model, self.outputs = model_of(objective)

    @staticmethod
    def applies(objective: Objective) -> bool:
        """Whether the objective is one this engine knows in closed form."""
        module, kind = objective.module, _KINDS.get(objective.loss)
        if kind is None or type(module) is not nn.Linear or module._forward_hooks or module._forward_pre_hooks:
            return False
        trainable = all(p.requires_grad and p.device.type == "cpu" for p in module.parameters())
        return trainable and (kind == MULTICLASS or module.out_features == 1)

    def __call__(self, query: Query, inputs: Tensor, targets: Tensor) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the batch."""
        rows = rows_of(inputs, targets, self.model, outputs=self.outputs)
        points_KP = np.stack([point_P.detach().numpy() for point_P in query.points]).astype(np.float64, copy=False)
        total_P = np.zeros(points_KP.shape[1])
        asked = asked_of(query, features=self.model[1])
        nonfinite, loss, clipped_M, largest_M = clipped_sum(rows, self.model, points_KP, asked, total_P)
        if query.excess is Excess.RAISE:
            for part, largest in zip(query.parts, largest_M, strict=True):
                if part.weight > 0:
                    refuse_excess(torch.tensor([largest]), part)
        share = max(len(targets), 1)
        facts = Diagnostics(loss=loss / share, clipped=tuple((clipped_M / share).tolist()), nonfinite=nonfinite)
        return ClippedSum(secret=torch.from_numpy(total_P), bound=query.bound, rows=len(targets), diagnostics=facts)


def model_of(objective: Objective) -> tuple[Model, int]:
    """What the kernels need to know about the model, and its number of outputs."""
    module = objective.module
    if not isinstance(module, nn.Linear):
        raise AssertionError("checked by `applies`")
    return (_KINDS[objective.loss], module.in_features, float(module.bias is not None)), module.out_features


def asked_of(query: Query, *, features: int) -> Asked:
    """The query's parts as the kernels read them, with the margin for this many features."""
    parts = [(part.clip, part.weight, float(part.rule is ClipRule.AUTO)) for part in query.parts]
    coefficients_MK = np.array([part.coefficients for part in query.parts], dtype=np.float64)
    return np.array(parts, dtype=np.float64), coefficients_MK, margin_for(features)


def margin_for(features: int) -> float:
    """How much clip factors are shrunk, so that rounding of a norm over this many features cannot break the bound."""
    return MARGIN + features * _EPS


def rows_of(inputs: Tensor, targets: Tensor, model: Model, *, outputs: int) -> Rows:
    """A batch as the kernels read it."""
    need(inputs.ndim == 2, "a linear model's inputs are a matrix, one row per example", shape=tuple(inputs.shape))
    need(inputs.shape[1] == model[1], "inputs must have the model's features", got=inputs.shape[1], features=model[1])
    need(targets.shape == inputs.shape[:1], "there must be one target per example", targets=tuple(targets.shape))
    starts, columns, values = _matrix(inputs.detach())
    targets_B = targets.detach().numpy().astype(np.float64)
    if model[0] == MULTICLASS:
        known = (targets_B >= 0) & (targets_B < outputs) | (targets_B == -100)
        need(bool(known.all()), "targets must be classes", classes=outputs, got=float(targets_B[~known][:1].sum()))
    return starts, columns, values, square_norms(starts, values, model[2]), targets_B


class _Matrix(NamedTuple):
    """CSR, or dense without columns."""

    starts: Array
    columns: Array
    values: Array


def _matrix(inputs: Tensor) -> _Matrix:
    """A dense or sparse tensor as the kernels read it; a sparse one's repeated columns are summed first."""
    if inputs.layout == torch.sparse_csr:
        starts, columns = inputs.crow_indices().numpy(), inputs.col_indices().numpy()
        return _Matrix(
            starts.astype(np.int64, copy=False), columns.astype(np.int64, copy=False), _values(inputs.values())
        )
    need(inputs.layout == torch.strided, "inputs must be dense or sparse CSR", layout=str(inputs.layout))
    values = _values(inputs.reshape(-1))
    starts = np.arange(len(inputs) + 1, dtype=np.int64) * inputs.shape[1]
    return _Matrix(starts, _NO_COLUMNS, values)


def _values(numbers: Tensor) -> Array:
    """float32 and float64 as they are, anything else in float64."""
    keep = numbers.dtype in (torch.float32, torch.float64)
    return numbers.numpy() if keep else numbers.double().numpy()
