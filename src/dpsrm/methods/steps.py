"""From a direction to the next θ otherwise: the paper's adaptive step, any torch optimizer, with a penalty."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.gradients import Layout
from dpsrm.gradients.torch_state import elementwise
from dpsrm.methods.postprocessing import ConstantStep, Memoryless, Stepper

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Regulariser = Callable[[Tensor], Tensor]
"""A data-independent penalty of the flat θ; its gradient is added outside clip and noise and costs no privacy."""


_SMALL = 2**16
"""Up to so many parameters, NumPy's single thread takes a step sooner than torch's many."""


@dataclass(frozen=True)
class PenalisedStep(ConstantStep):
    """`Regularised(ConstantStep(rate), penalty)` for a θ in ordinary memory: the same operations, in NumPy.

    With a few hundred parameters a step costs what its calls cost, and NumPy's are less than half of torch's.

    >>> PenalisedStep(0.5, NonconvexPenalty(0.5)).advance(torch.ones(2), torch.tensor([1.0, 2.0]))
    tensor([ 0.3750, -0.1250])
    """

    penalty_of: NonconvexPenalty

    @np.errstate(all="ignore")
    def advance(self, theta_P: Tensor, direction_P: Tensor, *, std: float = 0.0) -> Tensor:
        """One step along direction + ∇penalty(θ); a θ that overflows is the loop's to refuse, as it is with torch."""
        here_P = theta_P.numpy()
        slope_P = here_P * here_P
        slope_P += 1
        slope_P *= slope_P
        np.divide(here_P, slope_P, out=slope_P)
        slope_P *= 2 * self.penalty_of.strength
        along_P = (direction_P.numpy() + slope_P).astype(here_P.dtype, copy=False)
        return super().advance(theta_P, torch.from_numpy(along_P))

    def penalty(self, theta_P: Tensor) -> float:
        """The penalty's value."""
        return float(self.penalty_of(theta_P))


def penalised(stepper: Stepper, penalty: NonconvexPenalty, *, like_P: Tensor) -> Stepper:
    """`stepper` with the penalty's gradient added to its direction."""
    known = like_P.device.type == "cpu" and like_P.dtype in (torch.float32, torch.float64)
    if type(stepper) is ConstantStep and known and like_P.numel() <= _SMALL:
        return PenalisedStep(stepper.rate, penalty)
    return Regularised(stepper, penalty, gradient=penalty.gradient)


@dataclass(frozen=True, kw_only=True)
class AdaptiveStep(Memoryless):
    """The paper's η_t = min{ζ/(n0·L·‖v‖), 1/(2·n0·L)} (Algorithm 1, line 5).

    Guarantee: ‖θ' − θ‖ ≤ ζ/(n0·L), so an example's gradient changes by at most ζ/n0.
    """

    zeta: float
    n0: float
    smoothness: float

    def advance(self, theta_P: Tensor, direction_P: Tensor, *, std: float = 0.0) -> Tensor:
        """One step."""
        norm = float(torch.linalg.vector_norm(direction_P))
        longest = 1 / (2 * self.n0 * self.smoothness)
        rate = min(self.zeta / (self.n0 * self.smoothness * norm), longest) if norm > 0 else longest
        return elementwise(lambda here, v: here - (rate * v).to(here.dtype), theta_P, direction_P)


