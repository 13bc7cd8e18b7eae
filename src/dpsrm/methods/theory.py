"""The planner of DP-SRM's theory mode: the parameters of the paper's utility theorem, and which conditions hold.

Source: Theorem `thm:utility` and its proof; the absolute constants are those of the proof where it fixes them
(T, γ, b, b0, n0) and 1 where it does not (ζ).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from dpsrm.core.errors import need
from dpsrm.gradients import Excess
from dpsrm.methods.method import Schedule
from dpsrm.methods.srm import Srm
from dpsrm.methods.steps import AdaptiveStep


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What theory mode takes for granted.

    Args:
        lipschitz: G, a bound on every example's gradient norm, everywhere.
        smoothness: L, the Lipschitz constant of every example's gradient.
        gap: D_F = F(θ⁰) − min F.
        dimension: d, the number of parameters.
        n: the number of records.
        epsilon, delta: the budget.
    """

    lipschitz: float
    smoothness: float
    gap: float
    dimension: int
    n: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Refuse constants that make no problem."""
        for field in fields(self):
            value = getattr(self, field.name)
            need(0 < value < math.inf, f"{field.name} must be positive and finite", **{field.name: value})
        need(self.delta < 1, "delta must be below 1", delta=self.delta)


@dataclass(frozen=True)
class Condition:
    """One condition of the theorem, with the numbers."""

    text: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class TheoryPlan:
    """The theorem's parameters for given assumptions.

        n0 = L·D_F/G²,  ζ = (G·L·D_F·d·ln(1/δ))^{1/3}/(n·ε)^{2/3},  γ = √2·ζ/(n0·G),
        b = G/(n0·ζ),  b0 = G³/(ζ·L·D_F),  T = ⌊4·n0·L·D_F/ζ²⌋ + 1

    `batch` and `first_batch` are b and b0 rounded up.
    """

    assumptions: Assumptions
    n0: float
    zeta: float
    gamma: float
    b: float
    b0: float
    steps: int
    conditions: tuple[Condition, ...]

    @property
    def batch(self) -> int:
        """b as a number of records."""
        return math.ceil(self.b)

    @property
    def first_batch(self) -> int:
        """b0 as a number of records."""
        return math.ceil(self.b0)

    @property
    def schedule(self) -> Schedule:
        """The schedule for training."""
        return Schedule(steps=self.steps, batch=self.batch, first_batch=self.first_batch)

    def method(self, *, excess: Excess = Excess.RAISE) -> Srm:
        """DP-SRM with the theorem's bounds: C1 = G, C2 = ζ/n0."""
        diff = self.zeta / self.n0
        return Srm(max_grad_norm=self.assumptions.lipschitz, max_diff_norm=diff, gamma=self.gamma, excess=excess)

    @property
    def stepper(self) -> AdaptiveStep:
        """The theorem's adaptive step size."""
        return AdaptiveStep(zeta=self.zeta, n0=self.n0, lipschitz=self.assumptions.smoothness)


def plan_theory(a: Assumptions) -> TheoryPlan:
    """The parameters of the utility theorem, and which of its conditions hold.

    >>> a = Assumptions(lipschitz=1.0, smoothness=1.0, gap=1.0, dimension=8, n=10**4, epsilon=1.0, delta=math.exp(-8))
    >>> plan = plan_theory(a)
    >>> plan.n0, round(plan.zeta, 6), plan.steps, plan.batch
    (1.0, 0.008618, 53861, 117)
    """
    G, L, D, d = a.lipschitz, a.smoothness, a.gap, a.dimension
    n0 = L * D / G**2
    zeta = (G * L * D * d * math.log(1 / a.delta)) ** (1 / 3) / (a.n * a.epsilon) ** (2 / 3)
    gamma = math.sqrt(2) * zeta / (n0 * G)
    b, b0 = G / (n0 * zeta), G**3 / (zeta * L * D)
    steps = math.floor(4 * n0 * L * D / zeta**2) + 1
    return TheoryPlan(
        assumptions=a,
        n0=n0,
        zeta=zeta,
        gamma=gamma,
        b=b,
        b0=b0,
        steps=steps,
        conditions=_conditions(a, gamma, b, b0, steps),
    )


def _conditions(a: Assumptions, gamma: float, b: float, b0: float, steps: int) -> tuple[Condition, ...]:
    """The theorem's conditions, each with its numbers, at the theorem's noise (β = 1/2)."""
    G, LD, log = a.lipschitz, a.smoothness * a.gap, math.log(1 / a.delta)
    ne = a.n * a.epsilon
    enough = max(G**8 * log**2 / (LD * a.dimension) ** 4, G**2 * math.sqrt(a.dimension * log) / LD)
    beta = 0.5
    alpha = log / ((1 - beta) * a.epsilon) + 1
    s2 = 3.5 * min(b, b0) ** 2 * steps * alpha / (beta * a.n**2 * a.epsilon)  # σ²b²/4R²; the proof's 7 is a slip
    tau = max(b, b0) / a.n
    inside = tau * alpha * (1 + s2)
    limit = 2 / 3 * s2 * math.log(1 / inside) if inside < 1 else -math.inf
    return (
        Condition(f"γ ≤ 1: γ = {gamma:.4g}", gamma <= 1),
        Condition(f"batches fit in the data: b = {b:.4g}, b0 = {b0:.4g}, n = {a.n}", max(b, b0) <= a.n),
        Condition(f"n·ε ≥ max(G⁸log²/(L·D·d)⁴, G²√(d·log)/(L·D)): {ne:.4g} ≥ {enough:.4g}", ne >= enough),
        Condition(f"σ'² ≥ 0.7: σ'² = {s2:.4g}", s2 >= 0.7),
        Condition(f"τ·α·(1+σ'²) < 1: {inside:.4g}", inside < 1),
        Condition(f"α − 1 ≤ ⅔σ'²·ln(1/(τα(1+σ'²))): {alpha - 1:.4g} ≤ {limit:.4g}", alpha - 1 <= limit),
    )
