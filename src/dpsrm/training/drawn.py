"""What a loader handed out, so that a step takes the batch that was drawn and no other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpsrm.core.tree import leaves, mapped, refilled
from dpsrm.gradients import Batch
from dpsrm.training.step import Draw


@dataclass(frozen=True)
class Drawn:
    """A draw, a copy of the batch that was read for it, which the step is made of, and the tensors the loop was given.

    The loop can write into what it has in ways that no counter sees (`.data`, NumPy), and into the list or dictionary.
    """

    draw: Draw
    batch: Batch
    given: tuple[Tensor, ...]

    @classmethod
    def of(cls, draw: Draw, batch: Batch) -> Drawn:
        """Copy what was read, before the loop has it."""
        return cls(draw, mapped(lambda tensor: tensor.clone(), batch), tuple(leaves(batch)))

    @property
    def again(self) -> Batch:
        """The batch for the loop: the very tensors it was given, or, if it changed them, the same numbers anew."""
        pairs = zip(self.given, leaves(self.batch), strict=True)
        return refilled(self.batch, iter([given if _equal(given, ours) else ours.clone() for given, ours in pairs]))

    def is_in(self, batch: Batch) -> bool:
        """Whether `batch` holds the very tensors that were given, unchanged."""
        theirs = leaves(batch)
        same = len(theirs) == len(self.given) and all(x is y for x, y in zip(theirs, self.given, strict=True))
        return same and all(map(_equal, theirs, leaves(self.batch)))


def _equal(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN is equal to itself."""
    if (x.layout, x.dtype, x.shape) != (y.layout, y.dtype, y.shape):
        return False
    if x.layout is torch.sparse_csr:
        places = torch.equal(x.crow_indices(), y.crow_indices()) and torch.equal(x.col_indices(), y.col_indices())
        return places and _equal(x.values(), y.values())
    return torch.equal(x, y) or bool(((x == y) | ((x != x) & (y != y))).all())
