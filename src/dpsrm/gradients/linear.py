"""The closed form for logistic, softmax and linear regression, dense or sparse: compiled, exact norms, one pass.

`LinearSums`: sums over some of the records, with the margins that cover their rounding.

Shapes: n records, B examples or picked records, D features, C outputs, P parameters, K points, M parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.core.secret import ClippedScores, ClippedSum, Diagnostics
from dpsrm.core.tree import Bundles
from dpsrm.gradients.batch import Batch
from dpsrm.gradients.linear_types import Model, Rows
from dpsrm.gradients.objective import Objective
from dpsrm.gradients.passes import ModelLosses, PerExampleLoss
from dpsrm.gradients.query import ClipRule, Excess, Part, Query, refuse_excess
from dpsrm.gradients.standard_losses import CLOSED_FORMS, MULTICLASS

Array = npt.NDArray[Any]
Matrix = tuple[Array, Array, Array]
_INVALID = "sparse inputs must have increasing columns in every row, all below the number of features"
MOST_ROWS = 2**22
"""What a margin is made for where the number of records is not the same for neighbours: 5e-6 of every clip."""
_NO_COLUMNS = np.empty(0, dtype=np.uint32)

UNIT = 2.0**-53
"""u: the largest relative error of one float64 operation."""
_BLOCK = 1024
_OUTSIDE = "indices must be those of records"


def kernels() -> ModuleType:
    """The compiled code, imported when first needed: Numba takes a third of a second."""
    from dpsrm.gradients import linear_kernels

    return linear_kernels


def sum_error(rows: int, *, parts: int = 1) -> float:
    """How far a computed sum of up to `rows` contributions can be from the exact one, in units of their bound.

    Args:
        parts: in how many parts a contribution is added, which together are no longer than its bound.

    Every coordinate is a sum of rounded products in chains of at most d = min(rows, 1024) + ⌈rows/1024⌉ additions, so
    ‖error‖ ≤ γ_d·Σ‖contribution‖ ≤ γ_d·rows, γ_d = d·u/(1 − d·u) (Higham 2002, §4.2). The proof is in
    docs/decisions/linear-rounding.md.

    >>> sum_error(100) < 2e-12, sum_error(10**6) < 3e-7
    (True, True)
    """
    depth = parts * min(rows, _BLOCK) + math.ceil(rows / _BLOCK) + 1
    return rows * depth * UNIT / (1 - depth * UNIT)


class LinearSums:
    """Clipped sums, and clipped losses, over some of the records it was made of.

    Guarantee: no contribution is longer than its bound, and adjacent datasets' sums are no further apart than their
    sensitivity, rounding included, as long as a sum has at most `population` rows.
    """

    def __init__(self, rows: Rows, model: Model, *, outputs: int, population: int) -> None:
        """Keep the records as the kernels read them."""
        self._rows, self._model, self._outputs, self._population = rows, model, outputs, population
        self._size = outputs * (model[1] + int(model[2]))
        self._error = sum_error(population)
        self._kernels = kernels()
        self._asked: tuple[tuple[Part, ...], Any, float] = (), None, 0.0

    def _examples(self, picked: Any) -> tuple[Array, Array]:
        """The rows picked, and where each example's begin in them."""
        return picked, np.arange(len(picked) + 1)

    def margin(self, parts: int) -> float:
        """By how much clips are shrunk: 2·`sum_error` for two sums, and the roundings of a norm and a factor."""
        return 2 * self._error + (self._model[1] + self._outputs + parts + 16) * UNIT

    def __call__(self, query: Query, picked: Any) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the picked records."""
        parts, B, total_P = query.parts, len(self._examples(picked)[1]) - 1, np.zeros(self._size)
        if parts is not self._asked[0]:
            self._asked = parts, (*_tables(parts), self.margin(len(parts))), self._bound(query)
        self._need_rows(B)
        compiled = self._kernels.people_sum if isinstance(self, PeopleSums) else self._kernels.clipped_sum
        valid, loss, counts, norms_BM = compiled(
            self._rows, picked, self._model, self._points(query.points), self._asked[1], total_P
        )
        need(valid, _OUTSIDE)
        if query.excess is Excess.RAISE:
            for part, norm_B in zip(parts, torch.from_numpy(norms_BM).unbind(1), strict=True):
                if part.weight > 0:
                    refuse_excess(norm_B, part)
        size, (*clipped, nonfinite) = max(B, 1), counts.tolist()
        shares = tuple([count / size for count in clipped])
        facts = Diagnostics(loss=loss / size, clipped=shares, nonfinite=int(nonfinite))
        return ClippedSum(secret=torch.from_numpy(total_P), bound=self._asked[2], rows=B, diagnostics=facts)

    def scores(self, points: Sequence[Tensor], picked: Any, *, clip: float, offsets: Sequence[float]) -> ClippedScores:
        """offset + Σ clamp(loss, 0, clip) over the picked records, at each point.

        Edge cases: a NaN loss counts as `clip` (as 0 if that is infinite).
        """
        people = self._examples(picked)
        self._need_rows(len(people[1]) - 1)
        need(self._kernels._within(people[0], len(self._rows[3])), _OUTSIDE)
        largest = max((abs(offset) for offset in offsets), default=0.0)
        margin = 4 * (self._error + (self._population + largest / clip + 1) * UNIT)
        limit = clip * (1 - margin)
        sums_K = self._kernels.loss_sums(self._rows, people, self._model, self._points(points), limit, self._outputs)
        totals = tuple(offset + total for offset, total in zip(offsets, sums_K.tolist(), strict=True))
        return ClippedScores(secret=totals, bound=clip, rows=len(people[1]) - 1)

    def _bound(self, query: Query) -> float:
        """The query's bound, unless so many contributions of it could overflow."""
        fits = query.bound == math.inf or query.bound * self._population < 1e300
        need(fits, "a sum of so many contributions does not fit in float64", bound=query.bound, remedy="lower the clip")
        return query.bound

    def _need_rows(self, rows: int) -> None:
        """Refuse more rows than the margin was made for."""
        if rows > self._population:
            need(False, "a sum cannot have more rows than its margin allows", rows=rows, population=self._population)

    def _points(self, points: Sequence[Tensor]) -> Array:
        """The points in float64, (K, P)."""
        points_KP = np.empty((len(points), self._size))
        for k, point_P in enumerate(points):
            points_KP[k] = point_P.numpy()
        return points_KP


