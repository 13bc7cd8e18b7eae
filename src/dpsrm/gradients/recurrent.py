"""Recurrent layers and cells, run step by step: an RNN, an LSTM (with a projection too), a GRU.

Each has the signature of the function it stands for, or returns NotImplemented for what it does not know (packed
sequences, whose lengths are values of examples).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Step = Callable[[Tensor, Tensor, list[Tensor]], list[Tensor]]
"""(what the input adds to the gates, what the state adds, the state) → the next state, the output first."""


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


def _tanh_step(gates_x: Tensor, gates_h: Tensor, state: list[Tensor]) -> list[Tensor]:
    """h after one step."""
    return [torch.tanh(gates_x + gates_h)]


def _relu_step(gates_x: Tensor, gates_h: Tensor, state: list[Tensor]) -> list[Tensor]:
    """h after one step."""
    return [torch.relu(gates_x + gates_h)]


def _scan(x_BTI: Tensor, state: list[Tensor], weights: Sequence[Tensor], step: Step) -> tuple[Tensor, list[Tensor]]:
    """One layer in one direction: the outputs (B, T, H) and the last state; an odd weight is a projection."""
    w_ih, w_hh, *biases = weights
    projection = biases.pop() if len(biases) % 2 else None
    b_ih, b_hh = biases or (None, None)
    gates_x = F.linear(x_BTI, w_ih, b_ih)
    outputs = []
    for t in range(x_BTI.shape[1]):
        state = step(gates_x[:, t], F.linear(state[0], w_hh, b_hh), state)
        state = state if projection is None else [F.linear(state[0], projection), *state[1:]]
        outputs.append(state[0])
    return torch.stack(outputs, dim=1), state


def _layers(step: Step) -> Callable[..., Any]:
    """The function that runs all layers and directions of a recurrent module."""

    def run(x: Tensor, hx: Any, weights: Any, *settings: Any) -> Any:
        if not isinstance(weights, (list, tuple)) or len(settings) != 6 or x.dim() != 3:
            return NotImplemented
        _, layers, dropout, training, bidirectional, batch_first = settings
        x = x if batch_first else x.transpose(0, 1)
        initial = [hx] if isinstance(hx, Tensor) else list(hx)
        ways = 2 if bidirectional else 1
        each = len(weights) // (layers * ways)
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


def _cell(step: Step) -> Callable[..., Any]:
    """The function that runs one step of a recurrent cell."""

    def run(x: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:
        state = [hx] if isinstance(hx, Tensor) else list(hx)
        after = step(F.linear(x, w_ih, b_ih), F.linear(state[0], w_hh, b_hh), state)
        return after[0] if isinstance(hx, Tensor) else tuple(after)

    return run


RECURRENT: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.lstm: _layers(_lstm_step),
    torch.gru: _layers(_gru_step),
    torch.rnn_tanh: _layers(_tanh_step),
    torch.rnn_relu: _layers(_relu_step),
    torch.lstm_cell: _cell(_lstm_step),
    torch.gru_cell: _cell(_gru_step),
    torch.rnn_tanh_cell: _cell(_tanh_step),
    torch.rnn_relu_cell: _cell(_relu_step),
}
"""What runs instead of a function."""
