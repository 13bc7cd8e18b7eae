"""One step of a clipped estimator, at DP-SRM's two points or at one: by our engines, by Opacus, and as plain passes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpsrm.bench.models import Workload, build
from dpsrm.bench.opacus import by_ghost, by_hooks
from dpsrm.core.tree import mapped
from dpsrm.gradients import FunctionalEngine, ModelLosses, Objective, Part, Query
from dpsrm.gradients.ghost import GhostEngine

VARIANTS = ("ours", "plain", "opacus", "functional")
CHANNELS_LAST = "plain, channels last"
"""A second yardstick for convolutions: plain passes in the order of memory in which they are fastest."""
GHOST = "opacus, ghost"
"""Opacus' fast gradient clipping, which knows one point only."""
CLIPS = (0.05, 1.0)
GAMMA = 0.1


def variant(name: str, model: str, batch: int, *, points: int = 2) -> Callable[[], Any]:
    """One step of the estimator by the named means, ready to be called again and again."""
    made = build(model, batch)
    objective = Objective.of(made.module, ModelLosses(made.losses))
    if name == CHANNELS_LAST:
        made = _channels_last(made)
    theta_P = objective.layout.read(made.module)
    before_P = theta_P + 1e-3 * torch.randn_like(theta_P)
    if name in ("ours", "functional"):
        engine = {"ours": GhostEngine, "functional": FunctionalEngine}[name](objective)
        query = Query(points=(theta_P, before_P)[:points], parts=_parts(points))
        return lambda: engine(query, made.batch)
    modules = _at(made.module, objective, (theta_P, before_P)[:points])
    if name in ("plain", CHANNELS_LAST):
        return _plain(modules, made)
    if name == "opacus":
        return by_hooks(modules, made, clips=CLIPS, gamma=GAMMA)
    if name == GHOST:
        return by_ghost(modules[0], made, clip=CLIPS[1])
    raise AssertionError(name)


def _parts(points: int) -> tuple[Part, ...]:
    """DP-SRM's two parts, or a gradient's one."""
    if points == 1:
        return (Part(coefficients=(1.0,), clip=CLIPS[1]),)
    return (
        Part(coefficients=(1.0, -1.0), clip=CLIPS[0], weight=1 - GAMMA, name="difference"),
        Part(coefficients=(1.0, 0.0), clip=CLIPS[1], weight=GAMMA),
    )


def _channels_last(made: Workload) -> Workload:
    """Module and images in the other order of memory; the module in place, which torch's types know nothing of."""
    cast(Any, made.module).to(memory_format=torch.channels_last)

    def ordered(tensor: Tensor) -> Tensor:
        images = tensor.dim() == 4 and tensor.is_floating_point()
        return tensor.to(memory_format=torch.channels_last) if images else tensor

    return Workload(made.module, mapped(ordered, made.batch), made.losses)


def _at(module: nn.Module, objective: Objective, points: tuple[Tensor, ...]) -> list[nn.Module]:
    """The module, and a copy of it for every further point."""
    modules = [module, *(copy.deepcopy(module) for _ in points[1:])]
    for one, point_P in zip(modules, points, strict=True):
        objective.layout.write(one, point_P)
    return modules


def _plain(modules: list[nn.Module], made: Workload) -> Callable[[], None]:
    """Forward and backward through the mean loss at every point: what non-private training would do."""

    def step() -> None:
        for one in modules:
            one.zero_grad()
            torch.autograd.backward(made.losses(one, made.batch).mean())

    return step
