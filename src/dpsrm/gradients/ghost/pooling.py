"""Max pooling, several times faster on a processor than torch's own, and equal in every number.

torch's kernel for channels in the last dimension is vectorised, the one for channels first is not; going back both
are fast. So the way there runs with the channels last, and what comes out is in the order in memory of what came in.
Of images with the channels last already, windows side by side are compared a row at a time (`pool_kernels.py`), in a
seventh of torch's time; others are left to torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dpsrm.gradients.ghost.pool_kernels import Array, largest, to_largest
from dpsrm.gradients.ghost.tap import show

_FORWARD = torch.ops.aten.max_pool2d_with_indices
_BACKWARD = torch.ops.aten.max_pool2d_with_indices_backward


class _Pool(torch.autograd.Function):
    """`F.max_pool2d` of a (B, C, H, W) tensor, its channels first or last in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *settings: Any) -> Tensor:
        """The largest element of every window."""
        ctx.order, ctx.settings = _order(x), settings
        largest, places = _FORWARD(x.contiguous(memory_format=torch.channels_last), *settings)
        ctx.save_for_backward(x, places.contiguous(memory_format=ctx.order))
        return cast(Tensor, largest.contiguous(memory_format=ctx.order))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Each window's gradient goes to its largest element."""
        x, places = ctx.saved_tensors
        found = _BACKWARD(gradients[0].contiguous(memory_format=ctx.order), x, *ctx.settings, places)
        return found, *(None for _ in ctx.settings)


class _PoolRows(torch.autograd.Function):
    """`F.max_pool2d` of a (B, C, H, W) tensor with its channels last, for windows side by side."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: list[int], stride: list[int], *others: Any) -> Tensor:
        """The largest element of every window."""
        ctx.others = others
        images, channels, height, width = x.shape
        ctx.windows = tuple(kernel), stride[0], channels
        rows, across = (height - kernel[0]) // stride[0] + 1, width - kernel[1] + 1
        found = torch.empty(images, rows, across, channels, dtype=x.dtype, device=x.device).movedim(-1, 1)
        arguments = _rows(x), *ctx.windows, _rows(found)
        largest(*arguments)
        ctx.save_for_backward(x, found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Each window's gradient goes to its largest element."""
        x, found = ctx.saved_tensors
        back = torch.empty_like(x, memory_format=torch.channels_last)
        g = gradients[0].contiguous(memory_format=torch.channels_last)
        arguments = _rows(g), _rows(x), _rows(found), *ctx.windows, _rows(back)
        to_largest(*arguments)
        return back, None, None, *(None for _ in ctx.others)


def _rows(images: Tensor) -> Array:
    """(B, C, H, W) with the channels last in memory → B images of H rows, a row's numbers as they lie there."""
    found: Array = images.detach().movedim(1, -1).flatten(2).numpy()
    return found


def _side_by_side(
    kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool
) -> bool:
    """Whether windows are at distance 1 in a row, without holes or borders."""
    return stride[1] == 1 and not any(padding) and dilation == [1, 1] and not ceil_mode


def _order(x: Tensor) -> torch.memory_format:
    """The order in memory of (B, C, H, W) images; by shape and strides alone."""
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


@dataclass
class _Pooling:
    """Pools the images of all examples at once; `done` if there were any that depend on the example."""

    settings: tuple[Any, ...]
    done: bool = False

    def saw(self, output: Tensor, inputs: list[Tensor | None]) -> Tensor:
        """(B, K, C, H, W) pooled as B·K images."""
        self.done = True
        images = output.flatten(0, 1)
        dense = images.is_contiguous() or images.is_contiguous(memory_format=torch.channels_last)
        compiled = images.device.type == "cpu" and images.dtype in (torch.float32, torch.float64)
        quicker = images.shape[1] >= 6 and compiled and dense
        last = _order(images) is torch.channels_last
        run = _PoolRows.apply if last and _side_by_side(*self.settings) else _Pool.apply
        pooled = cast(Callable[..., Tensor], run if quicker else F.max_pool2d)(images, *self.settings)
        return torch.unflatten(pooled, 0, output.shape[:2])


def max_pool(
    example: Tensor,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """What runs instead of `F.max_pool2d` under vmap; NotImplemented for what it does not know."""
    kernel = _pair(kernel_size)
    steps = kernel if stride is None else _pair(stride)
    settings = (kernel, steps, _pair(padding), _pair(dilation), ceil_mode)
    last = x.dim() == 4 and x.stride(1) == 1 < x.shape[1]
    if x.dim() != 4 or return_indices or (last and not _side_by_side(*settings)):  # torch is fast with channels last
        return NotImplemented
    pooling = _Pooling(settings)
    pooled = show(pooling, example, x)
    return pooled if pooling.done else NotImplemented


def _pair(value: Any) -> list[int]:
    """One number per dimension."""
    return [value, value] if isinstance(value, int) else list(value)
