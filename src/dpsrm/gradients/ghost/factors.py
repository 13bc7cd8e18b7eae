"""The two sides of outer products at all points, and the inner products between their positions.

Shapes: B examples, T positions, O outputs, D inputs or outputs.
With left factors l_m and right factors r_m a combination's squared norm is Σ_mn Σ_ts (l_mt·l_ns)(r_mt·r_ns), in which
the right factors are combinations of few tensors, so that few Gram matrices serve all parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpsrm.gradients.ghost.mixture import Atom, Combination
from dpsrm.gradients.ghost.rounding import WIDE, gamma, tiny
from dpsrm.gradients.ghost.terms import Outer, same

_ZERO = torch.zeros((), dtype=torch.float64)

Side = dict[Atom, Tensor]
Rights = dict[Atom, Combination]
"""The right factor of each left factor, as a combination of (j, j): g_j and (j, k): g_j − g_k."""


class Factors:
    """Left (j, j) is a_j, left (j, k) is a_j − a_k, right likewise with g; Gram matrices are computed once."""

    def __init__(self, left: Side, right: Side) -> None:
        """Hold both sides."""
        self.left, self.right = left, right
        self._grams: dict[tuple[str, Atom, Atom], Tensor] = {}
        self._norms: dict[tuple[str, Atom], Tensor] = {}

    @classmethod
    def of(cls, points: Sequence[Outer], atoms: Sequence[Atom]) -> Factors:
        """The left and right factors that the atoms need."""
        left: Side = {}
        right: Side = {}
        for j, k in atoms:
            left[j, j], right[j, j] = points[j].a_BTI, points[j].g_BTO
            if j == k:
                continue
            right[k, k], right[j, k] = points[k].g_BTO, points[j].g_BTO - points[k].g_BTO
            if not same(points[j].a_BTI, points[k].a_BTI):
                left[j, k] = points[j].a_BTI - points[k].a_BTI
        return cls(left, right)

    def wide(self, rows: Tensor) -> Factors:
        """Some examples, in float64."""
        return Factors(*({atom: x[rows].double() for atom, x in side.items()} for side in (self.left, self.right)))

    def rights(self, part: Combination, *, thrifty: bool) -> Rights:
        """The right factors of a part; thrifty: g_k is written g_j − (g_j − g_k), which saves Gram matrices."""
        found: Rights = {}
        for (j, k), c in part.items():
            _accumulate(found.setdefault((j, j), {}), {(j, k): c})
            if j != k and (j, k) in self.left:
                _accumulate(found.setdefault((j, k), {}), {(j, j): c, (j, k): -c} if thrifty else {(k, k): c})
        return found

    def square(self, rights: Rights) -> Tensor:
        """Σ_mn Σ_ts (l_mt·l_ns)(r_mt·r_ns), summed in float64."""
        square_B = _ZERO
        for at, m in enumerate(rights):
            for n in list(rights)[: at + 1]:
                both_BTT = self.gram("left", m, n) * self._mixed(rights[m], rights[n])
                square_B = square_B + (1 if m == n else 2) * both_BTT.flatten(1).sum(1, dtype=torch.float64)
        return square_B

    def gram(self, side: str, m: Atom, n: Atom) -> Tensor:
        """All inner products between positions, (B, T, T), computed once."""
        if (side, m, n) not in self._grams:
            factors = self.left if side == "left" else self.right
            if (side, n, m) in self._grams:
                return self._grams[side, n, m].transpose(1, 2)
            self._grams[side, m, n] = _inner(factors[m], factors[n])
        return self._grams[side, m, n]

    def norm(self, side: str, m: Atom) -> Tensor:
        """An upper bound on the norm of the factor at each position, (B, T), in float64."""
        if (side, m) not in self._norms:
            factor = (self.left if side == "left" else self.right)[m]
            square_BT = self.gram(side, m, m).diagonal(dim1=1, dim2=2).double()
            share, lost = gamma(terms_of(factor), factor.dtype), factor.shape[2] * tiny(factor.dtype)
            self._norms[side, m] = ((square_BT + lost) * (1 + 2 * share)).sqrt()
        return self._norms[side, m]

    def _mixed(self, m: Combination, n: Combination) -> Tensor:
        """The inner products of two combinations of right factors."""
        (first, *others) = [(c * d, s, z) for s, c in m.items() for z, d in n.items()]
        total_BTT = self.gram("right", *first[1:]) if first[0] == 1 else first[0] * self.gram("right", *first[1:])
        for c, s, z in others:
            total_BTT = total_BTT.add(self.gram("right", s, z), alpha=c)
        return total_BTT


def _inner(x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
    """All inner products between positions; long ones in pieces of `WIDE` numbers, which are added in float64."""
    if x_BTD.shape[1] == 1:
        return (x_BTD * y_BTD).sum(2, keepdim=True)
    pieces = zip(torch.split(x_BTD, WIDE, 2), torch.split(y_BTD, WIDE, 2), strict=True)
    first_BTT, *others = (torch.bmm(x, y.transpose(1, 2)) for x, y in pieces)
    total_BTT = first_BTT.double() if others else first_BTT
    for other_BTT in others:
        total_BTT += other_BTT
    return total_BTT


def terms_of(factor: Tensor) -> int:
    """How many products are added in the factor's own type in one inner product of `_inner`."""
    return factor.shape[2] if factor.shape[1] == 1 else min(factor.shape[2], WIDE) + 1


def in_float64(points: Sequence[Outer]) -> list[Outer]:
    """The factors in float64; an input that is the same at all points stays one tensor."""
    first = points[0].a_BTI.double()
    lefts = (first if same(point.a_BTI, points[0].a_BTI) else point.a_BTI.double() for point in points)
    return [Outer(left, point.g_BTO.double()) for left, point in zip(lefts, points, strict=True)]


def _accumulate(into: Combination, more: Combination) -> None:
    """Add a combination to another."""
    for atom, c in more.items():
        into[atom] = into.get(atom, 0.0) + c
