"""Per-example gradients by `torch.func`: vmap over grad, each example alone; memory is (piece of the batch) × P."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad_and_value

from dpsrm.core.errors import need
from dpsrm.core.secret import ClippedSum
from dpsrm.gradients.batch import Batch, dense, examples, groups
from dpsrm.gradients.batch import rows as rows_of
from dpsrm.gradients.objective import Objective, Way
from dpsrm.gradients.passes import each_alone
from dpsrm.gradients.query import Query
from dpsrm.gradients.rows import Tally

_ELEMENTS = 2**24
"""Per-example gradients held at once, in numbers: 64 MB of float32 per point."""
_ROWS = 1024
"""Rows added in one float64 product: more could not be kept within the margin (docs/decisions/rounding.md)."""


class FunctionalEngine:
    """Clipped sums by `torch.func`, in pieces of `max_physical_batch` examples (by default as many as fit in 64 MB).

    Edge cases: layers with randomness (dropout) draw the same masks at every point of a query, so that a
    gradient's difference is the difference of one function.
    """

    def __init__(self, objective: Objective, *, max_physical_batch: int | None = None) -> None:
        """Prepare the vectorised gradient of `objective`."""
        need(objective.way is Way.VMAP, "this engine runs each example alone by vmap", way=objective.way.value)
        self.objective = objective
        self.max_physical_batch = min(_ROWS, max_physical_batch or max(1, _ELEMENTS // objective.layout.size))

    def __call__(self, query: Query, batch: Batch) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the batch."""
        tally = Tally.empty(query)
        for group in groups(batch):
            self.add(tally, group)
        return tally.result()

    def add(self, tally: Tally, batch: Batch) -> None:
        """Add a batch to a running sum."""
        batch = dense(batch)
        for start in range(0, examples(batch), self.max_physical_batch):
            piece = rows_of(batch, slice(start, start + self.max_physical_batch))
            state = torch.get_rng_state()
            gradients, losses_B = [], torch.empty(0)
            for point_P in reversed(tally.query.points):
                torch.set_rng_state(state)
                g_BP, losses_B = self._rows(point_P, piece)
                gradients.append(g_BP.detach())
            tally.add(gradients[::-1], losses_B.detach())

    def _rows(self, point_P: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Every example's gradient and loss."""
        run = self.objective.ready()

        def loss_of_one(vector_P: Tensor, one: Batch) -> Tensor:
            return run.one(self.objective.parameters(vector_P), one)

        gradient = grad_and_value(loss_of_one)
        with self.objective.explained(point_P, batch):
            rows: tuple[Tensor, Tensor] = each_alone(lambda one: gradient(point_P, one), batch)
        return rows
