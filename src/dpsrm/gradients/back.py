"""The way back outside of vmap, where torch holds the gradients of all examples in one tensor.

Some of torch's derivatives look at values first: that of a product asks whether any factor of the whole tensor is zero,
and then computes all examples' otherwise. And a function of the user's may write into the gradient that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils._python_dispatch import TorchDispatchMode

from dpsrm.core.errors import IsolationError

_SHARED = (
    "a function of the way back writes into a gradient whose memory the examples share; make a new tensor there "
    '(masked_fill instead of masked_fill_), or use performance.engine = "loop"'
)


class _Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets every operator run, but for writes into memory that stands for several examples.

    Where any mode is on, torch takes the derivatives that look at no value: they also serve tensors that have none.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would wrap the method below, and import its compiler for that, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, past the guards of `below`, which are for what the user calls."""
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            _need_own_memory(func._schema.arguments, args, kwargs)
        return func._op(*args, **kwargs)


def _need_own_memory(arguments: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Refuse to write into a tensor of whose places several are the same."""
    for argument, value in zip(arguments, (*args, *(kwargs.get(a.name) for a in arguments[len(args) :])), strict=True):
        written = argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Tensor)
        if written and any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True)):
            raise IsolationError(_SHARED)


def gradients_at(losses_B: Tensor, places: Sequence[Tensor | GradientEdge | None]) -> tuple[Tensor | None, ...]:
    """The gradients of Σ losses at some places of the graph, None where there is none.

    Guarantee: no value of one example decides by which formula another's gradient is computed, and the first gradient
    has a number of its own for each example.
    """
    ones_B = torch.ones_like(losses_B, memory_format=torch.contiguous_format)
    with _Watched():  # type: ignore[no-untyped-call]
        return torch.autograd.grad(losses_B, places, grad_outputs=ones_B, allow_unused=True)  # type: ignore[arg-type]
