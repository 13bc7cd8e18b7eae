"""One short rule per function of torch that has parameters: what its call says about their per-example gradients.

A rule has the signature of its function behind the output gradient `g`, and returns a term per parameter argument.
`g` and the input arrive with the examples in front of the shape that the function saw: (B, *shape of one call).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients.ghost.terms import MANY_PLACES, Lookup, Outer, Rows, Term, Windows

Terms = dict[str, Term]
RuleFunction = Callable[..., Terms]


@dataclass(frozen=True)
class Rule:
    """A rule, its arguments' names, and what it is for.

    `leading`: its function takes any number of dimensions in front; `instead` is the function that does, if another.
    `fits` refuses calls that the rule does not know, by their arguments. `fused`: its function adds a bias while it
    multiplies, but not under vmap. `laid_out` gives a parameter the order in memory in which such a call is fastest.
    """

    terms: RuleFunction
    signature: inspect.Signature
    leading: bool
    instead: Callable[..., Tensor] | None
    fits: Callable[[dict[str, Any]], bool]
    fused: bool
    laid_out: Callable[[Tensor, dict[str, Any]], Tensor]

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """The call's arguments by name; None if the rule knows no such call."""
        renamed = {_NAMES.get(name, name): value for name, value in kwargs.items()}
        try:
            bound = self.signature.bind(None, *args, **renamed)
        except TypeError:
            return None
        bound.apply_defaults()
        del bound.arguments["g"]
        return bound.arguments if self.fits(bound.arguments) else None

    def fuses(self, arguments: dict[str, Any]) -> bool:
        """Whether a call is slower under vmap, because its bias is added by a pass of its own."""
        return self.fused and arguments.get("bias") is not None

    def data(self, names: Container[str]) -> str:
        """Which argument depends on the example, if the parameters are those `names`."""
        return "x" if "x" not in names else "other"


_NAMES = {"input": "x", "mat1": "x", "mat2": "weight"}
_FILTERS = 16


RULES: dict[Callable[..., Any], Rule] = {}
"""The rule of each function; `rule` adds to it."""


def rule(
    *functions: Callable[..., Any],
    leading: bool = False,
    instead: Callable[..., Tensor] | None = None,
    fits: Callable[[dict[str, Any]], bool] = lambda _: True,
    fused: bool = False,
    laid_out: Callable[[Tensor, dict[str, Any]], Tensor] = lambda parameter, _: parameter,
) -> Callable[[RuleFunction], RuleFunction]:
    """Register the decorated function as the rule of `functions`.

    Args:
        instead, fits, fused, laid_out: as in `Rule`.
        leading: the functions treat dimensions in front of those they work on one by one, so that the examples can be
            one more of them; they are then run once on the tensors of all examples, which is faster than under vmap.
            Only for functions of torch: nothing would keep another function from mixing examples.
    """
    foreign = [f.__name__ for f in functions if not str(getattr(f, "__module__", None) or "torch").startswith("torch")]
    need(not (leading and foreign), "only torch's functions may be run on all examples at once", functions=foreign)

    def register(terms: RuleFunction) -> RuleFunction:
        made = Rule(terms, inspect.signature(terms), leading, instead, fits, fused, laid_out)
        RULES.update(dict.fromkeys(functions, made))
        return terms

    return register


def _positions(x: Tensor) -> Tensor:
    """(B, ..., D) → (B, T, D)."""
    return x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)


