"""One step of the two-point DP-SRM estimator: by our engines, by Opacus' hooks, and as two plain passes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpsrm.bench.models import build, losses
from dpsrm.core.extras import need_extra
from dpsrm.gradients import FunctionalEngine, Objective, Part, Query
from dpsrm.gradients.ghost import GhostEngine

VARIANTS = ("ours", "plain", "opacus", "functional")
CHANNELS_LAST = "plain, channels last"
"""A second yardstick for convolutions: plain passes in the order of memory in which they are fastest."""
_CLIPS = (0.05, 1.0)
_GAMMA = 0.1


def variant(name: str, model: str, batch: int) -> Callable[[], Any]:
    """One step of the estimator by the named means, ready to be called again and again."""
    module, inputs, targets = build(model, batch)
    objective = Objective.of(module, losses)
    if name == CHANNELS_LAST:
        cast(Any, module).to(memory_format=torch.channels_last)  # in place; torch's types know nothing of it
        inputs = inputs.to(memory_format=torch.channels_last)
    theta_P = objective.layout.read(module)
    before_P = theta_P + 1e-3 * torch.randn_like(theta_P)
    if name in ("plain", CHANNELS_LAST):
        return _plain(module, objective, before_P, inputs, targets)
    if name == "opacus":
        return _opacus(module, objective, before_P, inputs, targets)
    parts = (
        Part(coefficients=(1.0, -1.0), clip=_CLIPS[0], weight=1 - _GAMMA, name="difference"),
        Part(coefficients=(1.0, 0.0), clip=_CLIPS[1], weight=_GAMMA),
    )
    query = Query(points=(theta_P, before_P), parts=parts)
    engine = {"ours": GhostEngine, "functional": FunctionalEngine}[name](objective)
    return lambda: engine(query, (inputs, targets))


def _pair(module: nn.Module, objective: Objective, before_P: Tensor) -> tuple[nn.Module, nn.Module]:
    """The module, and a copy with the earlier parameters."""
    earlier = copy.deepcopy(module)
    objective.layout.write(earlier, before_P)
    return module, earlier


def _plain(
    module: nn.Module, objective: Objective, before_P: Tensor, inputs: Tensor, targets: Tensor
) -> Callable[[], None]:
    """Forward and backward through the mean loss at both points: what non-private training would do."""
    pair = _pair(module, objective, before_P)

    def step() -> None:
        for one in pair:
            one.zero_grad()
            torch.autograd.backward(losses(one(inputs), targets).mean())

    return step


def _opacus(
    module: nn.Module, objective: Objective, before_P: Tensor, inputs: Tensor, targets: Tensor
) -> Callable[[], Tensor]:
    """Per-example gradients at both points by Opacus' hooks, clipped part by part and summed."""
    need_extra("opacus", extra="compare")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.validators import ModuleValidator

        pair = [GradSampleModule(ModuleValidator.fix(m)) for m in _pair(module, objective, before_P)]

    def step() -> Tensor:
        rows = []
        for one in pair:
            one.zero_grad()
            torch.autograd.backward(losses(one(inputs), targets).sum())
            rows.append([p.grad_sample for p in one.parameters()])
        differences = [now - before for now, before in zip(*rows, strict=True)]
        total: Tensor = (1 - _GAMMA) * _clipped(differences, _CLIPS[0]) + _GAMMA * _clipped(rows[0], _CLIPS[1])
        return total

    return step


def _clipped(rows: list[Tensor], clip: float) -> Tensor:
    """The clipped sum of per-example gradients given parameter by parameter, as Opacus' optimizer does it."""
    norm_B = torch.stack([g.flatten(1).norm(2, dim=-1) for g in rows], dim=1).norm(2, dim=1)
    factor_B = (clip / (norm_B + 1e-6)).clamp(max=1.0)
    return torch.cat([torch.einsum("i,i...->...", factor_B, g).flatten() for g in rows])
