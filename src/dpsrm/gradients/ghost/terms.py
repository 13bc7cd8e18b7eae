"""What one call of a layer says about one parameter's per-example gradient, at one point.

Shapes: B examples, T positions of one example, I inputs, O outputs, K window elements, L windows, P the parameter's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

import torch
import torch.nn.functional as F
from torch import Tensor

from dpsrm.gradients.ghost.mixture import Atom

_CHUNK = 2**20
"""Window elements copied at once: 4 MB of float32, which stays in the cache until it has been multiplied."""


@dataclass(frozen=True)
class Outer:
    """Σ_t g_t ⊗ a_t: the weight of a linear map applied at T positions."""

    a_BTI: Tensor
    g_BTO: Tensor

    def rows(self) -> Tensor:
        """The per-example gradients, (B, O·I)."""
        return torch.bmm(self.g_BTO.transpose(1, 2), self.a_BTI).flatten(1)


@dataclass(frozen=True)
class Windows:
    """The weight of a convolution: an outer product at each of L windows of the input, for each group of channels."""

    x: Tensor
    g: Tensor
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def places(self) -> int:
        """L, how many windows there are."""
        return math.prod(self.g.shape[2:])

    @property
    def window(self) -> int:
        """How many numbers of one channel a window holds."""
        return math.prod(self.kernel)

    def columns(self, rows: slice = slice(None)) -> Tensor:
        """The windows of some examples, (B, groups, K, L)."""
        around = [side for pair in reversed(self.padding) for side in pair]
        x = F.pad(self.x[rows], around) if any(around) else self.x[rows].contiguous()
        by_example, by_channel, *by_place = x.stride()
        within = [s * d for s, d in zip(by_place, self.dilation, strict=True)]
        across = [s * d for s, d in zip(by_place, self.stride, strict=True)]
        shape = (*x.shape[:2], *self.kernel, *self.g.shape[2:])
        view = x.as_strided(shape, (by_example, by_channel, *within, *across))
        return view.reshape(len(x), self.groups, -1, self.places)

    def gradients(self, rows: slice = slice(None)) -> Tensor:
        """The output gradients of some examples, (B, groups, O, L)."""
        return self.g[rows].flatten(2).unflatten(1, (self.groups, -1))

    def rows(self) -> Tensor:
        """The per-example gradients, (B, P)."""
        return window_rows([self], [(0, 0)])[0, 0]

    def rows_of(self, cut: slice) -> Tensor:
        """The per-example gradients of some examples."""
        g, columns = self.gradients(cut), self.columns(cut)
        return _product(g, columns, g.new_empty(len(g), g.shape[1] * g.shape[2] * columns.shape[2]))

    def outer(self) -> Outer:
        """The same as an outer product per window; only without groups."""
        return Outer(self.columns()[:, 0].transpose(1, 2), self.gradients()[:, 0].transpose(1, 2))


@dataclass(frozen=True)
class Lookup:
    """The rows of an embedding that an example looked up; `g_BTO` is zero where the padding was."""

    ids_BT: Tensor
    g_BTO: Tensor
    size: int

    def rows(self) -> Tensor:
        """The per-example gradients, (B, size·O)."""
        B, _, O = self.g_BTO.shape
        rows = self.g_BTO.new_zeros(B * self.size, O)
        base_B1 = torch.arange(B, device=rows.device)[:, None] * self.size
        return rows.index_add_(0, (self.ids_BT + base_B1).flatten(), self.g_BTO.flatten(0, 1)).view(B, -1)


@dataclass(frozen=True)
class Rows:
    """Any other parameter: the per-example gradients themselves, computed when they are asked for."""

    compute: Callable[[], Tensor]

    def rows(self) -> Tensor:
        """The per-example gradients, (B, P)."""
        return self.compute().flatten(1)


Term = Union[Outer, Windows, Lookup, Rows]


def same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are views of the same numbers."""
    return x is y or (x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride())


def window_rows(points: Sequence[Windows], atoms: Sequence[Atom]) -> dict[Atom, Tensor]:
    """The per-example gradients of one convolution, for each atom, a few examples at a time.

    Points that see the same input share its windows, and their differences are those of the output gradients.
    """
    first = points[0]
    shared = all(same(first.x, point.x) for point in points[1:])
    size = first.g.shape[1] * first.window * first.x.shape[1] // first.groups
    found = {atom: first.g.new_empty(len(first.g), size) for atom in atoms}
    each = max(1, _CHUNK // max(1, first.x.shape[1] * first.window * first.places))
    for start in range(0, len(first.g), each):
        cut = slice(start, start + each)
        if shared:
            columns = first.columns(cut)
            for (j, k), rows in found.items():
                g = points[j].gradients(cut)
                _product(g if j == k else g - points[k].gradients(cut), columns, rows[cut])
        else:
            at = {j: point.rows_of(cut) for j, point in enumerate(points) if any(j in atom for atom in atoms)}
            for (j, k), rows in found.items():
                if j == k:
                    rows[cut] = at[j]
                else:
                    torch.sub(at[j], at[k], out=rows[cut])
    return found


def _product(g_BGOL: Tensor, columns_BGKL: Tensor, out_BP: Tensor) -> Tensor:
    """Σ_l g_l ⊗ column_l per example and group, written to `out_BP`."""
    g, columns = g_BGOL.flatten(0, 1), columns_BGKL.flatten(0, 1)
    out = out_BP.view(len(g), g.shape[1], columns.shape[1])
    torch.bmm(g, columns.transpose(1, 2), out=out)
    return out_BP
