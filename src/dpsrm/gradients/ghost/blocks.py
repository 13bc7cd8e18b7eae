"""One parameter's per-example gradients at all points of a query: their norms, and their weighted sum.

Shapes: B examples, T positions, I inputs, O outputs, P the parameter's size, U (example, word) pairs.
A block measures the combination of a part and later adds the same combination to the sum. How far rounding can carry
either is stated by the block (`Measure`, `most_spread`); the engine keeps both within its margin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpsrm.gradients.ghost.mixture import Atom, Combination
from dpsrm.gradients.ghost.rounding import at_once
from dpsrm.gradients.ghost.terms import Lookup, Order, same
from dpsrm.gradients.ghost.written import WrittenRows

_ZERO = torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class Measure:
    """What is known about the norm of each example's combination, in float64.

    `square_B` is the squared norm, off by at most `doubt_B`. `spread_B` is the square of an upper bound on the sum of
    the norms of all pieces that are added up to the combination: it exceeds `square_B` where they cancel.
    """

    square_B: Tensor
    doubt_B: Tensor
    spread_B: Tensor

    def plus(self, other: Measure) -> Measure:
        """The measure of two blocks, which lie in different coordinates, together."""
        return Measure(self.square_B + other.square_B, self.doubt_B + other.doubt_B, self.spread_B + other.spread_B)


class Block(Protocol):
    """What the engine asks of a parameter's per-example gradients."""

    shape: tuple[int, int]
    """How many examples there are, and how many numbers each one's row has."""
    most_spread: float
    """How long an example's weighted pieces may be together, in clips, to be added in the gradients' own type."""

    def measure(self, part: Combination) -> Measure:
        """The norm of each example's combination."""
        ...

    def precise(self, part: Combination, rows: Tensor) -> Tensor:
        """The squared norms of the examples `rows`, from float64 products."""
        ...

    def add(self, weights: dict[Atom, Tensor], total_P: Tensor, *, loose_B: Tensor) -> int:
        """Add Σ_i weight_i·atom_i to `total_P`, for every atom; examples in `loose_B` must be added in float64.

        Returns how many numbers at most were added to one coordinate.
        """
        ...

    def silence(self, finite_B: Tensor) -> None:
        """Put zeros in the place of examples that are not finite."""
        ...

    def rest(self) -> None:
        """Give back memory for what can be computed again; called when all parts are measured."""
        ...


class RowsBlock:
    """Materialised rows; what is summed is what was measured, in float64."""

    def __init__(self, points: Sequence[Tensor], order: Order | None = None, *, steady: bool = True) -> None:
        """Keep the rows of each point; `order` brings a row to the order of the parameter."""
        self.steady = steady
        self.rows = WrittenRows(points)
        self.shape = self.rows.examples, self.rows.size
        self.order = order or Order()
        self.most_spread = math.inf

    def measure(self, part: Combination) -> Measure:
        """The norm of each example's combination."""
        norm_B = sum((abs(c) * self.rows.square(atom).sqrt() for atom, c in part.items()), _ZERO)
        spread_B = norm_B.square() * (1 + 2.0**-20)
        return Measure(self.rows.square_of(part), 2.0**-30 * spread_B, spread_B)

    def precise(self, part: Combination, rows: Tensor) -> Tensor:
        """The squared norms of the examples `rows`, from float64 products."""
        return self.measure(part).square_B[rows]

    def add(self, weights: dict[Atom, Tensor], total_P: Tensor, *, loose_B: Tensor) -> int:
        """Add the weighted rows, in float64."""
        size = at_once(len(weights), steady=self.steady)
        starts = range(0, self.rows.examples, size)
        for start in starts:
            total_P += self.order(self.rows.weighted(weights, slice(start, start + size)))
        return len(starts)

    def silence(self, finite_B: Tensor) -> None:
        """Put zeros in the place of examples that are not finite."""
        self.rows.silence(finite_B)

    def rest(self) -> None:
        """Nothing: the rows are kept."""


class LookupBlock:
    """The embedding rows each example looked up, one row per (example, word) pair.

    What words an example looks up may depend on the point. Its pairs are then those of all points: another form for
    such batches would let the one example whose words differ decide how all others are rounded and clipped.
    """

    def __init__(self, points: Sequence[Lookup]) -> None:
        """Add up the gradients of a word that an example holds several times."""
        self.size = points[0].size
        ids = [point.ids_BT for point in points]
        self.looked_up = ids[:1] if all(same(ids[0], other) for other in ids) else ids
        self._widths = [ids_BT.shape[1] for ids_BT in self.looked_up]
        ids_BS = torch.cat(self.looked_up, 1)
        self.examples = len(ids_BS)
        base_B1 = torch.arange(self.examples, device=ids_BS.device)[:, None] * self.size
        pairs_U, which_BS = torch.unique(ids_BS + base_B1, return_inverse=True)
        self.owner_U, self.word_U = pairs_U // self.size, pairs_U % self.size
        self._which = which_BS
        self.shape = self.examples, self.size * points[0].g_BTO.shape[2]
        self.most_spread = math.inf
        each = torch.split(which_BS, self._widths, 1) * (len(points) // len(self._widths))
        rows = [self._pooled(p.g_BTO.flatten(0, 1), which.flatten()) for p, which in zip(points, each, strict=True)]
        self.rows = RowsBlock(rows)

    def _pooled(self, g_NO: Tensor, which_N: Tensor) -> Tensor:
        """One row per pair."""
        return g_NO.new_zeros(len(self.owner_U), g_NO.shape[1]).index_add_(0, which_N, g_NO)

    def measure(self, part: Combination) -> Measure:
        """The norm of each example's combination: the words lie in different coordinates."""
        found = self.rows.measure(part)
        return Measure(*(self._by_example(t) for t in (found.square_B, found.doubt_B, found.spread_B)))

    def precise(self, part: Combination, rows: Tensor) -> Tensor:
        """The squared norms of the examples `rows`, from float64 products."""
        return self.measure(part).square_B[rows]

    def placed(self, part: Combination) -> list[Tensor]:
        """A combination's rows, (B, T, O) in float64 for each of `looked_up`: a word's are at its first place in the
        example, elsewhere are zeros."""
        which_N = self._which.flatten()
        places = torch.arange(len(which_N), device=which_N.device)
        first_U = torch.full_like(self.owner_U, len(places)).scatter_reduce_(0, which_N, places, "amin")
        rows_UO = self.rows.rows.mixed(part)
        flat_NO = rows_UO.new_zeros(len(places), rows_UO.shape[1]).index_copy_(0, first_U, rows_UO)
        return [x.contiguous() for x in torch.split(flat_NO.view(*self._which.shape, -1), self._widths, 1)]

    def _by_example(self, square_U: Tensor) -> Tensor:
        """Summed over each example's words."""
        return square_U.new_zeros(self.examples).index_add_(0, self.owner_U, square_U)

    def add(self, weights: dict[Atom, Tensor], total_P: Tensor, *, loose_B: Tensor) -> int:
        """Add the weighted rows to the words' places, in float64.

        An example adds to a word once, all atoms together: one atom alone may be much longer than their sum.
        """
        rows = (self.rows.rows.atom(atom) * weight_B[self.owner_U, None] for atom, weight_B in weights.items())
        total_P.view(self.size, -1).index_add_(0, self.word_U, sum(rows, _ZERO))
        return self.examples

    def silence(self, finite_B: Tensor) -> None:
        """Put zeros in the place of examples that are not finite."""
        self.rows.silence(finite_B[self.owner_U])

    def rest(self) -> None:
        """Nothing: the rows are kept."""
