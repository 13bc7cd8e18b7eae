"""The rules of convolutions and their transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpsrm.gradients.ghost.rules import Terms, channel_sums, rule
from dpsrm.gradients.ghost.terms import Rows
from dpsrm.gradients.ghost.windows import MANY_PLACES, Windows

_FILTERS = 16
"""From so many filters on, images are computed faster with the channels last."""


def _channels_last(weight: Tensor, call: dict[str, Any]) -> Tensor:
    """A convolution's filters with the channels last in memory, where that is faster: its images then come out so, too.

    Measured on a processor: with 16 filters or more, if images come out small; larger ones lose in what follows, in
    group norm and in convolutions for each example's gradient, which are then used (`Windows.convolved`).
    """
    few = weight.dim() != 4 or len(weight) < _FILTERS or weight.device.type != "cpu"
    if few or not isinstance(call["x"], Tensor) or call["x"].dim() < 2:
        return weight
    places = math.prod(s // t for s, t in zip(call["x"].shape[-2:], _each(call["stride"], 2), strict=True))
    return weight.clone(memory_format=torch.channels_last) if places < MANY_PLACES else weight


@rule(F.conv1d, F.conv2d, F.conv3d, laid_out=_channels_last)
def convolution(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Terms:
    """A convolution in one, two or three dimensions."""
    kernel, dims = tuple(weight.shape[2:]), weight.dim() - 2
    strides, steps = _each(stride, dims), _each(dilation, dims)
    around = _sides(padding, kernel, steps)
    x, g = _one_image(x, dims), _one_image(g, dims)
    if x.dim() > dims + 2:
        kernel, strides, steps, around = (1, *kernel), (1, *strides), (1, *steps), ((0, 0), *around)
    windows = Windows(x, g, kernel, strides, around, steps, groups)
    return {"weight": windows, "bias": Rows(lambda: g.flatten(2).sum(2))}


@rule(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
def transposed_convolution(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Terms:
    """A convolution's way back: input and output change their parts."""
    terms = convolution(x, g, weight, None, stride, padding, dilation, groups)
    return {
        "weight": terms["weight"],
        "bias": Rows(lambda: channel_sums(g if g.dim() > weight.dim() else g.unsqueeze(1))),
    }


def _one_image(x: Tensor, dims: int) -> Tensor:
    """(B, K, C, ...) → (B, C, ...) for one image per example; for K images (B, C, K, ...): one more dimension."""
    if x.dim() == dims + 2:
        return x
    return x.squeeze(1) if x.shape[1] == 1 else x.transpose(1, 2)


def _each(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """One number per dimension."""
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * count if len(numbers) == 1 else numbers


def _sides(
    padding: int | str | Sequence[int], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """How many zeros are put before and after each dimension."""
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    if isinstance(padding, str):
        raise AssertionError(f"unknown padding {padding!r}")
    return tuple((p, p) for p in _each(padding, len(kernel)))
