"""`Isolation.CHECKED`: a few random examples of a batched pass, run again alone; a difference refuses the release.

Shapes: B examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpsrm.core.errors import IsolationError
from dpsrm.gradients.batch import Batch, example, examples
from dpsrm.gradients.objective import Objective
from dpsrm.gradients.query import Query
from dpsrm.gradients.seen_functions import fresh_back

_EXAMPLES = 3
_TOLERANCE = 1e-3
"""Far above the rounding of float32 passes over batches of another size, far below what mixing does."""


@dataclass(frozen=True)
class Seen:
    """One example in a batched pass: its loss at every point, and the norm of every part."""

    losses: list[float]
    norms: list[float]


def chosen(examples: int) -> list[int]:
    """The places of a few examples, other ones each time."""
    return sorted(torch.randperm(examples, device="cpu")[:_EXAMPLES].tolist())


def need_equal(together: float, alone: float, *, scale: float, what: str) -> None:
    """Refuse a number that an example has in the batch but not alone; `scale` says how large rounding may be."""
    if abs(together - alone) <= _TOLERANCE * (abs(scale) + abs(alone)) or (together != together and alone != alone):
        return
    raise IsolationError(
        f"an example's {what} is another in the batch than alone: module or loss treat examples together (or draw "
        'random numbers, as dropout does); nothing was released; use isolation = "alone". '
        "(That it stopped says something about a record: do not publish it.)"
    )


@torch.no_grad()
def compare_losses(objective: Objective, point_P: Tensor, batch: Batch, losses_B: Tensor) -> None:
    """Compare the losses of a few random examples of a batched pass with those they have alone."""
    for i in chosen(examples(batch)):
        alone = float(objective.alone(point_P, example(batch, i)))
        need_equal(float(losses_B[i]), alone, scale=1.0, what="loss")


def compare_parts(objective: Objective, query: Query, one: Batch, seen: Seen) -> None:
    """Compare one example's losses and the norms of its parts with what a batched pass saw.

    A part that is a small difference of gradients is compared on the gradients' scale: rounding has that size.
    """
    gradients = []
    for point_P, loss in zip(query.points, seen.losses, strict=True):
        leaf_P = point_P.detach().clone().requires_grad_()
        alone = objective.alone(leaf_P, one)
        with fresh_back():
            gradients.append(torch.autograd.grad(alone, leaf_P)[0].double())
        need_equal(loss, float(alone.detach()), scale=1.0, what="loss")
    for part, norm in zip(query.parts, seen.norms, strict=True):
        pieces = [c * g_P for c, g_P in zip(part.coefficients, gradients, strict=True)]
        size = sum(float(piece.norm()) for piece in pieces)
        need_equal(norm, float(torch.stack(pieces).sum(0).norm()), scale=size, what="gradient norm")