class PeopleSums(LinearSums):
    """As `LinearSums`, where an example is a person: what is picked is (rows, where each person's begin, one more).

    A person's gradients are added up, part by part, to vectors in float64, whose norms are taken as they are, P numbers
    each: docs/decisions/units.md says what changes in the proof.
    """

    def _examples(self, picked: Any) -> tuple[Array, Array]:
        """The rows picked, and where each person's begin in them."""
        rows_R, starts = picked
        valid = starts[0] == 0 and starts[-1] == len(rows_R) and bool((np.diff(starts) >= 0).all())
        need(valid, "every person's rows must lie behind those of the one before")
        return rows_R, starts

    def margin(self, parts: int) -> float:
        """By how much clips are shrunk: for two sums, to which parts are added one by one, and a norm of P numbers."""
        return 2 * sum_error(self._population, parts=parts) + (self._size + parts + 16) * UNIT


@lru_cache(maxsize=16)
def _tables(parts: tuple[Part, ...]) -> tuple[Array, Array]:
    """(clip, weight, 1 for AUTO-S) per part, and the coefficients, as the kernels read them."""
    rules = np.array([(part.clip, part.weight, float(part.rule is ClipRule.AUTO)) for part in parts])
    return rules, np.array([part.coefficients for part in parts], dtype=np.float64)


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
    example whose ‖x‖ overflows float64 counts as not finite; weight times clip below 1e-200 lets nothing through.
    Targets of `multiclass_loss` must be classes, or −100 to be ignored. The first call in a fresh installation compiles
    for some seconds; the result is kept on disk.

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
        if kind is None or type(module) is not nn.Linear:
            return False
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return False
        if "forward" in vars(module):  # somebody's own, for this one layer
            return False
        if objective.layout.names != ("weight", "bias")[: len(objective.layout.names)]:
            return False  # `remove_parametrizations` and the like leave the bias in front
        ours = all(p.requires_grad and p.device.type == "cpu" for p in module.parameters())
        return ours and (kind == MULTICLASS or module.out_features == 1)

    def __call__(self, query: Query, batch: Batch) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the batch (inputs, targets)."""
        sums, everyone = self.over_batch(batch)
        return sums(query, everyone)

    def over_batch(self, batch: Batch) -> tuple[LinearSums, Any]:
        """Sums over a batch (inputs, targets), and what picks all of it."""
        if isinstance(batch, Bundles):
            inputs, targets = (tensor.flatten(0, 1) for tensor in batch.rows)
            counts_Bk = batch.counts.numpy() > 0
            rows_R, starts = np.flatnonzero(counts_Bk), np.cumsum([0, *counts_Bk.sum(1)])
            return self.over(inputs, targets, people=True), (rows_R, starts)
        inputs, targets = batch
        return self.over(inputs, targets), _everyone(len(targets))

    def over(self, inputs: Tensor, targets: Tensor, *, people: bool = False) -> LinearSums:
        """Sums over these records, of which each call picks some: nothing is gathered.

        Dense rows, and the numbers of sparse ones, are read where they lie, and measured whenever they are read: what
        becomes of them between two sums changes the sums, not their bound. Columns and targets are copied.

        Args:
            people: an example is a person with several rows (see `PeopleSums`), not a row.
        """
        (starts, columns, values), targets_n = self._batch(inputs, targets)
        need(kernels().columns_fit(starts, columns, values, self.model[1]), _INVALID)
        rows = starts, columns, values, targets_n
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
        return starts.astype(np.int64), columns.astype(np.uint32), _values(inputs.values())
    if inputs.layout != torch.strided:
        need(False, "inputs must be dense or sparse CSR", layout=str(inputs.layout))
    rows, features = inputs.shape
    return _dense_starts(rows, features), _NO_COLUMNS, _values(inputs.reshape(-1))


def _values(numbers: Tensor) -> Array:
    """float32 and float64 as they are, anything else in float64."""
    keep = numbers.dtype in (torch.float32, torch.float64)
    return (numbers if keep else numbers.double()).numpy()
