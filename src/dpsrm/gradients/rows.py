"""From materialised per-example gradients to the clipped sum.

Shapes: B examples, P trainable parameters; `g_BP` holds one example's gradient per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dpsrm.core.secret import ClippedSum, Diagnostics
from dpsrm.gradients.query import Excess, Query, need_few, part_factors, refuse_excess
from dpsrm.gradients.torch_state import zeros


@dataclass
class Tally:
    """A running clipped sum over the pieces of one batch; counts stay on the device until the end."""

    query: Query
    clipped: list[int | Tensor]
    steady: bool = True
    rows: int = 0
    nonfinite: int | Tensor = 0
    loss: float | Tensor = 0.0
    additions: int = 0
    """How many numbers were added to one coordinate of the sum at most."""

    @classmethod
    def empty(cls, query: Query, *, steady: bool) -> Tally:
        """Nothing summed yet; `steady`: a neighbouring dataset leaves all other examples in their places."""
        return cls(query, [0] * len(query.parts), steady)

    @cached_property
    def total_P(self) -> Tensor:
        """The sum so far; made when something is added, because passes need their memory before."""
        like_P = self.query.points[0]
        return zeros(len(like_P), like_P, dtype=torch.float64)

    def add(self, gradients: Sequence[Tensor], losses_B: Tensor, *, real: int) -> None:
        """Add a piece of the batch: one (B, P) tensor of per-example gradients for each of the query's points.

        The first `real` rows are examples; the others only fill the piece up, and count for nothing.

        An example with a NaN or infinite gradient at any point contributes zero and is counted; so does, uncounted, a
        part whose norm float64 cannot hold.
        Norms, factors and the sum are float64; a part is combined in float64 from the given rows, so what is summed is
        what was measured and the bound holds whatever the rows' own rounding was.
        """
        finite_B = torch.stack([torch.isfinite(g_BP).all(dim=1) for g_BP in gradients]).all(dim=0)
        self.count(losses_B[:real], finite_B[:real])
        points = [torch.where(finite_B[:, None], g_BP, 0).double() for g_BP in gradients]
        for index, part in enumerate(self.query.parts):
            if part.weight == 0:
                continue
            used = [(c, g_BP) for c, g_BP in zip(part.coefficients, points, strict=True) if c != 0]
            rows_BP = sum((c * g_BP for c, g_BP in used[1:]), used[0][0] * used[0][1])
            norm_B = torch.linalg.vector_norm(rows_BP, dim=1)
            rows_BP.masked_fill_(torch.isfinite(norm_B).logical_not_()[:, None], 0)  # 0 times infinity is no zero
            if self.query.excess is Excess.RAISE:
                refuse_excess(torch.where(finite_B, norm_B, torch.nan), part)
            self.clipped[index] = self.clipped[index] + (norm_B[:real] > part.clip).sum()
            factor_B = part_factors(norm_B, part)
            factor_B[real:] = 0
            self.total_P += part.weight * (factor_B @ rows_BP)
            self.additions += 1

    def count(self, losses_B: Tensor, finite_B: Tensor) -> None:
        """Count examples, with their losses and whether their gradients are finite."""
        self.rows += len(losses_B)
        self.nonfinite = self.nonfinite + (~finite_B).sum()
        self.loss = self.loss + torch.where(torch.isfinite(losses_B), losses_B, 0).double().sum()

    def result(self) -> ClippedSum[Tensor]:
        """The sum with its bound, and what the operator may want to know."""
        need_few(self.rows, self.additions)
        share = max(self.rows, 1)
        return ClippedSum(
            secret=self.total_P,
            bound=self.query.bound,
            rows=self.rows,
            additions=self.additions,
            diagnostics=Diagnostics(
                loss=float(self.loss) / share,
                clipped=tuple(int(count) / share for count in self.clipped),
                nonfinite=int(self.nonfinite),
            ),
        )
