"""Outer products that are never written out: norms by Gram matrices, sums by one matrix product.

Shapes: B examples, T positions, I inputs, O outputs.
At point j an example's gradient is Σ_t g_jt ⊗ a_jt. A difference is

    g_j ⊗ a_j − g_k ⊗ a_k = (g_j − g_k) ⊗ a_j + g_k ⊗ (a_j − a_k),

two products of small numbers instead of a small difference of large ones; both the norm and the sum use this form.
With left factors l_m and right factors r_m the squared norm is Σ_mn Σ_ts (l_mt·l_ns)(r_mt·r_ns).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dpsrm.gradients.ghost.blocks import Measure
from dpsrm.gradients.ghost.mixture import Atom, Combination
from dpsrm.gradients.ghost.terms import Outer, same

Rights = dict[Atom, Tensor]
"""The right factor that goes with each left factor; left (j, j) is a_j, left (j, k) is a_j − a_k."""


class OuterBlock:
    """A linear map's weight as outer products, one per position."""

    def __init__(self, points: Sequence[Outer], atoms: Sequence[Atom]) -> None:
        """Take the differences the atoms need."""
        self.left: dict[Atom, Tensor] = {}
        self.right: dict[Atom, Tensor] = {}
        self._grams: dict[tuple[Atom, Atom], Tensor] = {}
        for j, k in atoms:
            self.left[j, j], self.right[k, k] = points[j].a_BTI, points[k].g_BTO
            self.right[j, k] = points[j].g_BTO - points[k].g_BTO if j != k else points[j].g_BTO
            if j != k and not same(points[j].a_BTI, points[k].a_BTI):
                self.left[j, k] = points[j].a_BTI - points[k].a_BTI

    def measure(self, part: Combination) -> Measure:
        """The squared norm of each example's combination; in float64 where there is one position only."""
        if len(part) == 1:
            ((atom, c),) = part.items()
            found = self._gram(self._rights({atom: _Times(1.0)}), grams=self._grams)
            return Measure(c * c * found.square_B, c * c * found.spread_B)
        return self._gram(self._rights({atom: _Times(c) for atom, c in part.items()}), grams=self._grams)

    def precise(self, part: Combination, rows: Tensor) -> Tensor:
        """The squared norms of the examples `rows`, from float64 products."""
        cut = OuterBlock.__new__(OuterBlock)
        cut.left = {atom: left[rows].double() for atom, left in self.left.items()}
        cut.right = {atom: right[rows].double() for atom, right in self.right.items()}
        return cut._gram(cut._rights({atom: _Times(c) for atom, c in part.items()}), grams={}).square_B

    def add(self, weights: dict[Atom, Tensor], total_P: Tensor) -> None:
        """Add Σ_i Σ_t right_it ⊗ left_it, one matrix product per left factor."""
        scaled = {atom: _Scale(weight_B[:, None, None]) for atom, weight_B in weights.items()}
        for atom, right in self._rights(scaled).items():
            left_NI, right_NO = _flat(self.left[atom], right)
            total_P += (right_NO.T @ left_NI).flatten()

    def silence(self, finite_B: Tensor) -> None:
        """Put zeros in the place of examples that are not finite."""
        keep = finite_B[:, None, None]
        self.left = {atom: torch.where(keep, left, 0) for atom, left in self.left.items()}
        self.right = {atom: torch.where(keep, right, 0) for atom, right in self.right.items()}

    def _rights(self, part: dict[Atom, Callable[[Tensor], Tensor]]) -> Rights:
        """The right factor of each left factor in Σ scale(atom)."""
        found: Rights = {}
        for (j, k), scale in part.items():
            pairs = [((j, j), (j, k))] + ([((j, k), (k, k))] if (j, k) in self.left and j != k else [])
            for left, right in pairs:
                more = scale(self.right[right])
                found[left] = found[left] + more if left in found else more
        return found

    def _gram(self, rights: Rights, *, grams: dict[tuple[Atom, Atom], Tensor]) -> Measure:
        """Σ_mn Σ_ts (l_mt·l_ns)(r_mt·r_ns), and the part of it with m = n and t = s."""
        keys = sorted(rights)
        one = self.left[keys[0]].shape[1] == 1
        square_B = spread_B = torch.zeros((), dtype=torch.float64)
        for at, m in enumerate(keys):
            for n in keys[: at + 1]:
                if (m, n) not in grams:
                    grams[m, n] = _inner(self.left[m], self.left[n], double=one)
                both = grams[m, n] * _inner(rights[m], rights[n], double=one)
                square_B = square_B + (1 if m == n else 2) * both.flatten(1).sum(1).double()
                if m == n:
                    spread_B = spread_B + both.diagonal(dim1=1, dim2=2).sum(1).double()
        return Measure(square_B.clamp_min(0), spread_B)


class _Times:
    """Multiplication by a number; by 1 without a copy."""

    def __init__(self, c: float) -> None:
        self.c = c

    def __call__(self, x: Tensor) -> Tensor:
        """c·x."""
        return x if self.c == 1 else self.c * x


class _Scale:
    """Multiplication by a number per example."""

    def __init__(self, weight_B11: Tensor) -> None:
        self.weight_B11 = weight_B11

    def __call__(self, x: Tensor) -> Tensor:
        """weight·x."""
        return self.weight_B11 * x


def _inner(x_BTD: Tensor, y_BTD: Tensor, *, double: bool) -> Tensor:
    """All inner products between positions, (B, T, T)."""
    if double:
        x_BTD, y_BTD = x_BTD.double(), y_BTD.double()
    return torch.bmm(x_BTD, y_BTD.transpose(1, 2))


def _flat(left_BTI: Tensor, right_BTO: Tensor) -> tuple[Tensor, Tensor]:
    """Examples and positions as one dimension, in the order in which the left factor lies in memory."""
    if left_BTI.shape[1] > 1 and left_BTI.stride(0) < left_BTI.stride(1):
        left_BTI, right_BTO = left_BTI.transpose(0, 1), right_BTO.transpose(0, 1)
    return left_BTI.flatten(0, 1), right_BTO.flatten(0, 1)
