"""STORM: recursive momentum without privacy (Cutkosky & Orabona 2019); DP-SRM with no clip and no noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.methods.method import Method, Schedule
from dpsrm.methods.postprocessing import Stepper
from dpsrm.methods.srm import Srm, SrmWalk


@dataclass(frozen=True, kw_only=True)
class Storm(Method):
    """Settings of STORM.

        v^t = mean over B_t of [∇f_i(θ^t) − (1−γ)·∇f_i(θ^{t−1})] + (1−γ)·v^{t−1}

    Args:
        gamma: the momentum's weight γ in (0, 1].
        gamma_schedule: as in DP-SRM.

    Guarantee: none. It is the non-private baseline, and refuses a privacy budget.

    Departs from the paper: constant steps (or those of any optimizer) instead of its adaptive ones.

    >>> Storm().private
    False
    """

    name: ClassVar[str] = "storm"
    summary: ClassVar[str] = "STORM: recursive momentum without privacy"
    guarantee: ClassVar[str] = "none: not private"
    use: ClassVar[str] = "the non-private baseline of srm (for that of another method, train it with private = false)"
    gradients_per_example: ClassVar[int] = 2
    private: ClassVar[bool] = False

    gamma: float = 0.5
    gamma_schedule: str = "constant"

    def __post_init__(self) -> None:
        """Refuse settings that are not a method."""
        need(0 < self.gamma <= 1, "gamma must be in (0, 1]", gamma=self.gamma)
        self._srm()

    def unclipped(self) -> Storm:
        """Itself: there is no clip."""
        return self

    def begin(self, theta: Tensor, *, schedule: Schedule, stepper: Stepper) -> SrmWalk:
        """Start from θ⁰."""
        return self._srm().begin(theta, schedule=schedule, stepper=stepper)

    def _srm(self) -> Srm:
        """DP-SRM without clips."""
        return Srm(gamma=self.gamma, gamma_schedule=self.gamma_schedule, max_grad_norm=math.inf, max_diff_norm=math.inf)
