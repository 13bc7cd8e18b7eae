"""Per-example gradients by `torch.func`: vmap over grad, each example alone; memory is (piece of the batch) × P."""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.func import grad_and_value

from dpsrm.core.errors import need
from dpsrm.core.secret import ClippedSum
from dpsrm.core.tree import Ragged
from dpsrm.gradients.batch import Batch, Kind, copies, dense, example, examples, groups, kind, padded
from dpsrm.gradients.batch import rows as rows_of
from dpsrm.gradients.objective import Objective, Way
from dpsrm.gradients.passes import each_alone
from dpsrm.gradients.places import ONE_BY_ONE, Draws, piece_size, placeless, probes
from dpsrm.gradients.query import Query
from dpsrm.gradients.rows import Tally
from dpsrm.gradients.torch_state import rng_states, set_rng_states

_log = logging.getLogger(__name__)
_ELEMENTS, _ELEMENTS_ON_GPU = 2**24, 2**28
"""Per-example gradients held at once, in numbers: 64 MB of float32 per point; 1 GB on a GPU, where small ones idle."""
_ROWS = 1024
"""Rows added in one float64 product: more could not be kept within the margin (docs/decisions/rounding.md)."""


class FunctionalEngine:
    """Clipped sums by `torch.func`, in pieces of `max_physical_batch` examples (by default as many as fit in 64 MB).

    `steady` and `expected` are those of `GhostEngine`.
    Edge cases: layers with randomness (dropout) draw the same masks at every point of a query, so that a
    gradient's difference is the difference of one function.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        max_physical_batch: int | None = None,
        steady: bool = True,
        expected: int | None = None,
    ) -> None:
        """Prepare the vectorised gradient of `objective`."""
        need(objective.way is Way.VMAP, "this engine runs each example alone by vmap", way=objective.way.value)
        need(
            objective.shards is None or all(block.trained for block in objective.shards.blocks),
            "gradients by torch.func would keep the sharded frozen parameters, whole",
            remedy='use layers that the ghost engine has rules for (docs/layers.md), or performance.engine = "loop"',
        )
        self.objective = objective
        self.steady = steady
        on_host = next(objective.module.parameters()).device.type == "cpu"
        fitting = (_ELEMENTS if on_host else _ELEMENTS_ON_GPU) // objective.layout.size
        self.max_physical_batch = min(_ROWS, max_physical_batch or max(1, fitting))
        self._piece = self.max_physical_batch if max_physical_batch else piece_size(self.max_physical_batch, expected)
        self._sizes: dict[Kind, int] = {}

    def __call__(self, query: Query, batch: Batch) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the batch."""
        tally = Tally.empty(query, steady=self.steady and not isinstance(batch, Ragged))
        draws = Draws(steady=tally.steady)
        for group in groups(batch):
            self.add(tally, group, draws)
        return tally.result()

    def add(self, tally: Tally, batch: Batch, draws: Draws) -> None:
        """Add a batch to a running sum."""
        batch = dense(batch)
        size = self.max_physical_batch if tally.steady or not examples(batch) else self._size(tally.query, batch)
        for start in range(0, examples(batch), size):
            draws.rewind()
            piece = rows_of(batch, slice(start, start + size))
            self._add(tally, piece if tally.steady else padded(piece, size), examples(piece))

    def _size(self, query: Query, batch: Batch) -> int:
        """How many examples of this kind make a piece, if places may shift."""
        if (alike := kind(batch)) not in self._sizes:
            tried = probes(query.points[:1], example(batch, 0))
            free = all(self._placeless(point_P, one) for (point_P,), one in tried)
            self._sizes[alike] = self._piece if free else 1
            if not free:
                _log.warning(ONE_BY_ONE)
        return self._sizes[alike]

    def _placeless(self, point_P: Tensor, one: Batch) -> bool:
        """Whether copies of an example are computed to equal bits."""
        g_BP, losses_B = self._rows(point_P, copies(one, self._piece), steady=False)
        return placeless([g_BP, losses_B, torch.linalg.vector_norm(g_BP.double(), dim=1)])

    def _add(self, tally: Tally, piece: Batch, real: int) -> None:
        """Add one piece, of whose examples the first `real` count."""
        state = rng_states()
        gradients, losses_B = [], tally.total_P[:0]
        for point_P in reversed(tally.query.points):
            set_rng_states(state)
            g_BP, losses_B = self._rows(point_P, piece, steady=tally.steady)
            gradients.append(g_BP.detach())
        tally.add(gradients[::-1], losses_B.detach(), real=real)

    def _rows(self, point_P: Tensor, batch: Batch, *, steady: bool) -> tuple[Tensor, Tensor]:
        """Every example's gradient and loss."""
        run = self.objective.ready()

        def loss_of_one(vector_P: Tensor, one: Batch) -> Tensor:
            return run.one(self.objective.parameters(vector_P), one)

        gradient = grad_and_value(loss_of_one)
        with self.objective.explained(point_P, batch), torch.enable_grad():
            g_BP, losses_B = each_alone(lambda one: gradient(point_P.detach(), one), batch, steady=steady)
            self.objective.own.refuse_use(losses_B)
        return g_BP.detach(), losses_B.detach()
