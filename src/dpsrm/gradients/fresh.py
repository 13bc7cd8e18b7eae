"""Memory that nobody has written yet: zeros, wherever module or loss ask for some.

What `torch.empty` gives holds what was freed before, and during a pass that is mostly numbers of other examples. Code
that reads a place before it writes it, which is an error that shows nowhere, would let them reach this example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpsrm.gradients.overridden import body_of


def _zeros(*size: Any, **given: Any) -> Tensor:
    """`torch.empty`."""
    form = given.pop("memory_format", None)
    made = torch.zeros(*size, **given)
    return made if form is None else made.to(memory_format=form)


def _zeros_laid_out(size: Any, _layout: Any, **given: Any) -> Tensor:
    """`torch.empty_strided` and `torch.empty_permuted`; how the numbers lie in memory changes none of them."""
    return torch.zeros(size, **given)


def _new_zeros_laid_out(like: Tensor, size: Any, _stride: Any, **given: Any) -> Tensor:
    """`Tensor.new_empty_strided`."""
    return like.new_zeros(size, **given)


def _new(like: Tensor, *given: Any, **others: Any) -> Any:
    """`Tensor.new`, the old way to ask for a size; NotImplemented where it is given numbers."""
    sizes = given[0] if len(given) == 1 and isinstance(given[0], torch.Size) else given
    if others or not all(isinstance(size, int) for size in sizes):
        return NotImplemented
    return like.new_zeros(sizes or (0,))


FRESH: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.empty: _zeros,
    torch.empty_like: torch.zeros_like,
    torch.empty_strided: _zeros_laid_out,
    torch.empty_permuted: _zeros_laid_out,
    Tensor.new_empty: Tensor.new_zeros,
    Tensor.new_empty_strided: _new_zeros_laid_out,
    Tensor.new: _new,
}
"""What runs instead."""


class Fresh(TorchFunctionMode):
    """Gives zeros where nothing else is run otherwise: one example after the other, and whole batches."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run `func`, or what gives zeros; of a function of others all that it calls."""
        body = body_of(func)
        if body is not None:
            with self:
                return body(*args, **(kwargs or {}))
        result = FRESH[func](*args, **(kwargs or {})) if func in FRESH else NotImplemented
        return func(*args, **(kwargs or {})) if result is NotImplemented else result
