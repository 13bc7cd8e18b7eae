"""The slow oracle: one example at a time, one backward pass per point, in as few words as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.core.secret import ClippedSum, Diagnostics
from dpsrm.core.tree import Ragged
from dpsrm.core.users_generators import set_users_states, users_states
from dpsrm.gradients.batch import Batch, as_batch, dense, each_example, examples
from dpsrm.gradients.objective import Objective
from dpsrm.gradients.places import Draws
from dpsrm.gradients.query import MARGIN, STABILITY, ClipRule, Excess, Query, need_few, refuse_excess
from dpsrm.gradients.seen_functions import fresh_back
from dpsrm.gradients.torch_state import rng_states, set_rng_states


class LoopEngine:
    """Clipped sums by a Python loop over examples; every faster engine is tested against it.

    It takes any module: each example is an ordinary call on a copy of the module of its own.
    Args:
        objective: the module and its loss.
        margin: the share of a clip that is given up for rounding; another one only to compare with another engine.
        steady: whether a neighbouring dataset leaves all other examples in their places.

    Edge cases: layers with randomness draw the same at every point of a query, and unless `steady` for every example.
    If `steady`, what an example draws depends on its place, not on how much those before it drew.
    """

    def __init__(self, objective: Objective, *, margin: float = MARGIN, steady: bool = True) -> None:
        """Remember the objective."""
        self.objective = objective
        self.steady = steady
        self.margin = margin

    def __call__(self, query: Query, batch: Batch) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the batch."""
        total_P = torch.zeros_like(query.points[0], dtype=torch.float64)
        batch = dense(batch)
        count, draws = examples(batch), Draws(steady=self.steady and not isinstance(batch, Ragged))
        added = count * len(query.parts)
        need_few(count, added)
        clipped, nonfinite, loss = [0] * len(query.parts), 0, 0.0
        for _, one in zip(draws.each(count), each_example(batch), strict=True):
            gradients = self._gradients(query.points, one)
            loss += gradients[0][1]
            finite = all(bool(torch.isfinite(g_P).all()) for g_P, _ in gradients)
            nonfinite += not finite
            for index, part in enumerate(query.parts):
                zero_P = torch.zeros_like(total_P)
                row_P = sum((c * g for c, (g, _) in zip(part.coefficients, gradients, strict=True)), zero_P)
                norm = float(row_P.norm())
                if query.excess is Excess.RAISE:
                    refuse_excess(row_P.norm().reshape(1), part)
                if not finite or math.isinf(norm):  # 0 times infinity is no zero
                    continue
                within, automatic = part.clip * (1 - self.margin), part.rule is ClipRule.AUTO
                clipped[index] += norm > part.clip
                length = norm + STABILITY if automatic else norm
                scale = within / length if norm > within or automatic else 1.0
                total_P += part.weight * row_P * scale
        rows = max(count, 1)
        facts = Diagnostics(loss=loss / rows, clipped=tuple(c / rows for c in clipped), nonfinite=nonfinite)
        return ClippedSum(secret=total_P, bound=query.bound, rows=count, diagnostics=facts, additions=added)

    def _gradients(self, points: Sequence[Tensor], one: Batch) -> list[tuple[Tensor, float]]:
        """∇f_i and f_i at every point, with the same random numbers."""
        state, users, found = rng_states(), users_states(), []
        for point_P in points:
            set_rng_states(state)
            set_users_states(users)
            found.append(self._gradient(point_P, one))
        return found

    def _gradient(self, point_P: Tensor, one: Batch) -> tuple[Tensor, float]:
        """∇f_i and f_i at one point."""
        leaf_P = point_P.detach().clone().requires_grad_()
        with self.objective.explained(point_P, as_batch(one)):
            loss = self.objective.alone(leaf_P, one)
            own = self.objective.own
            with fresh_back():
                g_P, *others = torch.autograd.grad(loss, (leaf_P, *own.trained.values()), allow_unused=True)
            own.refuse_gradients(others)
            need(g_P is not None, "the loss must depend on the trained parameters")
        return g_P.double(), float(loss.detach())
