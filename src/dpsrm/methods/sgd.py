"""DP-SGD: clip, mean, noise, step (Abadi et al. 2016, Algorithm 1), with momentum on the released gradients.

Line numbers in comments are those of Abadi et al.'s Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients import ClipRule, Part, Query
from dpsrm.methods.method import Ask, DirectionWalk, Method, Schedule, need_positive
from dpsrm.methods.postprocessing import Stepper


@dataclass(frozen=True, kw_only=True)
class Sgd(Method):
    """Settings of DP-SGD.

        r^t = mean over B_t of clip(∇f_i(θ^t), C1) + noise
        v^t = r^t  ·  EMA: β·v^{t−1} + (1−β)·r^t (v⁰ = r⁰)  ·  heavy ball: β·v^{t−1} + r^t

    Args:
        max_grad_norm: C1.
        momentum: β in [0, 1); 0 for none.
        momentum_kind: "ema" keeps the size of a step, "heavy-ball" multiplies it by up to 1/(1−β).
        clip: "flat", or "auto" (AUTO-S), which makes C1 a mere factor of the learning rate.

    Guarantee: one record moves the released mean by at most 2·C1/b under replace-one adjacency, C1/b under add/remove.
    Momentum, and any optimizer fed with v, are post-processing.

    Edge cases: β = 0 is plain DP-SGD; infinite C1 without noise is SGD; a batch of all records is DP-GD (`gd`).

    Departs from the paper: another accountant than its moments accountant; sampling without replacement is an option.

    Source: Abadi et al. 2016; Bu et al. 2023 for AUTO-S.

    >>> Sgd(max_grad_norm=2.0, momentum=0.9).unclipped().max_grad_norm
    inf
    """

    name: ClassVar[str] = "sgd"
    summary: ClassVar[str] = "DP-SGD: clip, mean, noise; with momentum and any torch optimizer on the released gradient"
    guarantee: ClassVar[str] = (
        "one record moves each released mean by at most 2*C1/b under replace-one, half of it under add-remove; "
        "Gaussian noise, amplified by sampling"
    )
    use: ClassVar[str] = "the reference to beat; half the gradients of srm per step"

    max_grad_norm: float = 1.0
    momentum: float = 0.0
    momentum_kind: Literal["ema", "heavy-ball"] = "ema"
    clip: ClipRule = ClipRule.FLAT

    def __post_init__(self) -> None:
        """Refuse settings that are not a method."""
        need_positive(max_grad_norm=self.max_grad_norm)
        need(0 <= self.momentum < 1, "momentum must be in [0, 1)", momentum=self.momentum)
        kinds = ("ema", "heavy-ball")
        need(self.momentum_kind in kinds, f"momentum_kind must be one of {', '.join(kinds)}", got=self.momentum_kind)
        object.__setattr__(self, "clip", ClipRule(self.clip))

    def unclipped(self) -> Sgd:
        """SGD with the same momentum."""
        return replace(self, max_grad_norm=math.inf, clip=ClipRule.FLAT)

    def begin(self, theta: Tensor, *, schedule: Schedule, stepper: Stepper) -> SgdWalk:
        """Start from θ⁰."""
        return SgdWalk(self, theta, schedule, stepper)


class SgdWalk(DirectionWalk):
    """DP-SGD under way."""

    def __init__(self, settings: Sgd, theta: Tensor, schedule: Schedule, stepper: Stepper) -> None:
        """Start from θ⁰, with nothing released yet."""
        super().__init__(theta, schedule, stepper)
        self._settings = settings
        self._parts = (Part(coefficients=(1.0,), clip=settings.max_grad_norm, rule=settings.clip),)

    def ask(self) -> Ask:
        """The clipped gradients at θ^t (lines 3–5; the airlock adds the noise of line 5)."""
        return Ask(query=Query(points=(self.theta,), parts=self._parts), batch=self.batch)

    def weights(self) -> tuple[float, float]:
        """Momentum; the descent of line 6 follows."""
        beta = self._settings.momentum if self.time > 0 else 0.0
        if self._settings.momentum_kind == "ema":
            return beta, 1 - beta
        if self._settings.momentum_kind == "heavy-ball":
            return beta, 1.0
        raise AssertionError(self._settings.momentum_kind)
