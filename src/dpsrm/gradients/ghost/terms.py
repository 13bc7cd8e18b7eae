"""What one call of a layer says about one parameter's per-example gradient, at one point.

Shapes: B examples, T positions of one example, I inputs, O outputs, K a window's elements, L windows, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

_SLIDE: tuple[Any, ...] = (F.conv1d, F.conv2d, F.conv3d)
_WEIGHT: tuple[Any, ...] = (conv1d_weight, conv2d_weight, conv3d_weight)
_FEW_PLACES, MANY_PLACES, _CHANNELS = 4, 256, 16
"""Measured: from so many windows (of one channel, of all) and channels on, torch's convolutions are faster."""

_CHUNK = 2**19
"""Window elements copied at once: 2 MB of float32, which stays in the cache until it has been multiplied."""


@dataclass(frozen=True)
class Outer:
    """Σ_t g_t ⊗ a_t: the weight of a linear map applied at T positions."""

    a_BTI: Tensor
    g_BTO: Tensor

    def rows(self) -> Tensor:
        """The per-example gradients, (B, O·I)."""
        return torch.bmm(self.g_BTO.transpose(1, 2), self.a_BTI).flatten(1)


@dataclass(frozen=True)
class Order:
    """From rows with a window's places in front of its channels to rows with the channels in front; or no change."""

    window: int = 1
    channels: int = 1

    def __call__(self, row_P: Tensor) -> Tensor:
        """The row in the order of the parameter."""
        if self.channels == 1:
            return row_P
        return row_P.view(-1, self.window, self.channels).transpose(1, 2).flatten()


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

    @property
    def depthwise(self) -> bool:
        """Whether every channel is a group of its own."""
        return self.groups == self.x.shape[1] == self.g.shape[1]

    @property
    def convolved(self) -> bool:
        """Whether rows are computed faster by torch's convolutions, by the shapes."""
        if self.groups > 1:
            return self.depthwise and self.places >= _FEW_PLACES
        return self.places >= MANY_PLACES and min(self.x.shape[1], self.g.shape[1]) >= _CHANNELS

    @property
    def channels_last(self) -> bool:
        """Whether windows are copied faster, in longer runs, with each window's channels side by side."""
        if self.convolved:
            return False
        across = self.g.shape[-1] if self.stride[-1] == 1 else 1
        within = self.x.shape[1] * (self.kernel[-1] if self.dilation[-1] == 1 else 1)
        return self.groups == 1 and within > 2 * across

    def columns(self, rows: slice = slice(None)) -> Tensor:
        """The windows of some examples, (B, groups, K, L); K is the kernel's places, then channels if channels last."""
        x = self._padded(self.x[rows])
        by_example, by_channel, *by_place = x.stride()
        within = [s * d for s, d in zip(by_place, self.dilation, strict=True)]
        across = [s * d for s, d in zip(by_place, self.stride, strict=True)]
        places = self.g.shape[2:]
        if self.channels_last:
            shape, steps = (len(x), *places, *self.kernel, x.shape[1]), (by_example, *across, *within, by_channel)
            return x.as_strided(shape, steps).reshape(len(x), 1, self.places, -1).transpose(2, 3)
        shape, steps = (*x.shape[:2], *self.kernel, *places), (by_example, by_channel, *within, *across)
        return x.as_strided(shape, steps).reshape(len(x), self.groups, -1, self.places)

    def _padded(self, x: Tensor) -> Tensor:
        """The input with zeros around, in the order in memory in which the windows are copied."""
        around = [side for pair in reversed(self.padding) for side in pair]
        if self.channels_last:
            x = x.movedim(1, -1)
            x = F.pad(x, [0, 0, *around]) if any(around) else x.contiguous()
            return x.movedim(-1, 1)
        return F.pad(x, around) if any(around) else x.contiguous()

    @property
    def order(self) -> Order:
        """From a row of gradients to the order of the parameter."""
        return Order(self.window, self.x.shape[1] if self.channels_last else 1)

    def by_convolution(self) -> Tensor:
        """The per-example gradients, (B, P): every example is a group of channels of one large image."""
        x, around = self.x, [before for before, _ in self.padding]
        if any(before != after for before, after in self.padding):
            x, around = F.pad(x, [side for pair in reversed(self.padding) for side in pair]), [0] * len(around)
        image, g = x.reshape(1, -1, *x.shape[2:]), self.g.reshape(1, -1, *self.g.shape[2:])
        dims, groups = len(self.kernel) - 1, len(x) * self.groups
        if self.depthwise:
            slid = _SLIDE[dims](image, g.transpose(0, 1), None, self.dilation, around, self.stride, groups)
            for at, k in enumerate(self.kernel):
                slid = slid.narrow(2 + at, 0, k)
            found: Tensor = slid.reshape(len(x), -1)
            return found
        size = (len(x) * self.g.shape[1], x.shape[1] // self.groups, *self.kernel)
        rows: Tensor = _WEIGHT[dims](image, size, g, self.stride, around, self.dilation, groups)
        return rows.reshape(len(x), -1)

    def gradients(self, rows: slice = slice(None)) -> Tensor:
        """The output gradients of some examples, (B, groups, O, L)."""
        g = self.g[rows]
        return g.reshape(len(g), self.groups, -1, self.places)

    def rows(self) -> Tensor:
        """The per-example gradients, (B, P)."""
        (rows_BP,) = window_rows([self])
        return torch.stack([self.order(row_P) for row_P in rows_BP]) if self.channels_last else rows_BP

    def outer(self) -> Outer:
        """The same as an outer product per window; only without groups."""
        a_BLK = self.columns()[:, 0].transpose(1, 2)
        return Outer(a_BLK, self.gradients()[:, 0].transpose(1, 2))


@dataclass(frozen=True)
class Lookup:
    """The rows of an embedding that an example looked up; `g_BTO` is zero where the padding was."""

    ids_BT: Tensor
    g_BTO: Tensor
    size: int

    def rows(self) -> Tensor:
        """The per-example gradients, (B, size·O)."""
        examples, outputs = len(self.g_BTO), self.g_BTO.shape[2]
        rows = self.g_BTO.new_zeros(examples * self.size, outputs)
        base_B1 = torch.arange(examples, device=rows.device)[:, None] * self.size
        return rows.index_add_(0, (self.ids_BT + base_B1).flatten(), self.g_BTO.flatten(0, 1)).view(examples, -1)


@dataclass(frozen=True)
class Rows:
    """Any other parameter: the per-example gradients themselves, computed when they are asked for, or `known`."""

    compute: Callable[[], Tensor]
    known: bool = False

    @classmethod
    def of(cls, rows_B: Tensor) -> Rows:
        """Rows that are there already."""
        return cls(lambda: rows_B, known=True)

    def rows(self) -> Tensor:
        """The per-example gradients, (B, P)."""
        rows_B = self.compute()
        return rows_B.unsqueeze(1) if rows_B.dim() == 1 else rows_B.flatten(1)


Term = Outer | Windows | Lookup | Rows


def added(terms: Sequence[Term]) -> Tensor:
    """The rows of a shared parameter: the sum over its uses, before any norm."""
    rows_BP = terms[0].rows()
    for term in terms[1:]:
        rows_BP = rows_BP + term.rows()
    return rows_BP


def same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are views of the same numbers."""
    return x is y or (x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride())


def window_rows(points: Sequence[Windows]) -> list[Tensor]:
    """The per-example gradients of one convolution at each point, a few examples at a time."""
    first = points[0]
    if first.convolved:
        return [point.by_convolution() for point in points]
    size = first.g.shape[1] * first.window * first.x.shape[1] // first.groups
    everything = first.g.new_empty(len(first.g), len(points) * size)
    found = list(torch.split(everything, size, dim=1))
    shared = first.groups == 1 and all(same(first.x, point.x) for point in points[1:])
    each = max(1, _CHUNK // max(1, first.x.shape[1] * first.window * first.places))
    for start in range(0, len(first.g), each):
        cut = slice(start, start + each)
        if shared:
            _shared_rows(points, cut, everything[cut])
        else:
            for point, rows in zip(points, found, strict=True):
                _product(point.gradients(cut), point.columns(cut), rows[cut])
    return found


def _shared_rows(points: Sequence[Windows], cut: slice, out_BP: Tensor) -> None:
    """Points with the same input: one product with its windows."""
    g_BOL = torch.cat([point.g[cut].flatten(2) for point in points], dim=1)
    columns_BKL = points[0].columns(cut)[:, 0]
    torch.bmm(g_BOL, columns_BKL.transpose(1, 2), out=out_BP.view(*g_BOL.shape[:2], -1))


def _product(g_BGOL: Tensor, columns_BGKL: Tensor, out_BP: Tensor) -> None:
    """Σ_l g_l ⊗ column_l per example and group, (B, P), written to `out_BP`."""
    examples, groups, outputs, _ = g_BGOL.shape
    if groups > 1:
        out_BP.copy_(torch.matmul(g_BGOL, columns_BGKL.transpose(2, 3)).flatten(1))
    else:
        torch.bmm(g_BGOL[:, 0], columns_BGKL[:, 0].transpose(1, 2), out=out_BP.view(examples, outputs, -1))
