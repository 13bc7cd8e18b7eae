"""DP-SRM, Algorithm 1 of Wang, Jayaraman, Evans & Gu: differentially private stochastic recursive momentum.

Line numbers in comments are those of Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients import Excess, Part, Query
from dpsrm.methods.method import Ask, Schedule, Stage
from dpsrm.methods.steps import Stepper


@dataclass(frozen=True, kw_only=True)
class Srm:
    """Settings of DP-SRM.

        v⁰ = mean over B0 of clip(∇f_i(θ⁰), C1) + noise
        v^t = mean over B_t of [(1−γ)·clip(∇f_i(θ^t) − ∇f_i(θ^{t−1}), C2) + γ·clip(∇f_i(θ^t), C1)]
              + (1−γ)·v^{t−1} + noise

    Args:
        max_grad_norm: C1 (theory mode: the Lipschitz constant G).
        max_diff_norm: C2 (theory mode: ζ/n0).
        gamma: the momentum's weight γ in (0, 1], or "auto" = min(1, C2/C1), which makes both parts of the noise equal.
        excess: "clip" scales an example that exceeds a bound down to it; "raise" stops (theory mode's assumption).

    Guarantee: one record moves the mean at t by at most 2·C1/b0 (t = 0) and 2·((1−γ)·C2 + γ·C1)/b (t > 0) under
    replace-one adjacency. (1−γ)·v^{t−1} is a function of earlier releases.

    Edge cases: γ = 1 is DP-SGD; infinite clips without noise are STORM.

    Departs from the paper: its experiments write the sensitivity with C1 and C2 swapped, and set γ = C2, which is
    C2/C1 only for C1 = 1.

    >>> Srm(max_grad_norm=2.0, max_diff_norm=0.5).momentum
    0.25
    """

    name: ClassVar[str] = "srm"
    summary: ClassVar[str] = "DP-SRM: recursive momentum; low noise at each instant without the lag of momentum"
    gradients_per_example: ClassVar[int] = 2
    private: ClassVar[bool] = True

    max_grad_norm: float = 1.0
    max_diff_norm: float = 0.5
    gamma: float | Literal["auto"] = "auto"
    excess: Excess = Excess.CLIP

    def __post_init__(self) -> None:
        """Refuse settings that are not a method."""
        need(self.max_grad_norm > 0, "max_grad_norm (C1) must be positive", max_grad_norm=self.max_grad_norm)
        need(self.max_diff_norm > 0, "max_diff_norm (C2) must be positive", max_diff_norm=self.max_diff_norm)
        auto = self.gamma == "auto"
        number = isinstance(self.gamma, (int, float)) and not isinstance(self.gamma, bool)
        need(auto or number, 'gamma must be a number or "auto"', gamma=self.gamma)
        need(0 < self.momentum <= 1, "gamma must be in (0, 1]", gamma=self.gamma, remedy='try gamma = "auto"')
        object.__setattr__(self, "excess", Excess(self.excess))

    @property
    def momentum(self) -> float:
        """γ as a number."""
        if self.gamma != "auto":
            return float(self.gamma)
        ratio = self.max_diff_norm / self.max_grad_norm
        return min(1.0, ratio) if math.isfinite(ratio) else 1.0

    def unclipped(self) -> Srm:
        """STORM: the same γ, no clips."""
        return replace(self, gamma=self.momentum, max_grad_norm=math.inf, max_diff_norm=math.inf)

    def stages(self, schedule: Schedule) -> tuple[Stage, ...]:
        """v⁰ over the first batch, then v¹ … v^{T−1}: θ^T needs no v^T, so it is never released."""
        rest = Stage(schedule.batch, schedule.steps - 1)
        return (Stage(schedule.first_batch, 1), rest) if rest.count else (Stage(schedule.first_batch, 1),)

    def begin(self, theta: Tensor, *, schedule: Schedule, stepper: Stepper) -> SrmWalk:
        """Start from θ⁰."""
        return SrmWalk(self, theta, schedule, stepper)


class SrmWalk:
    """DP-SRM under way: θ^t, θ^{t−1} and v^{t−1}."""

    def __init__(self, settings: Srm, theta: Tensor, schedule: Schedule, stepper: Stepper) -> None:
        """Start from θ⁰, with nothing released yet."""
        self.theta = theta
        self.direction = torch.zeros(len(theta), dtype=torch.float64)
        self._previous = theta
        self._time = 0
        self._settings = settings
        self._schedule = schedule
        self._stepper = stepper

    def ask(self) -> Ask:
        """The gradients at θ⁰ (lines 1–2), then gradient differences and gradients at θ^t (lines 6–7)."""
        C1, C2, gamma = self._settings.max_grad_norm, self._settings.max_diff_norm, self._settings.momentum
        excess = self._settings.excess
        if self._time == 0:
            parts: tuple[Part, ...] = (Part(coefficients=(1.0,), clip=C1),)
            return Ask(
                query=Query(points=(self.theta,), parts=parts, excess=excess),
                batch=self._schedule.first_batch,
            )
        if gamma == 1:
            parts = (Part(coefficients=(1.0,), clip=C1),)
            return Ask(query=Query(points=(self.theta,), parts=parts, excess=excess), batch=self._schedule.batch)
        parts = (
            Part(coefficients=(1.0, -1.0), clip=C2, weight=1 - gamma, name="gradient difference"),
            Part(coefficients=(1.0, 0.0), clip=C1, weight=gamma),
        )
        points = (self.theta, self._previous)
        return Ask(query=Query(points=points, parts=parts, excess=excess), batch=self._schedule.batch)

    def tell(self, released: Tensor) -> None:
        """v^t = release + (1−γ)·v^{t−1} (lines 3 and 8), then θ^{t+1} (line 5)."""
        if self._time > 0:
            released = released + (1 - self._settings.momentum) * self.direction
        self.direction = released
        self._previous, self.theta = self.theta, self._stepper.advance(self.theta, self.direction)
        self._time += 1

    def state_dict(self) -> dict[str, Any]:
        """θ^t, θ^{t−1}, v^{t−1}, t and the stepper's state."""
        return {
            "theta": self.theta,
            "previous": self._previous,
            "direction": self.direction,
            "time": self._time,
            "stepper": self._stepper.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.theta, self._previous = state["theta"], state["previous"]
        self.direction, self._time = state["direction"], state["time"]
        self._stepper.load_state_dict(state["stepper"])
