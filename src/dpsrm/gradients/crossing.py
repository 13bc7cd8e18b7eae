"""Functions of torch that let one example reach another's numbers under vmap: run otherwise here, or refused.

vmap lays the examples' tensors side by side and moves each one's places to its own part. Where torch's batching rule
does not check a place before it moves it, a place outside of an example's tensor is one of another example; and where
a rule lets the user say how memory is walked through, the walk may lead there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._functorch.autograd_function import custom_function_call
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from dpsrm.core.errors import IsolationError, need
from dpsrm.gradients.fresh import FRESH
from dpsrm.gradients.overridden import is_torchs, wrapped

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
    """`torch.index_fill` by a mask, made by a rule that checks every index and counts negative ones from the end.

    >>> index_fill(torch.zeros(2, 3), 1, torch.tensor([-1]), 7.0)
    tensor([[0., 0., 7.],
            [0., 0., 7.]])
    """
    there = torch.zeros(input.shape[dim], dtype=torch.bool, device=input.device)
    there = there.index_put((index.long(),), torch.ones((), dtype=torch.bool, device=input.device))
    filling = torch.as_tensor(value, dtype=input.dtype, device=input.device)
    return torch.where(there, filling, input.movedim(dim, -1)).movedim(-1, dim)


def index_fill_(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:  # noqa: A002
    """`Tensor.index_fill_` likewise: torch checks it on the way there, but not in its derivative."""
    return input.copy_(index_fill(input, dim, index, value))


def distances(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "") -> Any:
    """`torch.cdist` of parameters: from its derivative under vmap all examples have the gradient of the first one.

    NotImplemented for tensors of which one is an example's: there torch does what it should.

    >>> torch.func.vmap(lambda x: x * distances(torch.zeros(1, 2), torch.ones(2, 2), p=1.0))(torch.ones(1))
    tensor([[[2., 2.]]])
    """
    stack = torch._C._functorch.get_interpreter_stack()
    if not stack or any(stack[0].level() in _levels(x) for x in (x1, x2)):
        return NotImplemented
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), ord=p, dim=-1)


def addbmm_(input: Tensor, *products: Any, **scales: Any) -> Tensor:  # noqa: A002
    """`Tensor.addbmm_`, which takes the examples for rows where its input must be broadcast."""
    return input.copy_(torch.addbmm(input, *products, **scales))


def roll(input: Tensor, *_: Any, **__: Any) -> Any:  # noqa: A002
    """`torch.roll` of a single number, which would be that of the next example; NotImplemented for others."""
    return input.clone() if input.dim() == 0 else NotImplemented


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:  # noqa: A002
    """`torch.select_scatter`: outside of vmap, its derivative counts `src` as often as the dimension is long.

    >>> select_scatter(torch.zeros(2, 3), torch.ones(2), 1, -1)
    tensor([[0., 0., 1.],
            [0., 0., 1.]])
    """
    there = torch.zeros(input.shape[dim], dtype=torch.bool, device=input.device)
    there[index] = True
    return torch.where(there, src.to(input.dtype).unsqueeze(-1), input.movedim(dim, -1)).movedim(-1, dim)


def words(tensor: Tensor, *_: Any, **__: Any) -> Any:
    """An example's tensor without its numbers: torch would write down those of all examples. NotImplemented for others.

    >>> torch.func.vmap(lambda x: torch.full((), len(words(x))))(torch.ones(2, 3))
    tensor([48, 48])
    """
    if not _of_example(tensor):
        return NotImplemented
    return f"tensor(of an example, shape={tuple(tensor.shape)}, {tensor.dtype})"


def _refused(name: str, why: str, instead: str) -> Callable[..., Any]:
    """What runs in the place of a function that nothing keeps within one example."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise IsolationError(f"{name} {why}; {instead}, {_LOOP}")

    return refuse


strided = _refused(
    "as_strided",
    "may walk into the numbers of other examples, which lie beside",
    "take unfold, narrow, view, diagonal or flip",
)
_resize = _refused(
    "resize_ (or set_)",
    "takes the numbers as they lie in memory, where those of other examples follow",
    "take narrow, reshape, F.pad or a new tensor",
)
_segments = _refused(
    "segment_reduce",
    "does not check where a segment ends, and reads on in the numbers of other examples",
    "take scatter_reduce or index_add",
)
_least_squares = _refused(
    "torch.linalg.lstsq",
    "gives no residuals to any example if the matrix of one has not full rank",
    "take torch.linalg.pinv(a) @ b, or torch.linalg.solve",
)
_quantized = _refused(
    "a quantised tensor",
    "has one scale for all examples",
    "take torch.fake_quantize_per_tensor_affine, or round(x / scale) * scale",
)


