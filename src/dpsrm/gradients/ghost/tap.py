"""An identity in the graph that shows an output's gradient on the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor


@dataclass
class Tapped:
    """Something whose output is tapped; `grad` is the sum of what came back, None until something does."""

    grad: Tensor | None


class _Tap(torch.autograd.Function):
    """The identity, in place, so that what follows may change the output in place as in an ordinary pass."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, seed: Tensor, to: Tapped) -> Tensor:
        """Remember who wants the gradient; `seed` makes the result part of the graph."""
        ctx.to = to
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Show the gradient, and pass it on."""
        ctx.to.grad = gradients[0]
        return gradients[0], None, None


def tap(output: Tensor, seed: Tensor, to: Tapped) -> Tensor:
    """`output`, whose gradient will be written to `to.grad`.

    A view is first taken for a tensor of its own: autograd would copy its gradient twice to keep track of the base.
    """
    if output._is_view():
        output = torch.ops.aten._unsafe_view(output, output.shape)
    return cast(Tensor, _Tap.apply(output, seed, to))  # type: ignore[no-untyped-call]
