"""DP-SRM, Algorithm 1 of Wang, Jayaraman, Evans & Gu: differentially private stochastic recursive momentum.

Line numbers in comments are those of Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients import ClipRule, Excess, Part, Query
from dpsrm.methods.method import Ask, DirectionWalk, Method, Schedule, need_positive, radius
from dpsrm.methods.postprocessing import Stepper
from dpsrm.methods.schedules import DECAYS, decay


@dataclass(frozen=True, kw_only=True)
class Srm(Method):
    """Settings of DP-SRM.

        v⁰ = mean over B0 of clip(∇f_i(θ⁰), C1) + noise
        v^t = mean over B_t of [(1−γ)·clip(∇f_i(θ^t) − ∇f_i(θ^{t−1}), C2) + γ·clip(∇f_i(θ^t), C1)]
              + (1−γ)·v^{t−1} + noise

    Args:
        max_grad_norm: C1 (theory mode: the Lipschitz constant G).
        max_diff_norm: C2 (theory mode: ζ/n0).
        gamma: the momentum's weight γ in (0, 1], or "auto" = min(1, C2/C1), which makes both parts of the noise equal.
        excess: "clip" scales an example that exceeds a bound down to it; "raise" stops (theory mode's assumption).
        clip: "flat", or "auto" (AUTO-S) for the gradient part; the difference's clip is always flat.
        relative: κ: the difference's clip is C2_t = min(C2, κ·‖θ^t − θ^{t−1}‖), which shrinks with the step.
        joint_norm: C: clip h_i = ∇f_i(θ^t) − (1−γ)·∇f_i(θ^{t−1}) as a whole at C instead of its two parts.
        gamma_schedule: "constant", or how γ_t falls from 1 (DP-SGD) towards γ: "linear", "cosine", "sqrt".

    Guarantee: one record moves the mean at t by at most 2·C1/b0 (t = 0) and 2·((1−γ)·C2 + γ·C1)/b (t > 0; with
    `joint_norm` 2·C/b) under replace-one adjacency. (1−γ)·v^{t−1}, C2_t and γ_t are functions of earlier releases and
    public numbers.

    Edge cases: γ = 1 is DP-SGD; infinite clips without noise are STORM; a first batch of all n records is the variant
    with a full start.

    Departs from the paper: its experiments write the sensitivity with C1 and C2 swapped, and set γ = C2, which is
    C2/C1 only for C1 = 1. `clip`, `relative`, `joint_norm` and `gamma_schedule` are not in it.

    >>> Srm(max_grad_norm=2.0, max_diff_norm=0.5).momentum
    0.25
    """

    name: ClassVar[str] = "srm"
    summary: ClassVar[str] = "DP-SRM: recursive momentum; low noise at each instant without the lag of momentum"
    guarantee: ClassVar[str] = (
        "one record moves each released mean by at most 2((1-gamma)*C2 + gamma*C1)/b (the first by 2*C1/b0) under "
        "replace-one, half of it under add-remove; Gaussian noise, amplified by sampling"
    )
    use: ClassVar[str] = (
        "few, large steps over many records, and deep nets; taken where training settings are named but no method"
    )
    gradients_per_example: ClassVar[int] = 2

    max_grad_norm: float = 1.0
    max_diff_norm: float = 0.5
    gamma: float | Literal["auto"] = "auto"
    excess: Excess = Excess.CLIP
    clip: ClipRule = ClipRule.FLAT
    relative: float | None = None
    joint_norm: float | None = None
    gamma_schedule: str = "constant"

    def __post_init__(self) -> None:
        """Refuse settings that are not a method."""
        need(self.max_grad_norm > 0, "max_grad_norm (C1) must be positive", max_grad_norm=self.max_grad_norm)
        need(self.max_diff_norm > 0, "max_diff_norm (C2) must be positive", max_diff_norm=self.max_diff_norm)
        auto = self.gamma == "auto"
        number = isinstance(self.gamma, (int, float)) and not isinstance(self.gamma, bool)
        need(auto or number, 'gamma must be a number or "auto"', gamma=self.gamma)
        need(0 < self.momentum <= 1, "gamma must be in (0, 1]", gamma=self.gamma, remedy='try gamma = "auto"')
        object.__setattr__(self, "excess", Excess(self.excess))
        object.__setattr__(self, "clip", ClipRule(self.clip))
        self._check_variants()

    def _check_variants(self) -> None:
        """Refuse variants that contradict each other."""
        need_positive(**{n: v for n in ("relative", "joint_norm") if (v := getattr(self, n)) is not None})
        both = self.relative is not None and self.joint_norm is not None
        need(not both, "a joint clip has no difference to clip relatively", relative=self.relative)
        raises = self.excess is Excess.RAISE
        need(not raises or self.clip is ClipRule.FLAT, 'theory mode clips nothing: clip must be "flat"')
        need(
            self.gamma_schedule in DECAYS,
            f"gamma_schedule must be one of {', '.join(DECAYS)}",
            gamma_schedule=self.gamma_schedule,
        )

    @property
    def momentum(self) -> float:
        """γ as a number."""
        if self.gamma != "auto":
            return float(self.gamma)
        ratio = self.max_diff_norm / self.max_grad_norm
        return min(1.0, ratio) if math.isfinite(ratio) else 1.0

    def gamma_at(self, time: int, steps: int) -> float:
        """γ_t for t = 1 … T−1: γ, or γ + (1−γ)·decay.

        >>> [Srm(gamma=0.5, gamma_schedule="linear").gamma_at(t, 5) for t in (1, 3)]
        [1.0, 0.75]
        """
        if self.gamma_schedule == "constant":
            return self.momentum
        return self.momentum + (1 - self.momentum) * decay(self.gamma_schedule, time - 1, steps - 1)

    def unclipped(self) -> Srm:
        """STORM: the same γ_t, no clips."""
        return replace(
            self,
            gamma=self.momentum,
            max_grad_norm=math.inf,
            max_diff_norm=math.inf,
            clip=ClipRule.FLAT,
            relative=None,
            joint_norm=None,
        )

    def begin(self, theta: Tensor, *, schedule: Schedule, stepper: Stepper) -> SrmWalk:
        """Start from θ⁰; θ^T needs no v^T, so v⁰ … v^{T−1} are all that is ever released."""
        return SrmWalk(self, theta, schedule, stepper)


class SrmWalk(DirectionWalk):
    """DP-SRM under way: θ^t, θ^{t−1} and v^{t−1}."""

    def __init__(self, settings: Srm, theta: Tensor, schedule: Schedule, stepper: Stepper) -> None:
        """Start from θ⁰, with nothing released yet."""
        super().__init__(theta, schedule, stepper)
        self._settings = settings

    @property
    def _gamma(self) -> float:
        """γ_t; 1 at t = 0, where there is nothing to go on from."""
        return 1.0 if self.time == 0 else self._settings.gamma_at(self.time, self.schedule.steps)

    def ask(self) -> Ask:
        """The gradients at θ⁰ (lines 1–2), then gradient differences and gradients at θ^t (lines 6–7)."""
        gamma = self._gamma
        if gamma == 1:
            gradient = Part(coefficients=(1.0,), clip=self._settings.max_grad_norm, rule=self._settings.clip)
            query = Query(points=(self.theta,), parts=(gradient,), excess=self._settings.excess)
        else:
            points = (self.theta, self.previous)
            query = Query(points=points, parts=self._parts(gamma), excess=self._settings.excess)
        return Ask(query=query, batch=self.batch)

    def _parts(self, gamma: float) -> tuple[Part, ...]:
        """The difference and the gradient, each with its clip, or both under one."""
        s = self._settings
        if s.joint_norm is not None:
            return _one_part(s.joint_norm, gamma)
        C2 = s.max_diff_norm
        if s.relative is not None:
            C2 = radius(s.relative, self.distance(), at_most=C2)
        return _two_parts(C2, s.max_grad_norm, gamma, s.clip)

    def weights(self) -> tuple[float, float]:
        """v^t = release + (1−γ)·v^{t−1} (lines 3 and 8); θ^{t+1} follows (line 5)."""
        return 1 - self._gamma, 1.0


@lru_cache(maxsize=16)
def _one_part(clip: float, gamma: float) -> tuple[Part]:
    """The recursive gradient as a whole under its one clip: the same at every step unless γ changes."""
    return (Part(coefficients=(1.0, gamma - 1), clip=clip, name="recursive gradient"),)


@lru_cache(maxsize=16)
def _two_parts(C2: float, C1: float, gamma: float, rule: ClipRule) -> tuple[Part, Part]:
    """The clipped difference and the clipped gradient, weighted: the same at every step unless C2 or γ changes."""
    return (
        Part(coefficients=(1.0, -1.0), clip=C2, weight=1 - gamma, name="gradient difference"),
        Part(coefficients=(1.0, 0.0), clip=C1, weight=gamma, rule=rule),
    )
