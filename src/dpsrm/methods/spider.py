"""Private SPIDER: restarts over a large batch, clipped gradient differences in between (Arora et al. 2023; DIFF2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients import ClipRule, Part, Query
from dpsrm.methods.method import Ask, DirectionWalk, Method, Schedule, Stage, need_positive, radius
from dpsrm.methods.postprocessing import Stepper


@dataclass(frozen=True, kw_only=True)
class Spider(Method):
    """Settings of private SPIDER, d = θ^t − θ^{t−1}.

        every k-th step: v^t = mean over B0 of clip(∇f_i(θ^t), C1) + noise
        in between:      v^t = v^{t−1} + mean over B of clip(∇f_i(θ^t) − ∇f_i(θ^{t−1}), min(L·‖d‖, C2)) + noise

    Args:
        max_grad_norm: C1.
        smoothness: L, the clip of a difference per unit of distance.
        max_diff_norm: C2, a cap on the difference's clip; ∞ for none.
        period: k. Restarts are over `training.first_batch` records (all n is the textbook choice).
        clip: "flat" or "auto" (AUTO-S), for the restarts.

    Guarantee: one record moves a restart's mean by at most 2·C1/b0 and a difference's by at most 2·min(L·‖d‖, C2)/b
    under replace-one adjacency, half of it under add/remove. ‖d‖ is a function of earlier releases.

    Edge cases: k = 1 is DP-SGD over B0. Without momentum's forgetting the noise of k releases adds up in v.

    Source: Fang et al. 2018 (SPIDER); Arora, Bassily, González, Guzmán, Menart & Ullah 2023, Algorithm 1; Murata &
    Suzuki 2023 (DIFF2) for the radius. Departs from them: a fixed period instead of restarts by accumulated distance.

    >>> Spider(period=4).stages(Schedule(steps=10, batch=5, first_batch=50))
    (Stage(batch=50, count=3, zcdp=False), Stage(batch=5, count=7, zcdp=False))
    """

    name: ClassVar[str] = "spider"
    summary: ClassVar[str] = "private SPIDER: restarts over a large batch, clipped gradient differences in between"
    guarantee: ClassVar[str] = (
        "one record moves a restart's mean by at most 2*C1/b0 and a difference's by at most 2*min(L*d, C2)/b (d: the "
        "last step's length) under replace-one, half of it under add-remove; Gaussian noise, amplified by sampling"
    )
    use: ClassVar[str] = "smooth problems with small steps and a full-batch restart that is affordable"
    gradients_per_example: ClassVar[int] = 2

    max_grad_norm: float = 1.0
    smoothness: float = 1.0
    max_diff_norm: float = math.inf
    period: int = 10
    clip: ClipRule = ClipRule.FLAT

    def __post_init__(self) -> None:
        """Refuse settings that are not a method."""
        need_positive(max_grad_norm=self.max_grad_norm, smoothness=self.smoothness, max_diff_norm=self.max_diff_norm)
        need(self.period >= 1, "period must be 1 or more", period=self.period)
        object.__setattr__(self, "clip", ClipRule(self.clip))

    def unclipped(self) -> Spider:
        """SPIDER without privacy."""
        return replace(self, max_grad_norm=math.inf, smoothness=math.inf, max_diff_norm=math.inf, clip=ClipRule.FLAT)

    def stages(self, schedule: Schedule) -> tuple[Stage, ...]:
        """Restarts over `first_batch`, the rest over `batch`."""
        restarts = math.ceil(schedule.steps / self.period)
        both = Stage(schedule.first_batch, restarts), Stage(schedule.batch, schedule.steps - restarts)
        return tuple(stage for stage in both if stage.count)

    def begin(self, theta: Tensor, *, schedule: Schedule, stepper: Stepper) -> SpiderWalk:
        """Start from θ⁰."""
        return SpiderWalk(self, theta, schedule, stepper)


class SpiderWalk(DirectionWalk):
    """SPIDER under way."""

    def __init__(self, settings: Spider, theta: Tensor, schedule: Schedule, stepper: Stepper) -> None:
        """Start from θ⁰, with nothing released yet."""
        super().__init__(theta, schedule, stepper)
        self._settings = settings

    @property
    def _restarts(self) -> bool:
        """Whether the next release starts v afresh."""
        return self.time % self._settings.period == 0

    def ask(self) -> Ask:
        """The gradients, or their differences from the last step."""
        s = self._settings
        if self._restarts:
            part = Part(coefficients=(1.0,), clip=s.max_grad_norm, rule=s.clip)
            return Ask(query=Query(points=(self.theta,), parts=(part,)), batch=self.schedule.first_batch)
        clip = radius(s.smoothness, self.distance(), at_most=s.max_diff_norm)
        part = Part(coefficients=(1.0, -1.0), clip=clip, name="gradient difference")
        return Ask(query=Query(points=(self.theta, self.previous), parts=(part,)), batch=self.schedule.batch)

    def weights(self) -> tuple[float, float]:
        """Start afresh, or add the difference."""
        return (0.0, 1.0) if self._restarts else (1.0, 1.0)
