"""Looking at a pass under vmap: a call's inputs and output for all examples, and where the output's gradient will be.

Inside vmap a tensor shows one example. A `torch.autograd.Function` with a vmap rule of its own is handed the tensors of
all examples, and told in which dimension the examples lie: nothing is guessed. Every question is asked together with a
tensor that certainly depends on the example, so that another vmap inside of the module is not taken for this one.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge


@dataclass
class Tapped:
    """Something with a gradient: the place in the graph where it will come by, and, after the pass, the gradient."""

    place: GradientEdge | None = None
    grad: Tensor | None = None


class Witness(Protocol):
    """Sees the tensors of all examples, examples in front."""

    def saw(self, output: Tensor, inputs: list[Tensor | None]) -> Tensor:
        """What goes on in the output's place; an input is None if it is the same for all examples."""
        ...


class NestedError(RuntimeError):
    """The module differentiates or vectorises inside of its forward: what is recorded there would not be the whole."""


class _Root(torch.autograd.Function):
    """The identity, in place, of a tensor that depends on no parameter: `seed` makes it part of the graph."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, seed: Tensor) -> Tensor:
        """The tensor itself; what follows may change it in place as in an ordinary pass."""
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Nobody asks for the seed's gradient."""
        return gradients[0], None


def tap(output: Tensor, seed: Tensor, to: Tapped) -> Tensor:
    """`output`, whose gradient will be found at `to.place`.

    A view is first taken for a tensor of its own: writing into a view later would take its place out of the graph.
    """
    if output._is_view():
        output = torch.ops.aten._unsafe_view(output, output.shape)
    if not output.requires_grad:
        output = cast(Tensor, _Root.apply(output, seed))  # type: ignore[no-untyped-call]
    to.place = get_gradient_edge(output)
    return output


@dataclass
class _Question:
    """Who wants to see the tensors, and what came of it."""

    witness: Witness
    seen: bool = False
    differentiated: bool = False


class _Show(torch.autograd.Function):
    """Hands a witness the tensors behind the examples."""

    @staticmethod
    def forward(question: _Question, example: Tensor, output: Tensor, *inputs: Tensor) -> Tensor:
        """Nothing here depends on an example; the witness is not told."""
        return output.view_as(output)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Remember that somebody between the module and vmap differentiates."""
        inputs[0].differentiated = True

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The identity's gradient."""
        return None, None, gradients[0]

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, question: _Question, example: Tensor, output: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, int | None]:
        """Bring the examples to the front and ask the witness."""
        _, home, at, *places = in_dims
        if home is None:
            raise NestedError("a module that calls torch.func.vmap inside")
        if at is None:
            return output, None
        shown = [None if d is None else _front(x, d) for x, d in zip(inputs, places, strict=True)]
        question.seen = True
        return question.witness.saw(_front(output, at), shown), 0


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


def show(witness: Witness, example: Tensor, output: Tensor, *inputs: Tensor) -> Tensor:
    """`output`, or what the witness puts in its place, after the witness saw all examples' output and inputs.

    Args:
        example: any tensor that depends on the example.
    """
    question = _Question(witness)
    shown = cast(Tensor, _Show.apply(question, example, output, *inputs))  # type: ignore[no-untyped-call]
    if question.seen and question.differentiated:
        raise NestedError("a module that differentiates inside")
    return shown


def spread(x: Tensor, example: Tensor) -> Tensor:
    """`x` as a tensor of its own for each example."""
    return cast(Tensor, _Spread.apply(x, example))  # type: ignore[no-untyped-call]


@dataclass
class _Places:
    """Which tensors depend on the example; until told, all of them might."""

    depend: tuple[bool, ...]

    def saw(self, output: Tensor, inputs: list[Tensor | None]) -> Tensor:
        """Remember it; `output` is the example itself."""
        self.depend = tuple(x is not None for x in inputs)
        return output


def depend(example: Tensor, *tensors: Tensor) -> tuple[bool, ...]:
    """Which of `tensors` are not the same for all examples.

    vmap keeps what depends on an example in tensors with a dimension for the examples: a tensor without one is the same
    for all of them, by construction.
    """
    places = _Places((True,) * len(tensors))
    show(places, example, example, *(x.detach() for x in tensors))
    return places.depend


def _front(x: Tensor, at: int) -> Tensor:
    """The examples' dimension in front."""
    return x if at == 0 else x.movedim(at, 0)
