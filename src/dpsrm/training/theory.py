"""Theory mode as settings: constants given, or planned from the utility theorem."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsrm.core.errors import need
from dpsrm.gradients import Excess
from dpsrm.methods import AdaptiveStep, Assumptions, Schedule, Srm, plan_theory
from dpsrm.training.settings import Privacy, Training


@dataclass(frozen=True, kw_only=True)
class Theory:
    """Algorithm 1 as the paper proves it: declared constants, adaptive step, no clipping.

    Args:
        lipschitz: G, which no example's gradient norm exceeds anywhere.
        smoothness: L, the Lipschitz constant of every example's gradient.
        gap: D_F = F(θ⁰) − min F; with it the utility theorem plans T, ζ, n0, γ, b, b0.
        zeta, n0: instead of `gap`: ζ and n0 as given; T, b, b0 then come from the training settings.
        excess: "raise" stops at an example that breaks the declared constants; "clip" clips it.
    """

    lipschitz: float
    smoothness: float
    gap: float | None = None
    zeta: float | None = None
    n0: float | None = None
    excess: Excess = Excess.RAISE

    def __post_init__(self) -> None:
        """Refuse half-given constants."""
        given = self.zeta is not None and self.n0 is not None
        need(
            (self.gap is not None) != given and (self.zeta is None) == (self.n0 is None),
            "theory mode takes either gap (planned) or both zeta and n0 (given)",
            gap=self.gap,
            zeta=self.zeta,
            n0=self.n0,
        )
        for name in ("lipschitz", "smoothness", "gap", "zeta", "n0"):
            value = getattr(self, name)
            need(value is None or 0 < value < math.inf, f"{name} must be positive and finite", **{name: value})
        object.__setattr__(self, "excess", Excess(self.excess))

    def resolve(
        self, training: Training, privacy: Privacy | None, *, n: int, dimension: int
    ) -> tuple[Srm, Schedule, AdaptiveStep]:
        """The method, schedule and step rule this mode stands for."""
        if self.gap is not None:
            if privacy is None:
                need(
                    False, "planning from the utility theorem needs a budget", remedy="give zeta and n0 instead of gap"
                )
                raise AssertionError
            plan = plan_theory(
                Assumptions(
                    lipschitz=self.lipschitz,
                    smoothness=self.smoothness,
                    gap=self.gap,
                    dimension=dimension,
                    n=n,
                    epsilon=privacy.epsilon,
                    delta=privacy.delta,
                )
            )
            broken = [c.text for c in plan.conditions[:2] if not c.holds]
            need(not broken, f"the theorem's parameters cannot be run: {'; '.join(broken)}", remedy="give zeta and n0")
            return plan.method(excess=self.excess), plan.schedule, plan.stepper
        if self.zeta is None or self.n0 is None:
            raise AssertionError("checked in __post_init__")
        gamma = min(1.0, math.sqrt(2) * self.zeta / (self.n0 * self.lipschitz))
        diff = self.zeta / self.n0
        method = Srm(max_grad_norm=self.lipschitz, max_diff_norm=diff, gamma=gamma, excess=self.excess)
        stepper = AdaptiveStep(zeta=self.zeta, n0=self.n0, lipschitz=self.smoothness)
        return method, training.schedule(n), stepper
