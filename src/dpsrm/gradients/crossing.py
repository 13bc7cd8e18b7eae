"""Functions of torch that let one example reach another's numbers under vmap: run otherwise here, or refused.

vmap lays the examples' tensors side by side and moves each one's places to its own part. Where torch's batching rule
does not check a place before it moves it, a place outside of an example's tensor is one of another example; and where
a rule lets the user say how memory is walked through, the walk may lead there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from dpsrm.core.errors import IsolationError, need

_LOOP = 'or use performance.engine = "loop", where every example has memory of its own'


def table_of_example(
    input: Tensor,  # noqa: A002  (torch's names, by which it may be called)
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """`F.embedding` of a table that the example made: torch would not check its indices. NotImplemented for others."""
    if not _of_example(weight):
        return NotImplemented
    plain = max_norm is None and not scale_grad_by_freq
    need(plain, "a table that an example makes is looked up as it is", remedy="leave max_norm and scale_grad_by_freq")
    found = weight[input]
    if padding_idx is None:
        return found
    padding = input == (padding_idx if padding_idx >= 0 else padding_idx + len(weight))
    return torch.where(padding.unsqueeze(-1), found.detach(), found)


def table_first(weight: Tensor, indices: Tensor, padding_idx: int = -1, *others: Any, **more: Any) -> Any:
    """The same for `torch.embedding`, for which −1 is no padding."""
    if not _of_example(weight):
        return NotImplemented
    need(not others and not more, "a table that an example makes is looked up as it is", remedy="call F.embedding")
    return table_of_example(indices, weight, None if padding_idx == -1 else padding_idx)


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:  # noqa: A002
    """`torch.index_fill` by `index_put`, whose rule checks every index and counts negative ones from the example's end.

    >>> index_fill(torch.zeros(2, 3), 1, torch.tensor([-1]), 7.0)
    tensor([[0., 0., 7.],
            [0., 0., 7.]])
    """
    filling = torch.as_tensor(value, dtype=input.dtype, device=input.device)
    return input.movedim(dim, 0).index_put((index.long(),), filling).movedim(0, dim)


def strided(*_: Any, **__: Any) -> Any:
    """`torch.as_strided` walks through memory as the user says."""
    raise IsolationError(
        "as_strided may walk into the numbers of other examples, which lie beside; take unfold, narrow, view, diagonal "
        f"or flip, {_LOOP}"
    )


def _of_example(tensor: Tensor) -> bool:
    """Whether a tensor has a part for each example, at whatever depth of torch's transforms."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


_STRIDED = (torch.as_strided, torch.as_strided_, torch.as_strided_copy, torch.as_strided_scatter)
_METHODS = (Tensor.as_strided, Tensor.as_strided_, Tensor.as_strided_scatter)

CROSSING: dict[Callable[..., Any], Callable[..., Any]] = {
    F.embedding: table_of_example,
    torch.embedding: table_first,
    **dict.fromkeys((torch.index_fill, Tensor.index_fill), index_fill),
    **dict.fromkeys((*_STRIDED, *_METHODS), strided),
}
"""What runs instead."""

_UNSEEN = ("as_strided", "embedding", "index_fill", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet")


def need_seen(function: Callable[..., Any]) -> None:
    """Refuse operators that are called by `torch.ops`, past the functions that are rewritten or refused."""
    if type(function) not in (OpOverload, OpOverloadPacket):
        return
    namespace, _, name = str(function).partition(".")
    bare = name.partition(".")[0]
    if namespace == "aten" and bare.removesuffix("_").removesuffix("_copy").removesuffix("_scatter") in _UNSEEN:
        raise IsolationError(
            f"torch.ops.aten.{bare} goes past what is run in its place, or refused: call the function of torch instead"
        )
