"""Layers that torch runs as one function, here run in pieces that have rules: attention, LSTM, GRU.

Each has the signature of the function it stands for, or returns NotImplemented for what it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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


def _lstm_step(gates_x: Tensor, gates_h: Tensor, state: list[Tensor]) -> list[Tensor]:
    """(h, c) after one step."""
    i, f, g, o = (gates_x + gates_h).chunk(4, dim=-1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return [torch.sigmoid(o) * torch.tanh(c), c]


def _gru_step(gates_x: Tensor, gates_h: Tensor, state: list[Tensor]) -> list[Tensor]:
    """h after one step."""
    (rx, zx, nx), (rh, zh, nh) = gates_x.chunk(3, dim=-1), gates_h.chunk(3, dim=-1)
    z, n = torch.sigmoid(zx + zh), torch.tanh(nx + torch.sigmoid(rx + rh) * nh)
    return [(1 - z) * n + z * state[0]]


def _scan(x_BTI: Tensor, state: list[Tensor], weights: Sequence[Tensor], step: Any) -> tuple[Tensor, list[Tensor]]:
    """One layer in one direction: the outputs (B, T, H) and the last state."""
    w_ih, w_hh, *biases = weights
    b_ih, b_hh = biases or (None, None)
    gates_x = F.linear(x_BTI, w_ih, b_ih)
    outputs = []
    for t in range(x_BTI.shape[1]):
        state = step(gates_x[:, t], F.linear(state[0], w_hh, b_hh), state)
        outputs.append(state[0])
    return torch.stack(outputs, dim=1), state


def _recurrent(step: Any) -> Callable[..., Any]:
    """The function that runs all layers and directions of a recurrent module."""

    def run(x: Tensor, hx: Any, weights: Any, *settings: Any) -> Any:
        if not isinstance(weights, (list, tuple)) or len(settings) != 6 or x.dim() != 3:
            return NotImplemented
        has_biases, layers, dropout, training, bidirectional, batch_first = settings
        x = x if batch_first else x.transpose(0, 1)
        initial = [hx] if isinstance(hx, Tensor) else list(hx)
        ways, each = 2 if bidirectional else 1, 4 if has_biases else 2
        if len(weights) != layers * ways * each or initial[0].shape[-1] != weights[1].shape[-1]:
            return NotImplemented
        last: list[list[Tensor]] = []
        for layer in range(layers):
            outputs = []
            for way in range(ways):
                at = layer * ways + way
                seen = x.flip(1) if way else x
                y, state = _scan(seen, [s[at] for s in initial], weights[at * each : (at + 1) * each], step)
                outputs.append(y.flip(1) if way else y)
                last.append(state)
            x = torch.cat(outputs, dim=-1)
            x = F.dropout(x, dropout) if training and dropout and layer < layers - 1 else x
        final = [torch.stack(states) for states in zip(*last, strict=True)]
        return (x if batch_first else x.transpose(0, 1), *final)

    return run


REWRITES: dict[Callable[..., Any], Callable[..., Any]] = {
    F.multi_head_attention_forward: attention,
    torch.lstm: _recurrent(_lstm_step),
    torch.gru: _recurrent(_gru_step),
}
"""What runs instead of a function while a pass is recorded."""
