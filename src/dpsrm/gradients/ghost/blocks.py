"""One parameter's per-example gradients at all points of a query: their norms, and their weighted sum.

Shapes: B examples, T positions, I inputs, O outputs, P the parameter's size, U (example, word) pairs.
A block measures the combination of a part and later adds the same combination to the sum. How far the two can differ
by rounding is stated by `Measure.spread`; the engine's margin is a multiple of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpsrm.gradients.ghost.mixture import Atom, Combination
from dpsrm.gradients.ghost.terms import Lookup, Order

_LINE = 64
"""How many squares are added in the gradients' own precision before the sum goes on in float64."""


@dataclass(frozen=True)
class Measure:
    """Squared norms in float64, and the sum of squares of the pieces that were added up to what is measured.

    Rounding errors are multiples of `spread_B`, which exceeds `square_B` where the pieces cancel.
    """

    square_B: Tensor
    spread_B: Tensor

    def plus(self, other: Measure) -> Measure:
        """The measure of two blocks together."""
        return Measure(self.square_B + other.square_B, self.spread_B + other.spread_B)


class Block(Protocol):
    """What the engine asks of a parameter's per-example gradients."""

    def measure(self, part: Combination) -> Measure:
        """The squared norm of each example's combination."""
        ...

    def precise(self, part: Combination, rows: Tensor) -> Tensor:
        """The squared norms of the examples `rows`, from float64 products."""
        ...

    def add(self, weights: dict[Atom, Tensor], total_P: Tensor) -> None:
        """Add Σ_i weight_i·atom_i to `total_P`, for every atom."""
        ...

    def silence(self, finite_B: Tensor) -> None:
        """Put zeros in the place of examples that are not finite."""
        ...


def dots(x_BP: Tensor, y_BP: Tensor) -> Tensor:
    """Σ x·y per row in float64: short stretches in the rows' own precision, then float64."""
    if x_BP is y_BP:
        return _squares(x_BP)
    lines_BNL, rest_BL = _lines(x_BP * y_BP)
    total_B: Tensor = lines_BNL.sum(2).double().sum(1) + rest_BL.sum(1).double()
    return total_B


def _squares(x_BP: Tensor) -> Tensor:
    """Σ x² per row, without a copy of x."""
    lines_BNL, rest_BL = _lines(x_BP)
    pieces_BN = torch.linalg.vector_norm(lines_BNL, dim=2).double()
    total_B: Tensor = pieces_BN.square().sum(1) + torch.linalg.vector_norm(rest_BL, dim=1).double().square()
    return total_B


def _lines(x_BP: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the rows as lines of equal length, and what is left over."""
    lines = x_BP.shape[1] // _LINE
    size = lines * _LINE
    return x_BP[:, :size].view(len(x_BP), lines, _LINE), x_BP[:, size:]


class RowsBlock:
    """Materialised rows; differences are taken row by row, so what is summed is what was measured."""

    def __init__(self, atoms: dict[Atom, Tensor], order: Order | None = None) -> None:
        """Keep the rows of each atom; `order` brings a row to the order of the parameter."""
        self.atoms = atoms
        self.order = order or Order()
        self._squares: dict[Atom, Tensor] = {}

    @classmethod
    def of(cls, points: Sequence[Tensor], atoms: Sequence[Atom]) -> RowsBlock:
        """The block of the rows at each point."""
        return cls({(j, k): points[j] if j == k else points[j] - points[k] for j, k in atoms})

    def measure(self, part: Combination) -> Measure:
        """The squared norm of each example's combination."""
        if len(part) == 1:
            ((atom, c),) = part.items()
            if atom not in self._squares:
                self._squares[atom] = _squares(self.atoms[atom])
            square_B = c * c * self._squares[atom]
            return Measure(square_B, square_B)
        spread_B = sum((self.measure({atom: c}).spread_B for atom, c in part.items()), torch.zeros(()))
        return Measure(_squares(self._combined(part)), spread_B)

    def precise(self, part: Combination, rows: Tensor) -> Tensor:
        """The squared norms of the examples `rows`, from float64 products."""
        parts = (c * self.atoms[atom][rows].double() for atom, c in part.items())
        return sum(parts, torch.zeros((), dtype=torch.float64)).square().sum(1)

    def add(self, weights: dict[Atom, Tensor], total_P: Tensor) -> None:
        """Add the weighted rows."""
        for atom, weight_B in weights.items():
            total_P += self.order(weight_B @ self.atoms[atom])

    def silence(self, finite_B: Tensor) -> None:
        """Put zeros in the place of examples that are not finite."""
        self.atoms = {atom: torch.where(finite_B[:, None], rows, 0) for atom, rows in self.atoms.items()}

    def _combined(self, part: Combination) -> Tensor:
        """The rows of a combination of several atoms."""
        (first, c), *others = part.items()
        rows_BP = c * self.atoms[first]
        for atom, c in others:
            rows_BP.add_(self.atoms[atom], alpha=c)
        return rows_BP


class LookupBlock:
    """The embedding rows each example looked up, one row per (example, word) pair."""

    def __init__(self, points: Sequence[Lookup], atoms: Sequence[Atom]) -> None:
        """Add up the gradients of a word that an example holds several times."""
        ids_BT, self.size = points[0].ids_BT, points[0].size
        self.examples = len(ids_BT)
        base_B1 = torch.arange(self.examples, device=ids_BT.device)[:, None] * self.size
        pairs_U, which = torch.unique(ids_BT + base_B1, return_inverse=True)
        self.owner_U, self.word_U = pairs_U // self.size, pairs_U % self.size
        rows = [self._pooled(point.g_BTO.flatten(0, 1), which.flatten()) for point in points]
        self.rows = RowsBlock.of(rows, atoms)

    def _pooled(self, g_NO: Tensor, which_N: Tensor) -> Tensor:
        """One row per pair."""
        return g_NO.new_zeros(len(self.owner_U), g_NO.shape[1]).index_add_(0, which_N, g_NO)

    def measure(self, part: Combination) -> Measure:
        """The squared norm of each example's combination."""
        found = self.rows.measure(part)
        return Measure(self._by_example(found.square_B), self._by_example(found.spread_B))

    def precise(self, part: Combination, rows: Tensor) -> Tensor:
        """The squared norms of the examples `rows`, from float64 products."""
        everything = torch.arange(len(self.owner_U), device=rows.device)
        return self._by_example(self.rows.precise(part, everything))[rows]

    def _by_example(self, square_U: Tensor) -> Tensor:
        """Summed over each example's words."""
        return square_U.new_zeros(self.examples).index_add_(0, self.owner_U, square_U)

    def add(self, weights: dict[Atom, Tensor], total_P: Tensor) -> None:
        """Add the weighted rows to the words' places."""
        table = total_P.view(self.size, -1)
        for atom, weight_B in weights.items():
            rows = self.rows.atoms[atom] * weight_B[self.owner_U, None]
            table.index_add_(0, self.word_U, rows.to(table.dtype))

    def silence(self, finite_B: Tensor) -> None:
        """Put zeros in the place of examples that are not finite."""
        self.rows.silence(finite_B[self.owner_U])
