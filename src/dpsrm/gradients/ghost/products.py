"""Outer products that are never written out: norms by Gram matrices, sums by one matrix product.

Shapes: B examples, T positions, I inputs, O outputs, D either of them.
At point j an example's gradient is Σ_t g_jt ⊗ a_jt. A difference is

    g_j ⊗ a_j − g_k ⊗ a_k = (g_j − g_k) ⊗ a_j + g_k ⊗ (a_j − a_k),

two products with a small factor instead of a small difference of large products; norm and sum both use this form.
With left factors l_m and right factors r_m the squared norm is Σ_mn Σ_ts (l_mt·l_ns)(r_mt·r_ns), in which the right
factors are combinations of few tensors, so that few Gram matrices serve all parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpsrm.gradients.ghost.blocks import Measure, dots
from dpsrm.gradients.ghost.mixture import Atom, Combination
from dpsrm.gradients.ghost.terms import Order, Outer, same

Rights = dict[Atom, Combination]
"""The right factor of each left factor, as a combination of (j, j): g_j and (j, k): g_j − g_k."""


class OuterBlock:
    """A linear map's weight as outer products; left (j, j) is a_j, left (j, k) is a_j − a_k, right likewise with g."""

    def __init__(self, points: Sequence[Outer], atoms: Sequence[Atom], order: Order | None = None) -> None:
        """Take the differences the atoms need; `order` brings a row to the order of the parameter."""
        self.order = order or Order()
        self.left: dict[Atom, Tensor] = {}
        self.right: dict[Atom, Tensor] = {}
        self._grams: dict[tuple[str, Atom, Atom], Tensor] = {}
        for j, k in atoms:
            self.left[j, j], self.right[j, j] = points[j].a_BTI, points[j].g_BTO
            if j == k:
                continue
            self.right[k, k], self.right[j, k] = points[k].g_BTO, points[j].g_BTO - points[k].g_BTO
            if not same(points[j].a_BTI, points[k].a_BTI):
                self.left[j, k] = points[j].a_BTI - points[k].a_BTI

    def measure(self, part: Combination) -> Measure:
        """The squared norm of each example's combination."""
        square_B = spread_B = torch.zeros((), dtype=torch.float64, device=next(iter(self.left.values())).device)
        rights = self._rights(part, thrifty=True)
        for at, m in enumerate(rights):
            for n in list(rights)[: at + 1]:
                left_BTT = self._gram("left", m, n)
                both = left_BTT * self._mixed(rights[m], rights[n])
                square_B = square_B + (1 if m == n else 2) * both.flatten(1).sum(1).double()
            size_BT = sum(c * c * _diagonal(self._gram("right", s, s)) for s, c in rights[m].items())
            spread_B = spread_B + (_diagonal(self._gram("left", m, m)) * size_BT).sum(1).double()
        return Measure(square_B.clamp_min(0), spread_B)

    def precise(self, part: Combination, rows: Tensor) -> Tensor:
        """The squared norms of the examples `rows`, from float64 products."""
        cut = OuterBlock((), ())
        cut.left = {atom: left[rows].double() for atom, left in self.left.items()}
        cut.right = {atom: right[rows].double() for atom, right in self.right.items()}
        return cut.measure(part).square_B

    def add(self, weights: dict[Atom, Tensor], total_P: Tensor) -> None:
        """Add Σ_i Σ_t right_it ⊗ left_it, one matrix product per left factor."""
        lefts: dict[Atom, Tensor] = {}
        for atom, weight_B in weights.items():
            for left, right in self._rights({atom: 1.0}, thrifty=False).items():
                ((symbol, _),) = right.items()
                scaled = self.right[symbol] * weight_B[:, None, None]
                lefts[left] = lefts[left].add_(scaled) if left in lefts else scaled
        total_OI = None
        for left, right_BTO in lefts.items():
            left_NI, right_NO = _flat(self.left[left], right_BTO)
            total_OI = right_NO.T @ left_NI if total_OI is None else total_OI.addmm_(right_NO.T, left_NI)
        if total_OI is not None:
            total_P += self.order(total_OI.flatten())

    def silence(self, finite_B: Tensor) -> None:
        """Put zeros in the place of examples that are not finite."""
        keep = finite_B[:, None, None]
        self.left = {atom: torch.where(keep, left, 0) for atom, left in self.left.items()}
        self.right = {atom: torch.where(keep, right, 0) for atom, right in self.right.items()}

    def _rights(self, part: Combination, *, thrifty: bool) -> Rights:
        """The right factors of a part; thrifty: g_k is written g_j − (g_j − g_k), which saves Gram matrices."""
        found: Rights = {}
        for (j, k), c in part.items():
            _accumulate(found.setdefault((j, j), {}), {(j, k): c})
            if j != k and (j, k) in self.left:
                _accumulate(found.setdefault((j, k), {}), {(j, j): c, (j, k): -c} if thrifty else {(k, k): c})
        return found

    def _gram(self, side: str, m: Atom, n: Atom) -> Tensor:
        """All inner products between positions, (B, T, T), computed once."""
        if (side, m, n) not in self._grams:
            factors = self.left if side == "left" else self.right
            if (side, n, m) in self._grams:
                return self._grams[side, n, m].transpose(1, 2)
            self._grams[side, m, n] = _inner(factors[m], factors[n])
        return self._grams[side, m, n]

    def _mixed(self, m: Combination, n: Combination) -> Tensor:
        """The inner products of two combinations of right factors."""
        (first, *others) = [(c * d, s, z) for s, c in m.items() for z, d in n.items()]
        total_BTT = self._gram("right", *first[1:]) if first[0] == 1 else first[0] * self._gram("right", *first[1:])
        for c, s, z in others:
            total_BTT = total_BTT.add(self._gram("right", s, z), alpha=c)
        return total_BTT


def _accumulate(into: Combination, more: Combination) -> None:
    """Add a combination to another."""
    for atom, c in more.items():
        into[atom] = into.get(atom, 0.0) + c


def _inner(x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
    """All inner products between positions; in float64 where there is only one."""
    if x_BTD.shape[1] == 1:
        return dots(x_BTD[:, 0], y_BTD[:, 0])[:, None, None]
    return torch.bmm(x_BTD, y_BTD.transpose(1, 2))


def _diagonal(gram_BTT: Tensor) -> Tensor:
    """Every position's product with itself."""
    return gram_BTT.diagonal(dim1=1, dim2=2)


def _flat(left_BTI: Tensor, right_BTO: Tensor) -> tuple[Tensor, Tensor]:
    """Examples and positions as one dimension, in the order in which the left factor lies in memory."""
    if left_BTI.shape[1] > 1 and left_BTI.stride(0) < left_BTI.stride(1):
        left_BTI, right_BTO = left_BTI.transpose(0, 1), right_BTO.transpose(0, 1)
    return left_BTI.flatten(0, 1), right_BTO.flatten(0, 1)
