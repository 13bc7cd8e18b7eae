"""Written-out rows of one parameter at every point: norms and weighted sums of their combinations, in float64.

Shapes: B examples, P the parameter's size. An atom is a point's row, or the difference of two points' rows, taken in
float64. On a processor, rows at one or two points go through compiled passes that read each of them once; on other
devices, and for more points, torch computes the same from copies in float64, a few examples at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dpsrm.gradients.ghost.mixture import Atom, Combination
from dpsrm.gradients.ghost.row_kernels import (
    Array,
    square_of,
    squares,
    squares_alone,
    weighted_sum,
    weighted_sum_alone,
)

_CUT = 2**18
"""Numbers converted to float64 at once: 2 MB, which stay in the cache until they have been used."""
_ATOMS: tuple[Atom, ...] = ((0, 0), (0, 1), (1, 1))
"""What the compiled passes know, in the order of their tables."""
_ZERO = torch.zeros((), dtype=torch.float64)


class WrittenRows:
    """Rows (B, P) at each point; nothing depends on an example but what is returned for it."""

    def __init__(self, points: Sequence[Tensor]) -> None:
        """Keep the rows, as they are if each lies in one piece of memory; short numbers in float32."""
        long = [rows.detach().to(torch.promote_types(rows.dtype, torch.float32)) for rows in points]
        self.points = tuple(rows if rows.stride(1) == 1 else rows.contiguous() for rows in long)
        self.examples, self.size = self.points[0].shape
        on_host = all(rows.device.type == "cpu" for rows in self.points)
        self._compiled = on_host and len(self.points) <= 2 and self.points[0].numel() > 0
        self._squares: dict[Atom, Tensor] = {}

    def atom(self, atom: Atom, cut: slice = slice(None)) -> Tensor:
        """An atom of some examples, in float64."""
        j, k = atom
        rows = self.points[j][cut].double()
        return rows if j == k else rows - self.points[k][cut].double()

    def square(self, atom: Atom) -> Tensor:
        """‖atom‖² of every example; computed once, in the compiled passes for all atoms together."""
        if not self._squares and self._compiled:
            out_3B = np.empty((3, self.examples))
            if len(self.points) == 1:
                squares_alone(*_array(self.points[0]), self.size, out_3B[0])
            else:
                squares(*self._arrays(), self.size, out_3B)
            self._squares = dict(zip(_ATOMS[: 2 * len(self.points) - 1], torch.from_numpy(out_3B), strict=False))
        elif atom not in self._squares:
            found = [self.atom(atom, cut).square().sum(1) for cut in self._cuts(slice(0, self.examples))]
            self._squares[atom] = torch.cat(found)
        return self._squares[atom]

    def square_of(self, part: Combination) -> Tensor:
        """‖Σ c·atom‖² of every example."""
        if len(part) == 1:
            ((atom, c),) = part.items()
            return c * c * self.square(atom)
        if not self._compiled:
            return torch.cat([self.mixed(part, cut).square().sum(1) for cut in self._cuts(slice(0, self.examples))])
        out_B = np.empty(self.examples)
        square_of(*self._arrays(), self.size, np.array([part.get(atom, 0.0) for atom in _ATOMS]), out_B)
        return torch.from_numpy(out_B)

    def mixed(self, part: Combination, cut: slice = slice(None)) -> Tensor:
        """Σ c·atom of some examples, in float64."""
        return sum((c * self.atom(atom, cut) for atom, c in part.items()), _ZERO)

    def weighted(self, weights: Mapping[Atom, Tensor], cut: slice) -> Tensor:
        """Σ_i Σ weight_i·atom_i over some examples, (P,) in float64, each example's atoms together."""
        if not self._compiled:
            terms = ((w_B[part] @ self.atom(a, part)) for part in self._cuts(cut) for a, w_B in weights.items())
            return sum(terms, _ZERO)
        out_P = np.empty(self.size)
        if len(self.points) == 1:
            weighted_sum_alone(*_array(self.points[0], cut.start), weights[0, 0].numpy()[cut], out_P)
            return torch.from_numpy(out_P)
        weights_3B = np.zeros((3, self.examples))
        for at, atom in enumerate(_ATOMS):
            if atom in weights:
                weights_3B[at] = weights[atom].numpy()
        weighted_sum(*self._arrays(cut.start), np.ascontiguousarray(weights_3B[:, cut]), out_P)
        return torch.from_numpy(out_P)

    def silence(self, finite_B: Tensor) -> None:
        """Put zeros in the place of some examples' rows."""
        self.points = tuple(torch.where(finite_B[:, None], rows, 0) for rows in self.points)
        self._squares = {}

    def _arrays(self, start: int = 0) -> tuple[Array, int, Array, int]:
        """The rows at both points (at the only one, twice) from example `start` on, each with the step between rows."""
        return *_array(self.points[0], start), *_array(self.points[-1], start)

    def _cuts(self, whole: slice) -> list[slice]:
        """Some of the examples at a time; none at all are one cut."""
        size = max(1, _CUT // max(1, self.size))
        stop = min(whole.stop, self.examples)
        return [slice(at, min(at + size, stop)) for at in range(whole.start, max(stop, whole.start + 1), size)]


def _array(rows_BP: Tensor, start: int = 0) -> tuple[Array, int]:
    """The memory of the rows from `start` on, with what lies between them, as one array; and the step between rows."""
    rest_BP, step = rows_BP[start:], rows_BP.stride(0)
    span = (len(rest_BP) - 1) * step + rest_BP.shape[1]
    found: Array = rest_BP.as_strided((span,), (1,)).numpy()
    return found, step
