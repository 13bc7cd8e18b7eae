"""Sums over some of the records of a linear model, with the margins that cover their rounding.

Shapes: n records, B picked, C outputs, P parameters, K points, M parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.core.secret import ClippedScores, ClippedSum, Diagnostics
from dpsrm.gradients.linear_types import Array, Model, Rows
from dpsrm.gradients.query import ClipRule, Excess, Part, Query, refuse_excess

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
