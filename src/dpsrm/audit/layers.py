"""Which layer treats the examples of a batch together: found by exchanging one example and looking at the others.

Shapes: B examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpsrm.core.tree import leaves, mapped
from dpsrm.gradients import Batch, Objective
from dpsrm.gradients.batch import examples

_SAME = 1e-5
"""Rounding of float32 that another example in the batch may cause."""


@dataclass(frozen=True)
class _Call:
    """One call of a submodule: its name, and the tensors that went in and came out."""

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]


@torch.no_grad()
def mixing_layer(objective: Objective, batch: Batch) -> str | None:
    """The innermost layer in which other examples change when one is exchanged; None if there is none.

    The module is run on whole batches, as under isolation "checked", on copies of module and loss.
    """
    count = examples(batch)
    if count < 3:
        return None
    for other in (_shifted(batch), _rotated(batch)):
        before, losses = _calls(objective, batch)
        after, changed = _calls(objective, other)
        for one, two in zip(before, after, strict=False):
            if _others_same(one.inputs, two.inputs, count) and not _others_same(one.outputs, two.outputs, count):
                return one.name
        if not _others_same([losses], [changed], count):
            return "the loss"
    return None


def _shifted(batch: Batch) -> Batch:
    """The batch with its first example far away."""
    return mapped(lambda x: torch.cat([10 * x[:1] + 1, x[1:]]) if x.is_floating_point() else x, batch)


def _rotated(batch: Batch) -> Batch:
    """The batch with a copy of its last example in the place of its first."""
    return mapped(lambda x: torch.cat([x[-1:], x[1:]]), batch)


def _calls(objective: Objective, batch: Batch) -> tuple[list[_Call], Tensor]:
    """Every call of a submodule, inner ones first, and the losses."""
    run, calls = objective.ready(copy=True), []

    def note(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            told = f"{name or 'the module itself'} ({type(module).__name__})"
            calls.append(_Call(told, _tensors(inputs), _tensors(output)))

        return hook

    for name, child in run.module.named_modules():
        child.register_forward_hook(note(name))
    theta_P = objective.layout.read(objective.module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        losses = run.batch(objective.parameters(theta_P), batch)
    return calls, losses


def _tensors(tree: Any) -> list[Tensor]:
    """The tensors in what a layer takes or gives, as they are now."""
    return [x.detach().clone() for x in leaves(tree) if isinstance(x, Tensor)]


def _others_same(one: list[Tensor], two: list[Tensor], count: int) -> bool:
    """Whether all rows but the first are the same in both."""
    for x, y in zip(one, two, strict=False):
        if x.shape != y.shape:
            return False
        if x.dim() == 0 or len(x) % count or not x.is_floating_point():
            continue
        each = len(x) // count
        a, b = (torch.nan_to_num(t[each:].double()) for t in (x, y))
        if a.numel() and float((a - b).abs().max()) > _SAME * (1 + float(a.abs().max())):
            return False
    return True
