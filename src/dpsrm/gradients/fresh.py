"""Memory that nobody has written yet: zeros, wherever module or loss ask for some.

What `torch.empty` gives holds what was freed before, and during a pass that is mostly numbers of other examples. Code
that reads a place before it writes it, which is an error that shows nowhere, would let them reach this example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpsrm.gradients.overridden import wrapped

Runs = dict[Callable[..., Any], Callable[..., Any]]
"""What runs instead of a function; NotImplemented if only the function itself can."""


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
    if len(given) == 1 and not isinstance(given[0], (torch.Size, Integral)):
        return NotImplemented
    size = given[0] if len(given) == 1 else given or (0,)
    return like.new_zeros(others.pop("size", size), **others)


def triplets(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[..., Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """`F.triplet_margin_with_distance_loss`, which would run the user's distance with all function modes off."""
    if distance_function is None:
        return NotImplemented
    to, fro = distance_function(anchor, positive), distance_function(anchor, negative)
    fro = torch.minimum(fro, distance_function(positive, negative)) if swap else fro
    losses = torch.clamp_min(margin + to - fro, 0)
    return losses if reduction == "none" else getattr(losses, reduction)()


FRESH: Runs = {
    torch.empty: _zeros,
    torch.empty_like: torch.zeros_like,
    torch.empty_strided: _zeros_laid_out,
    torch.empty_permuted: _zeros_laid_out,
    Tensor.new_empty: Tensor.new_zeros,
    Tensor.new_empty_strided: _new_zeros_laid_out,
    Tensor.new: _new,
    F.triplet_margin_with_distance_loss: triplets,
}
"""What runs instead, in every engine."""


def _resized(change: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`Tensor.resize_` and `Tensor.resize_as_` with zeros in the places that are new."""

    def run(tensor: Tensor, *size: Any, **form: Any) -> Tensor:
        held = tensor.untyped_storage().nbytes()
        found = change(tensor, *size, **form)
        memory = torch.empty(0, dtype=torch.uint8, device=found.device).set_(found.untyped_storage())
        memory[held:] = 0
        return found

    return run


_GROWN: Runs = {
    Tensor.resize_: _resized(Tensor.resize_),
    **dict.fromkeys((Tensor.resize_as_, torch.resize_as_), _resized(Tensor.resize_as_)),
}
"""And where an example has memory of its own."""


class Fresh(TorchFunctionMode):
    """Gives zeros where nothing else is run otherwise: one example after the other, and whole batches."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run `func`, or what gives zeros."""
        if func in FRESH:
            with self:
                result = FRESH[func](*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        with self if (own := wrapped(func)) else nullcontext():
            return (own or _GROWN.get(func, func))(*args, **(kwargs or {}))
