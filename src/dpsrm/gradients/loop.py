"""The slow oracle: one example at a time, one backward pass per point, in as few words as possible."""

from __future__ import annotations

import torch
from torch import Tensor

from dpsrm.core.secret import ClippedSum, Diagnostics
from dpsrm.gradients.objective import Objective
from dpsrm.gradients.query import MARGIN, STABILITY, ClipRule, Excess, Query, refuse_excess


class LoopEngine:
    """Clipped sums by a Python loop over examples; every faster engine is tested against it."""

    def __init__(self, objective: Objective) -> None:
        """Remember the objective."""
        self.objective = objective

    def __call__(self, query: Query, inputs: Tensor, targets: Tensor) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the batch."""
        total_P = torch.zeros(self.objective.layout.size, dtype=torch.float64)
        clipped, nonfinite, loss = [0] * len(query.parts), 0, 0.0
        for i in range(len(inputs)):
            gradients = [self._gradient(point_P, inputs[i : i + 1], targets[i : i + 1]) for point_P in query.points]
            loss += gradients[0][1]
            finite = all(bool(torch.isfinite(g_P).all()) for g_P, _ in gradients)
            nonfinite += not finite
            for index, part in enumerate(query.parts):
                row_P = sum((c * g for c, (g, _) in zip(part.coefficients, gradients, strict=True)), torch.tensor(0.0))
                norm = float(row_P.norm())
                if query.excess is Excess.RAISE:
                    refuse_excess(torch.tensor([norm]), part)
                if not finite:
                    continue
                too_long, automatic = norm > part.clip, part.rule is ClipRule.AUTO
                clipped[index] += too_long
                length = norm + STABILITY if automatic else norm
                scale = part.clip * (1 - MARGIN) / length if too_long or automatic else 1.0
                total_P += part.weight * row_P * scale
        rows = max(len(inputs), 1)
        facts = Diagnostics(loss=loss / rows, clipped=tuple(c / rows for c in clipped), nonfinite=nonfinite)
        return ClippedSum(secret=total_P, bound=query.bound, rows=len(inputs), diagnostics=facts)

    def _gradient(self, point_P: Tensor, one_input: Tensor, one_target: Tensor) -> tuple[Tensor, float]:
        """∇f_i and f_i at one point."""
        leaf_P = point_P.detach().clone().requires_grad_()
        loss = self.objective.losses(leaf_P, one_input, one_target).sum()
        (g_P,) = torch.autograd.grad(loss, leaf_P)
        return g_P.double(), float(loss.detach())
