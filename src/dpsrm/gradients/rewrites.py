"""Layers that torch runs as one function, here run in pieces that have rules: attention, and recurrent layers.

Each has the signature of the function it stands for, or returns NotImplemented for what it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpsrm.core.errors import IsolationError
from dpsrm.gradients.crossing import CROSSING
from dpsrm.gradients.failures import Watching
from dpsrm.gradients.overridden import wrapped
from dpsrm.gradients.recurrent import RECURRENT

_ATTENTION = (
    *("query", "key", "value", "embed_dim", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k", "bias_v"),
    *("add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias", "training", "key_padding_mask"),
    *("need_weights", "attn_mask", "use_separate_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
    *("static_k", "static_v", "average_attn_weights", "is_causal"),
)
_DEFAULTS: dict[str, Any] = {"training": True, "need_weights": True, "average_attn_weights": True}


def attention(*args: Any, **kwargs: Any) -> Any:
    """`F.multi_head_attention_forward`: (T, B, E) tensors in and out, projections with the batch in front."""
    call = {**dict.fromkeys(_ATTENTION), **_DEFAULTS, **dict(zip(_ATTENTION, args, strict=False)), **kwargs}
    unusual = ("bias_k", "bias_v", "add_zero_attn", "use_separate_proj_weight", "static_k", "static_v")
    if any(call[name] is not None and call[name] is not False for name in unusual) or call["query"].dim() != 3:
        return NotImplemented
    q, k, v = (_heads(t, call["num_heads"]) for t in _projected(call))
    mask = _mask(call, q)
    dropout = call["dropout_p"] if call["training"] else 0.0
    weights = None
    if call["need_weights"]:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, dim=-1), dropout)
        mixed = weights @ v
        weights = weights.mean(1) if call["average_attn_weights"] else weights
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    output = F.linear(mixed.transpose(1, 2).flatten(2), call["out_proj_weight"], call["out_proj_bias"])
    return output.transpose(0, 1), weights


def _projected(call: dict[str, Any]) -> Sequence[Tensor]:
    """Queries, keys and values, each (B, T, E)."""
    weight, bias = call["in_proj_weight"], call["in_proj_bias"]
    if call["key"] is call["query"] and call["value"] is call["query"]:
        return F.linear(call["query"].transpose(0, 1), weight, bias).chunk(3, dim=-1)
    inputs = (call[name].transpose(0, 1) for name in ("query", "key", "value"))
    return [F.linear(x, weight, bias).chunk(3, dim=-1)[i] for i, x in enumerate(inputs)]


def _heads(x_BTE: Tensor, heads: int) -> Tensor:
    """(B, T, E) → (B, heads, T, E/heads)."""
    return x_BTE.reshape(*x_BTE.shape[:2], heads, -1).transpose(1, 2)


def _mask(call: dict[str, Any], q: Tensor) -> Tensor | None:
    """Both masks as one that is added to the scores (B, heads, T, S)."""
    mask = None
    if call["attn_mask"] is not None:
        mask = _additive(call["attn_mask"], q)
        mask = mask.reshape(len(q), -1, *mask.shape[1:]) if mask.dim() == 3 else mask
    if call["key_padding_mask"] is not None:
        padding = _additive(call["key_padding_mask"], q)[:, None, None, :]
        mask = padding if mask is None else mask + padding
    return mask


def _additive(mask: Tensor, q: Tensor) -> Tensor:
    """True, which forbids, becomes −∞; numbers stay."""
    if mask.dtype != torch.bool:
        return mask.to(q.dtype)
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -math.inf)


def _uneven(*_: Any, **__: Any) -> Any:
    """Refuse to draw as many random numbers as an example's values ask for: those of all later ones would shift."""
    raise IsolationError(
        "Gamma, Dirichlet, Poisson and binomial variables are drawn by trying until one fits: how often depends on the "
        "record, and decides what the next ones draw; draw normal or uniform variables and transform them, or use "
        'performance.engine = "loop", where every example draws by itself'
    )


_UNEVEN = (torch._standard_gamma, torch._sample_dirichlet, torch.poisson, torch.binomial)

REWRITES: dict[Callable[..., Any], Callable[..., Any]] = {
    F.multi_head_attention_forward: attention,
    **RECURRENT,
    **CROSSING,
    **dict.fromkeys(_UNEVEN, _uneven),
}
"""What runs instead of a function."""


class Rewriting(Watching):
    """Runs the rewrites in the place of the functions they stand for, some of which vmap does not know."""

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run `func`, or its rewrite, which may call the user's functions."""
        if func in REWRITES:
            with self:
                result = REWRITES[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        with self if (own := wrapped(func)) else nullcontext():
            return (own or func)(*args, **kwargs)


def within(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the user's that torch wrapped, seen inside; any other as it is."""
    own = wrapped(function)
    if own is None:
        return function

    def run(*args: Any, **kwargs: Any) -> Any:
        with Rewriting():
            return own(*args, **kwargs)

    return run