class OptimizerStep(Stepper):
    """Any `torch.optim` optimizer, fed with the direction as if it were the gradient."""

    def __init__(self, optimizer: torch.optim.Optimizer, layout: Layout, leaves: dict[str, nn.Parameter]) -> None:
        """Feed `optimizer`, which holds `leaves`: the parameters of `layout`, by name."""
        self._layout = layout
        self._leaves = leaves
        self._optimizer = optimizer

    @classmethod
    def made(cls, factory: OptimizerFactory, layout: Layout, like_P: Tensor) -> OptimizerStep:
        """With an optimizer made for the purpose, over parameters of the model's own shapes."""
        leaves = {n: nn.Parameter(piece.clone()) for n, piece in layout.split(like_P).items()}
        return cls(factory(list(leaves.values())), layout, leaves)

    @classmethod
    def own(cls, optimizer: torch.optim.Optimizer, module: nn.Module, layout: Layout) -> OptimizerStep:
        """With somebody's own optimizer over the module's parameters: the module moves with every step."""
        leaves = {name: p for name, p in module.named_parameters() if name in layout.names}
        held = [id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        missing = [name for name, p in leaves.items() if id(p) not in held]
        need(
            not missing,
            "the optimizer must hold every trainable parameter of the model",
            missing=missing[:5],
            remedy="add them, or freeze them with requires_grad_(False)",
        )
        need(len(held) == len(leaves), "the optimizer must hold no other parameters than the model's")
        need(
            not isinstance(optimizer, torch.optim.LBFGS),
            "an optimizer that evaluates the loss itself cannot step privately",
            optimizer=type(optimizer).__name__,
        )
        return cls(optimizer, layout, leaves)

    @torch.no_grad()
    def advance(self, theta_P: Tensor, direction_P: Tensor, *, std: float = 0.0) -> Tensor:
        """One optimizer step along the direction alone: what a backward() of others left is forgotten, wherever."""
        for held in (p for group in self._optimizer.param_groups for p in group["params"]):
            held.grad = None
        pieces = self._layout.split(theta_P)
        own_P = elementwise(lambda v: v.to(theta_P.dtype, copy=True), direction_P)  # optimizers may write into it
        slopes = self._layout.split(own_P)
        for name, leaf in self._leaves.items():
            leaf.copy_(pieces[name])
            leaf.grad = slopes[name]
        self._optimizer.step()
        for leaf in self._leaves.values():
            leaf.grad = None
        return torch.cat([self._leaves[name].detach().reshape(-1) for name in self._layout.names])

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own state."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the optimizer's own state."""
        self._optimizer.load_state_dict(state)


class Regularised:
    """A stepper whose direction gets a data-independent regulariser's gradient added first."""

    def __init__(self, inner: Stepper, regulariser: Regulariser, *, gradient: Regulariser | None = None) -> None:
        """Wrap `inner`; the regulariser's gradient is `gradient`, or found by torch (a hundred times slower)."""
        self._inner = inner
        self._regulariser = regulariser
        self._gradient = gradient or torch.func.grad(regulariser)

    def advance(self, theta_P: Tensor, direction_P: Tensor, *, std: float = 0.0) -> Tensor:
        """One step along direction + ∇regulariser(θ)."""
        return self._inner.advance(theta_P, direction_P + self._gradient(theta_P), std=std)

    def penalty(self, theta_P: Tensor) -> float:
        """The regulariser's value (and the inner stepper's)."""
        return float(self._regulariser(theta_P)) + self._inner.penalty(theta_P)

    def state_dict(self) -> dict[str, Any]:
        """The inner stepper's state."""
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the inner stepper's state."""
        self._inner.load_state_dict(state)


@dataclass(frozen=True)
class NonconvexPenalty:
    """λ Σ θ_j²/(1+θ_j²), the regulariser of the paper's logistic regression.

    >>> NonconvexPenalty(0.1)(torch.ones(4))
    tensor(0.2000)
    """

    strength: float

    def __post_init__(self) -> None:
        """Refuse a penalty that is none."""
        need(
            0 < self.strength < math.inf,
            "the regulariser's strength must be positive",
            regulariser=self.strength,
        )

    def __call__(self, theta_P: Tensor) -> Tensor:
        """The penalty's value."""
        square_P = theta_P * theta_P
        return self.strength * (square_P / (1 + square_P)).sum()

    def gradient(self, theta_P: Tensor) -> Tensor:
        """2λθ/(1+θ²)².

        >>> NonconvexPenalty(0.5).gradient(torch.tensor([0.0, 1.0]))
        tensor([0.0000, 0.2500])
        """
        square_P = (theta_P * theta_P).add_(1)
        return (theta_P / square_P.square_()).mul_(2 * self.strength)
