"""The weight of a convolution: its input's windows, and each example's gradient as their products.

Shapes: B examples, O outputs, K a window's elements, L windows, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from dpsrm.gradients.ghost.terms import Order, Outer, same

_SLIDE: tuple[Any, ...] = (F.conv1d, F.conv2d, F.conv3d)
_WEIGHT: tuple[Any, ...] = (conv1d_weight, conv2d_weight, conv3d_weight)
_FEW_PLACES, MANY_PLACES, _CHANNELS = 4, 256, 16
"""Measured: from so many windows (of one channel, of all) and channels on, torch's convolutions are faster."""

_CHUNK = 2**19
"""Window elements copied at once: 2 MB of float32, which stays in the cache until it has been multiplied."""


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
    def row(self) -> int:
        """How many numbers an example's gradient has."""
        return self.g.shape[1] * self.window * self.x.shape[1] // self.groups

    def some(self, rows: slice) -> Windows:
        """The same of some examples."""
        return replace(self, x=self.x[rows], g=self.g[rows])

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
        (rows_BP,), order = window_rows([self])
        return rows_BP if order == Order() else torch.stack([order(row_P) for row_P in rows_BP])

    def outer(self) -> Outer:
        """The same as an outer product per window; only without groups."""
        a_BLK = self.columns()[:, 0].transpose(1, 2)
        return Outer(a_BLK, self.gradients()[:, 0].transpose(1, 2))


def window_rows(points: Sequence[Windows]) -> tuple[list[Tensor], Order]:
    """The per-example gradients of one convolution at each point, a few examples at a time, and their order."""
    first = points[0]
    if first.convolved:
        return [point.by_convolution() for point in points], first.order
    size = first.row
    shared = first.groups == 1 and all(same(first.x, point.x) for point in points[1:])
    turned = first.channels_last and not shared
    examples = len(first.g)
    if shared:
        together = first.g.new_empty(examples, len(points) * size)
        found = list(torch.split(together, size, dim=1))
    else:  # each point's by itself: what has up to 32 MB, the C library keeps at hand (`heap_kept`)
        found = [first.g.new_empty(examples, size) for _ in points]
    each = max(1, _CHUNK // max(1, first.x.shape[1] * first.window * first.places))
    for start in range(0, examples, each):
        cut = slice(start, start + each)
        if shared:
            _shared_rows(points, cut, together[cut])
        else:
            for point, rows in zip(points, found, strict=True):
                _product(point.gradients(cut), point.columns(cut), rows[cut], turned=turned)
    return found, replace(first.order, last=first.g.shape[1]) if turned else first.order


def _shared_rows(points: Sequence[Windows], cut: slice, out_BP: Tensor) -> None:
    """Points with the same input: one product with its windows; gradients are put together as they lie in memory."""
    gradients = [point.g[cut].flatten(2) for point in points]
    if len(points) == 1:
        g_BOL = gradients[0]
    elif points[0].g.stride(1) == 1:
        g_BOL = torch.cat([g_BOL.transpose(1, 2) for g_BOL in gradients], dim=2).transpose(1, 2)
    else:
        g_BOL = torch.cat(gradients, dim=1)
    columns_BKL = points[0].columns(cut)[:, 0]
    torch.bmm(g_BOL, columns_BKL.transpose(1, 2), out=out_BP.view(*g_BOL.shape[:2], -1))


def _product(g_BGOL: Tensor, columns_BGKL: Tensor, out_BP: Tensor, *, turned: bool) -> None:
    """Σ_l g_l ⊗ column_l per example and group, (B, P), written to `out_BP`; `turned`: outputs last, no groups."""
    examples, groups, outputs, _ = g_BGOL.shape
    if groups > 1:
        out_BP.copy_(torch.matmul(g_BGOL, columns_BGKL.transpose(2, 3)).flatten(1))
    elif turned:
        torch.bmm(columns_BGKL[:, 0], g_BGOL[:, 0].transpose(1, 2), out=out_BP.view(examples, -1, outputs))
    else:
        torch.bmm(g_BGOL[:, 0], columns_BGKL[:, 0].transpose(1, 2), out=out_BP.view(examples, outputs, -1))
