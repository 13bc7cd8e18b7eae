"""Per-example gradients by `torch.func`: vmap over grad, for any module; memory is (piece of the batch) × P."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from dpsrm.core.secret import ClippedSum
from dpsrm.gradients.objective import Objective
from dpsrm.gradients.query import Query
from dpsrm.gradients.rows import Tally

_ELEMENTS = 2**24
"""Per-example gradients held at once, in numbers: 64 MB of float32 per point."""


class FunctionalEngine:
    """Clipped sums by `torch.func`, in pieces of `max_physical_batch` examples (by default as many as fit in 64 MB).

    Edge cases: layers with randomness (dropout) draw the same masks at every point of a query, so that a
    gradient's difference is the difference of one function.
    """

    def __init__(self, objective: Objective, *, max_physical_batch: int | None = None) -> None:
        """Prepare the vectorised gradient of `objective`."""
        self.objective = objective
        self.max_physical_batch = max_physical_batch or max(1, _ELEMENTS // objective.layout.size)
        self._rows = vmap(grad_and_value(self._loss_of_one), in_dims=(None, 0, 0), randomness="different")

    def __call__(self, query: Query, inputs: Tensor, targets: Tensor) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the batch."""
        tally = Tally.empty(query)
        self.add(tally, inputs, targets)
        return tally.result()

    def add(self, tally: Tally, inputs: Tensor, targets: Tensor) -> None:
        """Add a batch to a running sum."""
        for piece in range(0, len(inputs), self.max_physical_batch):
            cut = slice(piece, piece + self.max_physical_batch)
            state = torch.get_rng_state()
            gradients, losses_B = [], torch.empty(0)
            for point_P in reversed(tally.query.points):
                torch.set_rng_state(state)
                g_BP, losses_B = self._rows(point_P, inputs[cut], targets[cut])
                gradients.append(g_BP.detach())
            tally.add(gradients[::-1], losses_B.detach())

    def _loss_of_one(self, point_P: Tensor, one_input: Tensor, one_target: Tensor) -> Tensor:
        """The loss of a single example, as a batch of one."""
        return self.objective.losses(point_P, one_input.unsqueeze(0), one_target.unsqueeze(0)).squeeze(0)
