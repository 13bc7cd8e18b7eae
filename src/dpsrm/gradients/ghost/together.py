"""Functions that torch runs slowly, or not at all, under vmap: here run once on the tensors of all examples.

What each computes treats the examples by itself: they are only one more dimension in front.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpsrm.gradients.ghost.pixels import multiply
from dpsrm.gradients.ghost.pooling import max_pool
from dpsrm.gradients.ghost.tap import show, spread


@dataclass
class _Attention:
    """Attention of all examples at once; `done` unless something was the same for all of them."""

    masked: bool
    settings: dict[str, Any]
    done: bool = False

    def saw(self, output: Tensor, inputs: list[Tensor | None]) -> Tensor:
        """(B, ..., heads, T, E) queries, then keys and values, then the mask.

        Heads stay a dimension of their own: torch takes them as they lie in memory, without copies.
        """
        given = [_four(t) for t in (output, *inputs) if t is not None]
        self.done = len(given) == 1 + len(inputs)
        if not self.done:
            return output
        q, k, v, *mask = given
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[0] if self.masked else None, **self.settings)
        return mixed.view(*output.shape[:-1], v.shape[-1])


def _four(x: Tensor) -> Tensor:
    """(B, ..., heads, T, E) → (B·..., heads, T, E); (B, T, E) → (B, 1, T, E)."""
    return x.flatten(0, -4) if x.dim() > 3 else x.unsqueeze(1)


def _like(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask with all dimensions of the scores; one that serves all heads is not written out for each."""
    heads = mask.shape[-3] if mask.dim() > 2 else 1
    between = (heads,) if query.dim() > 2 else ()
    return mask.expand(*query.shape[:-3], *between, query.shape[-2], key.shape[-2])


def attention(
    example: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What runs instead of `F.scaled_dot_product_attention` under vmap."""
    settings: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    if enable_gqa or not same or dropout_p > 0:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=attn_mask, enable_gqa=enable_gqa, **settings
            )
    tensors = [query, key, value]
    if attn_mask is not None:
        tensors.append(_like(attn_mask, query, key))
    together = _Attention(attn_mask is not None, settings)
    mixed = show(together, example, *tensors)
    return mixed if together.done else show(together, example, *(spread(t, example) for t in tensors))


TOGETHER: dict[Callable[..., Any], Callable[..., Any]] = {
    F.max_pool2d: max_pool,
    F.scaled_dot_product_attention: attention,
}
"""What runs instead of a function under vmap; the first argument is a tensor that depends on the example."""


def _plus(product: Tensor, bias: Tensor) -> Tensor | None:
    """A product plus a bias, in the product's memory; None if it has no room for the sum.

    What is returned counts as a tensor of its own, into which nobody has written yet (see kept.py).
    """
    try:
        found: Tensor = torch.ops.aten._unsafe_view(product.add_(bias), product.shape)
    except RuntimeError:  # the bias depends on the example and the product does not, or it has a shape of its own
        return None
    return found


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, same: bool = False) -> Tensor:
    """`F.linear`; `same`: the weight is known to be the same for all examples."""
    product = multiply(x, weight) if same else F.linear(x, weight)
    found = product if bias is None else _plus(product, bias)
    return F.linear(x, weight, bias) if found is None else found


def _addmm(bias: Tensor, x: Tensor, weight: Tensor, *others: Any) -> Tensor:
    """`torch.addmm`, also with the order of arguments that it once had."""
    found = None if others else _plus(torch.mm(x, weight), bias)
    return torch.addmm(bias, x, weight, *others) if found is None else found


_SAME = partial(_linear, same=True)
WITH_BIAS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
}
"""What is faster under vmap, where torch would add a bias to a copy of the product."""


def faster(func: Callable[..., Any], kwargs: dict[str, Any], *, same: bool) -> Callable[..., Any]:
    """What runs instead of `func` under vmap; itself, if some arguments are given by their names.

    Args:
        same: whether its second argument, a linear layer's weight, is the same for all examples.
    """
    if kwargs:
        return func
    return _SAME if same and func is F.linear else WITH_BIAS.get(func, func)
