"""DiSK: a simplified Kalman filter on the private gradients (Zhang et al. 2025, Algorithm 1).

Line numbers in comments are those of their Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients import ClipRule, Part, Query
from dpsrm.methods.method import Ask, DirectionWalk, Method, Schedule, need_positive
from dpsrm.methods.postprocessing import Stepper


@dataclass(frozen=True, kw_only=True)
class Disk(Method):
    """Settings of DiSK, d = θ^t − θ^{t−1} and a = (1−κ)/(κ·g).

        r^t = mean over B_t of clip(a·∇f_i(θ^t + g·d) + (1−a)·∇f_i(θ^t), C) + noise
        v^t = (1−κ)·v^{t−1} + κ·r^t

    Args:
        max_grad_norm: C, the clip of the combination as a whole.
        kappa: κ in (0, 1], the filter's gain.
        lookahead: g ≠ 0; the first gradient is taken at θ^t + g·d.
        clip: "flat" or "auto" (AUTO-S).

    Guarantee: one record moves the released mean by at most 2·C/b under replace-one adjacency, C/b under add/remove.
    θ^t, d and v^{t−1} are functions of earlier releases.

    Edge cases: g = −1 is DP-SRM with γ = κ and a joint clip of κ·C; κ = 1 is DP-SGD; g = (1−κ)/κ needs only the
    gradient at the look-ahead point. At t = 0, where d = 0, the release is the plain gradient and v⁰ = r⁰.

    Source: Zhang, Bu, Balle, Hong, Razaviyayn & Mirrokni 2025, "DiSK".

    >>> round(Disk(kappa=0.5, lookahead=-1.0).share, 12)
    -1.0
    """

    name: ClassVar[str] = "disk"
    summary: ClassVar[str] = "DiSK: a simplified Kalman filter on jointly clipped combinations of two gradients"
    guarantee: ClassVar[str] = (
        "one record moves each released mean by at most 2*C/b under replace-one, half of it under add-remove; "
        "Gaussian noise, amplified by sampling"
    )
    use: ClassVar[str] = "deep nets with small steps, when one clip is easier to tune than srm's two"
    gradients_per_example: ClassVar[int] = 2

    max_grad_norm: float = 1.0
    kappa: float = 0.7
    lookahead: float = 0.5
    clip: ClipRule = ClipRule.FLAT

    def __post_init__(self) -> None:
        """Refuse settings that are not a method."""
        need_positive(max_grad_norm=self.max_grad_norm)
        need(0 < self.kappa <= 1, "kappa must be in (0, 1]", kappa=self.kappa)
        ok = math.isfinite(self.lookahead) and self.lookahead != 0
        need(ok, "lookahead must be finite and not 0", lookahead=self.lookahead, remedy="try 0.5, or -1 for DP-SRM")
        object.__setattr__(self, "clip", ClipRule(self.clip))

    @property
    def share(self) -> float:
        """a = (1−κ)/(κ·g), the weight of the look-ahead gradient."""
        return (1 - self.kappa) / (self.kappa * self.lookahead)

    def unclipped(self) -> Disk:
        """The same filter on exact gradients."""
        return replace(self, max_grad_norm=math.inf, clip=ClipRule.FLAT)

    def begin(self, theta: Tensor, *, schedule: Schedule, stepper: Stepper) -> DiskWalk:
        """Start from θ⁰."""
        return DiskWalk(self, theta, schedule, stepper)


class DiskWalk(DirectionWalk):
    """DiSK under way."""

    def __init__(self, settings: Disk, theta: Tensor, schedule: Schedule, stepper: Stepper) -> None:
        """Start from θ⁰, with nothing released yet."""
        super().__init__(theta, schedule, stepper)
        self._settings = settings

    def ask(self) -> Ask:
        """The combination at the look-ahead point and at θ^t (lines 3–5); a point of weight 0 is left out."""
        share = self._settings.share if self.time > 0 else 0.0
        ahead = self.theta + self._settings.lookahead * (self.theta - self.previous)
        used = [(c, point) for c, point in ((share, ahead), (1 - share, self.theta)) if c != 0]
        parts = _parts(tuple([c for c, _ in used]), self._settings.max_grad_norm, self._settings.clip)
        return Ask(query=Query(points=tuple([point for _, point in used]), parts=parts), batch=self.batch)

    def weights(self) -> tuple[float, float]:
        """The filter (line 6); the step of line 7 follows."""
        kappa = self._settings.kappa if self.time > 0 else 1.0
        return 1 - kappa, kappa


@lru_cache(maxsize=16)
def _parts(coefficients: tuple[float, ...], clip: float, rule: ClipRule) -> tuple[Part]:
    """The combination under its clip: the same at every step after the first."""
    return (Part(coefficients=coefficients, clip=clip, name="look-ahead gradient", rule=rule),)