@rule(F.linear, leading=True, fused=True)
def linear(g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Terms:
    """y = x Wᵀ + b."""
    g_BTO = _positions(g)
    return {"weight": Outer(_positions(x), g_BTO), "bias": Rows(lambda: g_BTO.sum(1))}


def _addmm(bias: Tensor, x: Tensor, weight: Tensor, **_: Any) -> Tensor:
    """`torch.addmm` with any number of dimensions in front."""
    return F.linear(x, weight.T, bias)


def _plain_addmm(call: dict[str, Any]) -> bool:
    """Whether the call is a linear map with a bias."""
    return bool(call["beta"] == 1 and call["alpha"] == 1 and call["bias"].dim() == 1)


@rule(torch.addmm, torch.Tensor.addmm, leading=True, instead=_addmm, fits=_plain_addmm, fused=True)
def addmm(g: Tensor, bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1) -> Terms:
    """y = x W + b."""
    g_BTO = _positions(g)
    return {"weight": Outer(g_BTO, _positions(x)), "bias": Rows(lambda: g_BTO.sum(1))}


_PRODUCTS = (torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__)


@rule(*_PRODUCTS, leading=True, fits=lambda call: call["weight"].dim() == 2)
def matmul(g: Tensor, x: Tensor, weight: Tensor) -> Terms:
    """y = x W, the parameter on the right."""
    return {"weight": Outer(_positions(g), _positions(x))}


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
    return {"weight": terms["weight"], "bias": Rows(lambda: _channels(g if g.dim() > weight.dim() else g.unsqueeze(1)))}


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


@rule(F.embedding, leading=True)
def embedding(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Terms:
    """y = W[x]."""
    need(max_norm is None, "an embedding must not rescale its own weights", max_norm=max_norm)
    need(not scale_grad_by_freq, "scale_grad_by_freq counts the words of other examples", remedy="switch it off")
    ids_BT, g_BTO = x.reshape(len(x), -1), _positions(g)
    if padding_idx is not None:
        padding = padding_idx % len(weight)
        g_BTO = g_BTO.masked_fill((ids_BT == padding)[:, :, None], 0)
    return {"weight": Lookup(ids_BT, g_BTO, len(weight))}


def _scale_and_shift(g: Tensor, normalised: Callable[[], Tensor], keep: Callable[[Tensor], Tensor]) -> Terms:
    """y = scale·normalised + shift; `keep` sums over what one scale serves."""
    return {"weight": Rows(lambda: keep(g * normalised())), "bias": Rows(lambda: keep(g))}


@rule(F.layer_norm, leading=True)
def layer_norm(
    g: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Terms:
    """Normalised over the last dimensions."""
    return _scale_and_shift(
        g, lambda: F.layer_norm(x, normalized_shape, None, None, eps), lambda t: _last(t, len(normalized_shape))
    )


@rule(F.rms_norm, leading=True)
def rms_norm(
    g: Tensor, x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Terms:
    """Divided by the root of the mean square over the last dimensions."""
    return _scale_and_shift(
        g, lambda: F.rms_norm(x, normalized_shape, None, eps), lambda t: _last(t, len(normalized_shape))
    )


def _last(t: Tensor, dimensions: int) -> Tensor:
    """Summed over the positions, all but the first and the last dimensions."""
    middle = tuple(range(1, t.dim() - dimensions))
    return t.sum(middle) if middle else t


@rule(F.group_norm)
def group_norm(
    g: Tensor, x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Terms:
    """Normalised over groups of channels."""
    return _scale_and_shift(g, lambda: _folded(lambda t: F.group_norm(t, num_groups, None, None, eps), x), _channels)


def _folded(normalise: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(B, K, C, ...) normalised as B·K images."""
    return normalise(x.flatten(0, 1)).view(x.shape)


@rule(F.instance_norm)
def instance_norm(
    g: Tensor,
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Terms:
    """Normalised over each channel of each example."""

    def normalised() -> Tensor:
        if use_input_stats:
            return _folded(lambda t: F.instance_norm(t, use_input_stats=True, eps=eps), x)
        return _folded(lambda t: F.instance_norm(t, running_mean, running_var, use_input_stats=False, eps=eps), x)

    return _scale_and_shift(g, normalised, _channels)


@rule(F.batch_norm, fits=lambda call: not call["training"])
def fixed_batch_norm(
    g: Tensor,
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Terms:
    """Normalised by statistics that are fixed."""
    normalised = _folded(lambda t: F.batch_norm(t, running_mean, running_var, eps=eps), x)
    return _scale_and_shift(g, lambda: normalised, _channels)


def _channels(t: Tensor) -> Tensor:
    """(B, K, C, ...) summed over everything but examples and channels."""
    return t.sum((1, *range(3, t.dim())))


@rule(torch.Tensor.add, torch.add)
def addition(g: Tensor, x: Tensor, other: Tensor) -> Terms:
    """y = x + other, a parameter on either side: a bias, a position embedding."""
    return {"x": Rows(lambda: _broadcast(g, x)), "other": Rows(lambda: _broadcast(g, other))}


@rule(torch.Tensor.mul, torch.mul)
def product(g: Tensor, x: Tensor, other: Tensor) -> Terms:
    """y = x·other, a parameter on either side: a gain."""
    x_rows, other_rows = (lambda: _broadcast(_scaled(g, other), x)), (lambda: _broadcast(_scaled(g, x), other))
    return {"x": Rows(x_rows), "other": Rows(other_rows)}


def _scaled(g: Tensor, x: Tensor) -> Tensor:
    """g·x, where x may have fewer dimensions behind the examples."""
    return g * x.reshape(len(x), *(1,) * (g.dim() - x.dim()), *x.shape[1:])


def _broadcast(g: Tensor, parameter: Tensor) -> Tensor:
    """The gradient of a parameter that was broadcast to the output's shape: summed to its own, per example."""
    ones = (1,) * (g.dim() - 1 - parameter.dim())
    return g.sum_to_size((len(g), *ones, *parameter.shape))
