"""Outer products that are never written out: norms by Gram matrices, sums by one matrix product.

Shapes: B examples, T positions, I inputs, O outputs, D either of them.
At point j an example's gradient is Σ_t g_jt ⊗ a_jt. A difference is

    g_j ⊗ a_j − g_k ⊗ a_k = (g_j − g_k) ⊗ a_j + g_k ⊗ (a_j − a_k),

two products with a small factor instead of a small difference of large products; norm and sum both use this form.
Gram matrices: factors.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpsrm.gradients.ghost.blocks import Measure
from dpsrm.gradients.ghost.factors import Factors, Rights, Side, in_float64, terms_of
from dpsrm.gradients.ghost.mixture import Atom, Combination
from dpsrm.gradients.ghost.rounding import at_once, chunk, gamma, most_spread, tiny
from dpsrm.gradients.ghost.terms import Order, Outer
from dpsrm.gradients.torch_state import add_to, empty

_ZERO = torch.zeros((), dtype=torch.float64)
_TILE = 2**21
"""Numbers of a float64 product held at once: 16 MB."""

_SUMS = 2**22
"""Numbers of chunks' sums held at once: 16 MB of float32."""


class OuterBlock:
    """A linear map's weight as outer products; left (j, j) is a_j, left (j, k) is a_j − a_k, right likewise with g."""

    def __init__(
        self, points: Sequence[Outer], atoms: Sequence[Atom], order: Order | None = None, *, steady: bool = True
    ) -> None:
        """Take the differences the atoms need; `order` brings a row to the order of the parameter.

        Unless places are `steady`, every example is loose: float32 chunks would all differ between neighbours.
        """
        self.steady = steady
        self.order = order or Order()
        self._atoms = atoms
        self._made: Factors | None = None
        a_BTI, g_BTO = points[0].a_BTI, points[0].g_BTO
        self.shape = len(a_BTI), a_BTI.shape[2] * g_BTO.shape[2]
        self.positions = len(points) * a_BTI.shape[1]  # of all left factors; by shapes alone, so that chunks are too
        self.chunk = min(chunk(self.positions, a_BTI.shape[2] * g_BTO.shape[2], a_BTI.dtype), len(a_BTI))
        self.most_spread = most_spread(self.positions, self.chunk, a_BTI.dtype) if self.chunk else math.inf
        self.most_spread = self.most_spread if steady or self.chunk == 0 else -1.0
        self._points = list(points)

    @property
    def left(self) -> Side:
        """The left factor of each atom."""
        return self._factors().left

    @property
    def right(self) -> Side:
        """The right factor of each atom, and of each point that an atom subtracts."""
        return self._factors().right

    def _factors(self) -> Factors:
        """Both sides' factors, kept until `rest`."""
        if self._made is None:
            self._made = Factors.of(self._points if self.chunk else in_float64(self._points), self._atoms)
        return self._made

    def rest(self) -> None:
        """Forget factors and Gram matrices until they are needed again: all blocks' at once would not stay small."""
        self._made = None

    def measure(self, part: Combination) -> Measure:
        """The norm of each example's combination; `doubt_B` as in docs/decisions/rounding.md."""
        factors = self._factors()
        rights = factors.rights(part, thrifty=True)
        any_left, any_right = next(iter(factors.left.values())), next(iter(factors.right.values()))
        dtype, products = any_left.dtype, any_left.shape[2] + any_right.shape[2]
        lefts = {m: factors.norm("left", m) for m in rights}
        sizes = {m: sum((abs(c) * factors.norm("right", s) for s, c in r.items()), _ZERO) for m, r in rights.items()}
        spread_B = sum(((lefts[m] * sizes[m]).sum(1) for m in rights), _ZERO).square()
        left_B, right_B = (sum((x.sum(1) for x in each.values()), _ZERO) for each in (lefts, sizes))
        share = max((sum(map(abs, r.values())) for r in rights.values()), default=0.0)
        lost_B = (
            tiny(dtype) * products * (right_B**2 + (1 + share**2) * left_B**2 + (len(rights) * any_left.shape[1]) ** 2)
        )
        share = gamma(terms_of(any_left) + terms_of(any_right) + 16, dtype)
        return Measure(factors.square(rights).clamp_min(0), share * spread_B + 2 * lost_B, spread_B)

    def precise(self, part: Combination, rows: Tensor) -> Tensor:
        """The squared norms of the examples `rows`, from float64 products of exactly what `add` adds."""
        factors = self._factors().wide(rows)
        self.rest()
        return factors.square(factors.rights(part, thrifty=False)).clamp_min(0)

    def _cut(self, rows: Tensor) -> OuterBlock:
        """Some examples, in float64."""
        cut = OuterBlock.__new__(OuterBlock)
        cut.order, cut.chunk, cut.most_spread = self.order, 0, math.inf
        cut.positions, cut.steady = self.positions, self.steady
        cut._made = self._factors().wide(rows)
        return cut

    def add(self, weights: dict[Atom, Tensor], total_P: Tensor, *, loose_B: Tensor) -> int:
        """Add Σ_i Σ_t right_it ⊗ left_it, one matrix product per left factor.

        A few examples at a time are added in float32, the chunks in float64; loose examples in float64 throughout.
        Which examples share a chunk depends on their places alone. Where `chunk` is 0 the factors are float64 already.
        """
        if self.chunk == 0:
            return self._add_together(weights, total_P)
        additions = 0
        if not bool(loose_B.all()):
            kept = {atom: torch.where(loose_B, 0, weight_B) for atom, weight_B in weights.items()}
            additions += self._add_chunks(kept, total_P)
        if bool(loose_B.any()):
            rows = loose_B.nonzero().flatten()
            few = {atom: weight_B[rows] for atom, weight_B in weights.items()}
            additions += self._cut(rows)._add_together(few, total_P)
        return additions

    def _scaled(self, weights: dict[Atom, Tensor]) -> dict[Atom, Tensor]:
        """The right factor of each left factor, times the weights."""
        lefts: dict[Atom, Tensor] = {}
        for atom, weight_B in weights.items():
            for left, right in self.factors({atom: 1.0}).items():
                ((symbol, _),) = right.items()
                scaled = self.right[symbol] * weight_B.to(self.right[symbol].dtype)[:, None, None]
                lefts[left] = lefts[left].add_(scaled) if left in lefts else scaled
        return lefts

    def _add_together(self, weights: dict[Atom, Tensor], total_P: Tensor) -> int:
        """Add float64 factors, as many examples in one product as the margin allows."""
        scaled = self._scaled(weights)
        size = at_once(self.positions, steady=self.steady)
        starts = range(0, len(next(iter(scaled.values()))), size)
        for start in starts:
            cut = slice(start, start + size)
            self._add_products([_flat(self.left[left][cut], x_BTO[cut]) for left, x_BTO in scaled.items()], total_P)
        return len(starts)

    def _add_products(self, factors: Sequence[tuple[Tensor, Tensor]], total_P: Tensor) -> None:
        """Add the sum of all products, some outputs at a time: a large layer's would need memory of their own."""
        inputs, outputs = factors[0][0].shape[1], factors[0][1].shape[1]
        each = max(1, min(outputs, _TILE // max(1, inputs)))
        memory = [empty(each * inputs, total_P).view(each, inputs) for _ in factors[:2]]
        for at in range(0, outputs, each):
            tiles = [tile_OI[: outputs - at] for tile_OI in memory]
            for k, (left_NI, right_NO) in enumerate(factors):
                torch.mm(right_NO[:, at : at + each].T, left_NI, out=tiles[min(k, 1)])
                if k:
                    tiles[0] += tiles[1]
            total_P[at * inputs : (at + each) * inputs] += self.order(tiles[0].flatten())

    def _add_chunks(self, weights: dict[Atom, Tensor], total_P: Tensor) -> int:
        """Add `chunk` examples at a time; a chunk's sum over all left factors is added in float64."""
        scaled, additions = self._scaled(weights), 0
        for cut, chunks in self._cuts(len(next(iter(scaled.values())))):
            sums_COI = None
            for left, right_BTO in scaled.items():
                left_CNI, right_CNO = (x[cut].reshape(chunks, -1, x.shape[2]) for x in (self.left[left], right_BTO))
                if right_CNO.numel() == 0:
                    continue
                right_CON = right_CNO.transpose(1, 2)
                sums_COI = (
                    torch.bmm(right_CON, left_CNI) if sums_COI is None else sums_COI.baddbmm_(right_CON, left_CNI)
                )
            for sum_OI in () if sums_COI is None else sums_COI:
                add_to(total_P, self.order(sum_OI.flatten()))
                additions += 1
        return additions

    def _cuts(self, examples: int) -> list[tuple[slice, int]]:
        """Examples that are added together, and how many chunks they make; the sums of all chunks are held at once."""
        size = next(iter(self.left.values())).shape[2] * next(iter(self.right.values())).shape[2]
        each = self.chunk * max(1, _SUMS // size)
        whole = examples // self.chunk * self.chunk
        cuts = [slice(start, min(start + each, whole)) for start in range(0, whole, each)]
        return [*((cut, (cut.stop - cut.start) // self.chunk) for cut in cuts), (slice(whole, None), 1)]

    def silence(self, finite_B: Tensor) -> None:
        """Put zeros in the place of examples that are not finite."""
        keep = finite_B[:, None, None]
        self._points = [Outer(*(torch.where(keep, x, 0) for x in (p.a_BTI, p.g_BTO))) for p in self._points]
        self.rest()

    def factors(self, part: Combination) -> Rights:
        """The right factors of a part, as `add` adds them."""
        return self._factors().rights(part, thrifty=False)


def _flat(left_BTI: Tensor, right_BTO: Tensor) -> tuple[Tensor, Tensor]:
    """Examples and positions as one dimension, in the order in which the left factor lies in memory."""
    if left_BTI.shape[1] > 1 and left_BTI.stride(0) < left_BTI.stride(1):
        left_BTI, right_BTO = left_BTI.transpose(0, 1), right_BTO.transpose(0, 1)
    return left_BTI.flatten(0, 1), right_BTO.flatten(0, 1)
