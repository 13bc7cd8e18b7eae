"""The same estimators by Opacus: per-example gradients by its hooks, or its ghost clipping at one point."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpsrm.bench.models import Workload
from dpsrm.core.errors import need, need_extra


def by_hooks(
    modules: Sequence[nn.Module], made: Workload, *, clips: tuple[float, float], gamma: float
) -> Callable[[], Tensor]:
    """Per-example gradients at every point by Opacus' hooks, clipped part by part and summed."""
    need_extra("opacus", extra="compare")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.validators import ModuleValidator

        wrapped = [GradSampleModule(ModuleValidator.fix(module), loss_reduction="sum") for module in modules]

    unchecked = list(wrapped)

    def step() -> Tensor:
        while unchecked:
            _need_right(unchecked.pop(), made)
        rows = [_rows(one, made) for one in wrapped]
        if len(rows) == 1:
            return _clipped(rows[0], clips[1])
        differences = [now - before for now, before in zip(*rows, strict=True)]
        total: Tensor = (1 - gamma) * _clipped(differences, clips[0]) + gamma * _clipped(rows[0], clips[1])
        return total

    return step


def _rows(module: Any, made: Workload) -> list[Tensor]:
    """Every example's gradient, parameter by parameter."""
    module.zero_grad()
    torch.autograd.backward(made.losses(module, made.batch).sum())
    return [p.grad_sample for p in module.parameters() if p.requires_grad]


def _need_right(module: Any, made: Workload) -> None:
    """Refuse to time what is wrong: per-example gradients add up to the gradient, parameter by parameter."""
    _rows(module, made)
    for name, p in module.named_parameters():
        if p.requires_grad and p.grad is not None:
            sum_P = p.grad_sample.sum(0)
            right = sum_P.shape == p.grad.shape and torch.allclose(sum_P, p.grad, rtol=1e-2, atol=1e-3)
            need(right, "its per-example gradients do not add up to the gradient", parameter=name)


def _clipped(rows: list[Tensor], clip: float) -> Tensor:
    """The clipped sum of per-example gradients given parameter by parameter, as Opacus' optimizer does it."""
    norm_B = torch.stack([g.flatten(1).norm(2, dim=-1) for g in rows], dim=1).norm(2, dim=1)
    factor_B = (clip / (norm_B + 1e-6)).clamp(max=1.0)
    return torch.cat([torch.einsum("i,i...->...", factor_B, g).flatten() for g in rows])


def by_ghost(module: nn.Module, made: Workload, *, clip: float) -> Callable[[], Tensor]:
    """A clipped sum at one point by Opacus' fast gradient clipping: norms first, then a second backward pass."""
    need_extra("opacus", extra="compare")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.validators import ModuleValidator

        wrapped: Any = GradSampleModuleFastGradientClipping(
            ModuleValidator.fix(module), max_grad_norm=clip, use_ghost_clipping=True, loss_reduction="sum"
        )

    def step() -> Tensor:
        wrapped.zero_grad()
        losses_B = made.losses(wrapped, made.batch)
        torch.autograd.backward(losses_B.sum(), retain_graph=True)
        factor_B = wrapped.get_clipping_coef()
        wrapped.zero_grad()
        wrapped.disable_hooks()
        torch.autograd.backward((factor_B * losses_B).sum())
        wrapped.enable_hooks()
        return torch.cat([p.grad.flatten() for p in wrapped.parameters() if p.requires_grad])

    return step