def _levels(tensor: Tensor) -> Iterator[int]:
    """Those of torch's transforms that are a vmap over the tensor."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            yield functorch.maybe_get_level(tensor)
        tensor = functorch.get_unwrapped(tensor)


def _of_example(tensor: Tensor) -> bool:
    """Whether a tensor has a part for each example, at whatever depth of torch's transforms."""
    return any(True for _ in _levels(tensor))


_RESIZED = (Tensor.set_, Tensor.resize_, Tensor.resize_as_, torch.resize_as_, Tensor.resize, Tensor.resize_as)
_QUANTIZED = (
    *(torch.quantize_per_tensor, torch.quantize_per_tensor_dynamic, torch.quantize_per_channel),
    torch.empty_quantized,
)
_STRIDED = (torch.as_strided, torch.as_strided_, torch.as_strided_copy, torch.as_strided_scatter)
_METHODS = (Tensor.as_strided, Tensor.as_strided_, Tensor.as_strided_scatter)

CROSSING: dict[Callable[..., Any], Callable[..., Any]] = {
    F.embedding: table_of_example,
    torch.embedding: table_first,
    **dict.fromkeys((torch.index_fill, Tensor.index_fill), index_fill),
    Tensor.index_fill_: index_fill_,
    torch.cdist: distances,
    Tensor.addbmm_: addbmm_,
    **dict.fromkeys((torch.roll, Tensor.roll), roll),
    **dict.fromkeys((torch.select_scatter, Tensor.select_scatter), select_scatter),
    **dict.fromkeys((Tensor.__repr__, Tensor.__format__), words),
    **dict.fromkeys((*_STRIDED, *_METHODS), strided),
    **dict.fromkeys(_RESIZED, _resize),
    torch.segment_reduce: _segments,
    torch.linalg.lstsq: _least_squares,
    **dict.fromkeys(_QUANTIZED, _quantized),
    **FRESH,
}
"""What runs instead."""

_SAMPLERS = ("poisson", "binomial", "_standard_gamma", "_sample_dirichlet")
_INSIDE = ("_cdist_forward",)
_UNSEEN = frozenset((*_SAMPLERS, *_INSIDE, *(function.__name__.removesuffix("_") for function in CROSSING)))
"""The same by the names of operators, without the _ of those that write in place."""


_COMPILED = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, MethodWrapperType)
_HIDDEN = f"{{}} {{}}, and what it calls inside is then seen by nobody: {{}}, {_LOOP}"
_OVERRIDDEN = (
    "asks torch whether somebody overrides it (torch.overrides)",
    "call the function without handle_torch_function",
)
_OVERRIDES = "overrides torch's functions (__torch_function__)", "make an ordinary tensor of it"
_HIGHER = "runs functions that it is given where torch sees none", "call these themselves (torch.where for torch.cond)"


def need_seen(function: Callable[..., Any], types: Iterable[type]) -> None:
    """Refuse what goes past the functions that are rewritten or refused: some operators of `torch.ops`, torch's
    functions of functions, and code of others that overrides functions, or asks torch whether somebody does. What
    those call inside, nobody would see.

    Args:
        types: the kinds of the arguments that override functions.
    """
    for foreign in types:
        if not is_torchs(foreign):
            raise _hidden(foreign, _OVERRIDES)
    kind = type(function)
    if kind in _COMPILED:
        return
    if not is_torchs(function):
        if wrapped(function) is None:
            raise _hidden(function, _OVERRIDDEN)
        return
    if isinstance(function, HigherOrderOperator) and function is not custom_function_call:
        raise _hidden(function, _HIGHER)
    if kind not in (OpOverload, OpOverloadPacket):
        return
    namespace, _, name = str(function).partition(".")
    bare = name.partition(".")[0]
    if namespace in ("aten", "prims") and bare.removesuffix("_") in _UNSEEN:
        raise IsolationError(
            f"torch.ops.{namespace}.{bare} goes past what is run in its place, or refused: call the function of torch "
            "instead"
        )


def _hidden(thing: Any, why: tuple[str, str]) -> IsolationError:
    """The refusal of what hides what it calls."""
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", type(thing).__qualname__)
    return IsolationError(_HIDDEN.format(f"{thing.__module__}.{name}", *why))
