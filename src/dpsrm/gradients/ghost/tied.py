"""An embedding whose weight is also the output layer's: no row of V words is ever written out.

Shapes: B examples, S words looked up, T positions of the output layer, D inputs, V words in all.
An example's gradient is W + O: W has the rows it looked up, O = Σ_t r_t ⊗ l_t the output layer's. Then ‖W + O‖² is
‖W‖² + ‖O‖² + 2·Σ_s W_s·O_s, and the last term needs only the looked-up columns of r: O_s = Σ_t r_t[word s]·l_t.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpsrm.gradients.ghost.blocks import LookupBlock, Measure
from dpsrm.gradients.ghost.mixture import Atom, Combination
from dpsrm.gradients.ghost.products import OuterBlock
from dpsrm.gradients.ghost.terms import Lookup, Outer


class TiedBlock:
    """Looked-up rows and outer products of one weight; the term between them is computed in float64."""

    def __init__(
        self, lookups: Sequence[Lookup], outers: Sequence[Outer], atoms: Sequence[Atom], *, steady: bool = True
    ) -> None:
        """Keep both."""
        self.words = LookupBlock(lookups)
        self.out = OuterBlock(outers, atoms, steady=steady)
        self.shape = self.out.shape
        self.most_spread = self.out.most_spread

    def measure(self, part: Combination) -> Measure:
        """The norm of each example's combination."""
        words, out = self.words.measure(part), self.out.measure(part)
        spread_B = (words.spread_B.sqrt() + out.spread_B.sqrt()).square() * (1 + 2.0**-20)
        square_B = (words.square_B + out.square_B + 2 * self._between(part)).clamp_min(0)
        return Measure(square_B, words.doubt_B + out.doubt_B + 2.0**-36 * spread_B, spread_B)

    def precise(self, part: Combination, rows: Tensor) -> Tensor:
        """The squared norms of the examples `rows`, from float64 products."""
        apart_B = self.words.precise(part, rows) + self.out.precise(part, rows)
        return (apart_B + 2 * self._between(part)[rows]).clamp_min(0)

    def _between(self, part: Combination) -> Tensor:
        """Σ_s W_s·O_s for each example; of words that it looked up at later points only, each example by itself."""
        (ids_BS, *others), (rows_BSD, *later) = self.words.looked_up, self.words.placed(part)
        total_B = self._products(part, ids_BS, rows_BSD, slice(None))
        for ids_BS, rows_BSD in zip(others, later, strict=True):
            for i in rows_BSD.flatten(1).any(1).nonzero().flatten().tolist():
                total_B[i : i + 1] += self._products(part, ids_BS, rows_BSD, slice(i, i + 1))
        return total_B

    def _products(self, part: Combination, ids_BS: Tensor, rows_BSD: Tensor, cut: slice) -> Tensor:
        """The same for some examples, of words in some places."""
        total_B = rows_BSD.new_zeros(len(rows_BSD[cut]))
        for left, right in self.out.factors(part).items():
            mixed_BTS = sum(
                (c * _looked_up(self.out.right[symbol][cut], ids_BS[cut]) for symbol, c in right.items()),
                torch.zeros(()),
            )
            inner_BTS = torch.bmm(self.out.left[left][cut].double(), rows_BSD[cut].transpose(1, 2))
            total_B += (inner_BTS * mixed_BTS).sum((1, 2))
        return total_B

    def add(self, weights: dict[Atom, Tensor], total_P: Tensor, *, loose_B: Tensor) -> int:
        """Add the weighted rows and the weighted products."""
        additions = self.out.add(weights, total_P, loose_B=loose_B)
        return additions + self.words.add(weights, total_P, loose_B=loose_B)

    def silence(self, finite_B: Tensor) -> None:
        """Put zeros in the place of examples that are not finite."""
        self.words.silence(finite_B)
        self.out.silence(finite_B)

    def rest(self) -> None:
        """Give back what can be computed again."""
        self.out.rest()


def _looked_up(right_BTV: Tensor, ids_BS: Tensor) -> Tensor:
    """The columns of the words that each example looked up, (B, T, S), in float64."""
    ids_BTS = ids_BS.long().unsqueeze(1).expand(-1, right_BTV.shape[1], -1)
    return right_BTV.gather(2, ids_BTS).double()
