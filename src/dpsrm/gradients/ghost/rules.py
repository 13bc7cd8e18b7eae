"""One short rule per function of torch that has parameters: what its call says about their per-example gradients.

A rule has the signature of its function behind the output gradient `g`, and returns a term per parameter argument.
`g` and the input arrive with the examples in front of the shape that the function saw: (B, *shape of one call).
Convolutions and norms have files of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients.ghost.terms import Lookup, Outer, Rows, Term
from dpsrm.gradients.overridden import is_torchs

Terms = dict[str, Term]
RuleFunction = Callable[..., Terms]


@dataclass(frozen=True)
class Rule:
    """A rule, its arguments' names, and what it is for.

    `leading`: its function takes any number of dimensions in front; `instead` is the function that does, if another.
    `fits` refuses calls that the rule does not know, by their arguments. `laid_out` gives a parameter the order in
    memory in which such a call is fastest.
    """

    terms: RuleFunction
    signature: inspect.Signature
    leading: bool
    instead: Callable[..., Tensor] | None
    fits: Callable[[dict[str, Any]], bool]
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

    def data(self, names: Container[str]) -> str:
        """Which argument depends on the example, if the parameters are those `names`."""
        return "x" if "x" not in names else "other"


_NAMES = {"input": "x", "mat1": "x", "mat2": "weight"}


RULES: dict[Callable[..., Any], Rule] = {}
"""The rule of each function; `rule` adds to it."""


def rule(
    *functions: Callable[..., Any],
    leading: bool = False,
    instead: Callable[..., Tensor] | None = None,
    fits: Callable[[dict[str, Any]], bool] = lambda _: True,
    laid_out: Callable[[Tensor, dict[str, Any]], Tensor] = lambda parameter, _: parameter,
) -> Callable[[RuleFunction], RuleFunction]:
    """Register the decorated function as the rule of `functions`.

    Args:
        instead, fits, laid_out: as in `Rule`.
        leading: the functions treat dimensions in front of those they work on one by one, so that the examples can be
            one more of them; they are then run once on the tensors of all examples, which is faster than under vmap.
            Only for functions of torch: nothing would keep another function from mixing examples.
    """
    foreign = [f.__name__ for f in functions if not is_torchs(f)]
    need(not (leading and foreign), "only torch's functions may be run on all examples at once", functions=foreign)

    def register(terms: RuleFunction) -> RuleFunction:
        made = Rule(terms, inspect.signature(terms), leading, instead, fits, laid_out)
        RULES.update(dict.fromkeys(functions, made))
        return terms

    return register


def _positions(x: Tensor) -> Tensor:
    """(B, ..., D) → (B, T, D)."""
    return x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)


def _own_bias(call: dict[str, Any]) -> bool:
    """Whether a linear map's bias, if it has one, holds a number for each output; others are broadcast by torch."""
    return call["bias"] is None or call["bias"].shape == call["weight"].shape[:1]


@rule(F.linear, leading=True, fits=_own_bias)
def linear(g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Terms:
    """y = x Wᵀ + b."""
    g_BTO = _positions(g)
    return {"weight": Outer(_positions(x), g_BTO), "bias": Rows(lambda: g_BTO.sum(1))}


def _addmm(bias: Tensor, x: Tensor, weight: Tensor, **_: Any) -> Tensor:
    """`torch.addmm` with any number of dimensions in front."""
    return F.linear(x, weight.T, bias)


def _plain_addmm(call: dict[str, Any]) -> bool:
    """Whether the call is a linear map with a bias."""
    return bool(call["beta"] == 1 and call["alpha"] == 1 and call["bias"].shape == call["weight"].shape[1:])


@rule(torch.addmm, torch.Tensor.addmm, leading=True, instead=_addmm, fits=_plain_addmm)
def addmm(g: Tensor, bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1) -> Terms:
    """y = x W + b."""
    g_BTO = _positions(g)
    return {"weight": Outer(g_BTO, _positions(x)), "bias": Rows(lambda: g_BTO.sum(1))}


_PRODUCTS = (torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__)


@rule(*_PRODUCTS, leading=True, fits=lambda call: call["weight"].dim() == 2)
def matmul(g: Tensor, x: Tensor, weight: Tensor) -> Terms:
    """y = x W, the parameter on the right."""
    return {"weight": Outer(_positions(g), _positions(x))}


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


def channel_sums(t: Tensor) -> Tensor:
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
