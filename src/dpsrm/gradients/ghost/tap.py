"""Looking at a pass under vmap: a call's inputs and output for all examples, and the output's gradient on the way back.

Inside vmap a tensor shows one example. A `torch.autograd.Function` with a vmap rule of its own is handed the tensors of
all examples, and told in which dimension the examples lie: nothing is guessed.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor


@dataclass
class Tapped:
    """Something whose output is tapped; `grad` is the sum of what came back, None until something does."""

    grad: Tensor | None


class Witness(Protocol):
    """Sees the tensors of all examples, examples in front."""

    def saw(self, output: Tensor, inputs: list[Tensor | None]) -> Tensor:
        """What goes on in the output's place; an input is None if it is the same for all examples."""
        ...


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


class _Show(torch.autograd.Function):
    """Hands a witness the tensors behind the examples."""

    @staticmethod
    def forward(witness: Witness, output: Tensor, *inputs: Tensor) -> Tensor:
        """Nothing here depends on an example; the witness is not told."""
        return output.view_as(output)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to remember."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The identity's gradient."""
        return None, gradients[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, witness: Witness, output: Tensor, *inputs: Tensor) -> tuple[Tensor, int | None]:
        """Bring the examples to the front and ask the witness."""
        _, at, *places = in_dims
        if at is None:
            return output, None
        shown = [None if d is None else _front(x, d) for x, d in zip(inputs, places, strict=True)]
        return witness.saw(_front(output, at), shown), 0


class _Spread(torch.autograd.Function):
    """Gives every example its own view of a tensor that is the same for all."""

    @staticmethod
    def forward(x: Tensor, example: Tensor) -> Tensor:
        """The tensor itself."""
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to remember."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, example: Tensor) -> tuple[Tensor, int]:
        """One view per example."""
        at = in_dims[0]
        return (x.unsqueeze(0).expand(info.batch_size, *x.shape), 0) if at is None else (x, at)


for _function in (_Show, _Spread):
    # torch asks for the signature at every call, and finding it out takes longer than a small layer
    vars(_function)["forward"].__func__.__signature__ = inspect.signature(_function.forward)


def show(witness: Witness, output: Tensor, *inputs: Tensor) -> Tensor:
    """`output`, or what the witness puts in its place, after the witness saw all examples' output and inputs."""
    return cast(Tensor, _Show.apply(witness, output, *inputs))  # type: ignore[no-untyped-call]


def spread(x: Tensor, example: Tensor) -> Tensor:
    """`x` as a tensor of its own for each example; `example` is any tensor that depends on the example."""
    return cast(Tensor, _Spread.apply(x, example))  # type: ignore[no-untyped-call]


def _front(x: Tensor, at: int) -> Tensor:
    """The examples' dimension in front."""
    return x if at == 0 else x.movedim(at, 0)
