"""Materialised rows in several arrays, one for some of the examples each.

Shapes: B examples, P the parameter's size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from dpsrm.gradients.ghost.blocks import Measure, RowsBlock
from dpsrm.gradients.ghost.mixture import Atom, Combination


class StackedBlock:
    """Materialised rows of some examples after the others: short arrays fit where memory was just given back."""

    def __init__(self, blocks: Sequence[RowsBlock]) -> None:
        """Put blocks of one parameter together, in the examples' order."""
        self._blocks = list(blocks)
        counts = [block.shape[0] for block in blocks]
        self._cuts = [slice(end - count, end) for count, end in zip(counts, accumulate(counts), strict=True)]
        self.shape = sum(counts), blocks[0].shape[1]
        self.most_spread = math.inf

    def measure(self, part: Combination) -> Measure:
        """The norm of each example's combination."""
        found = [block.measure(part) for block in self._blocks]
        columns = zip(*((one.square_B, one.doubt_B, one.spread_B) for one in found), strict=True)
        return Measure(*map(torch.cat, columns))

    def precise(self, part: Combination, rows: Tensor) -> Tensor:
        """The squared norms of the examples `rows`, from float64 products."""
        return self.measure(part).square_B[rows]

    def add(self, weights: dict[Atom, Tensor], total_P: Tensor, *, loose_B: Tensor) -> int:
        """Add the weighted rows, in float64."""
        return sum(
            block.add({atom: w_B[cut] for atom, w_B in weights.items()}, total_P, loose_B=loose_B[cut])
            for block, cut in zip(self._blocks, self._cuts, strict=True)
        )

    def silence(self, finite_B: Tensor) -> None:
        """Put zeros in the place of examples that are not finite."""
        for block, cut in zip(self._blocks, self._cuts, strict=True):
            block.silence(finite_B[cut])

    def rest(self) -> None:
        """Nothing: the rows are kept."""
