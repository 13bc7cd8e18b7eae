"""DP-SRM's theory mode: its settings, and the parameters of the paper's utility theorem or its corollary.

Source: `thm:utility` and its proof. The absolute constants are those of the proof where it fixes them (T, γ, b, b0,
n0); that of ζ, which it leaves open, is `zeta_factor`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dpsrm.accounting.guarantee import Condition
from dpsrm.accounting.paper import conditions as lemma_conditions
from dpsrm.core.errors import InputError, need
from dpsrm.core.events import GaussianRelease, Sampling, Scheme
from dpsrm.gradients import Excess
from dpsrm.methods.assumptions import Assumptions
from dpsrm.methods.method import Schedule
from dpsrm.methods.srm import Srm
from dpsrm.methods.steps import AdaptiveStep
from dpsrm.methods.theorem_noise import (
    TheoremNoise,
    best_theorem_noise,
    corollary_batch,
    corollary_steps,
    theorem_noise,
)

Batches = Literal["theorem", "corollary"]
EpsilonDelta = tuple[float, float]
"""(ε, δ)."""


@dataclass(frozen=True, kw_only=True)
class TheoryPlan:
    """The theorem's parameters for given assumptions.

        n0 = L·D_F/G²,  ζ = zeta_factor·(G·L·D_F·d·ln(1/δ))^{1/3}/(n·ε)^{2/3},  γ = √2·ζ/(n0·G),
        b = G/(n0·ζ),  b0 = G³/(ζ·L·D_F),  T = ⌊4·n0·L·D_F/ζ²⌋ + 1

    With the corollary's batches b = b0 = n·√(ε/T). `batch` and `first_batch` are b and b0 in records: the theorem's
    rounded up, the corollary's down. The last three conditions are those of Lemma 1 at the privacy theorem's noise.
    """

    assumptions: Assumptions
    n0: float
    zeta: float
    gamma: float
    b: float
    b0: float
    batch: int
    first_batch: int
    steps: int
    noise_of_theorem: TheoremNoise
    conditions: tuple[Condition, ...]

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
        return AdaptiveStep(zeta=self.zeta, n0=self.n0, smoothness=self.assumptions.smoothness)

    @property
    def runnable(self) -> bool:
        """Whether γ ≤ 1 and the batches fit in the data, without which no step can be made."""
        return all(condition.holds for condition in self.conditions[:2])


def plan_theory(
    a: Assumptions, *, batches: Batches = "theorem", beta: float = 0.5, zeta_factor: float = 1.0
) -> TheoryPlan:
    """The parameters of the utility theorem, and which of its conditions hold.

    >>> a = Assumptions(lipschitz=1.0, smoothness=1.0, gap=1.0, dimension=8, n=10**4, epsilon=1.0, delta=math.exp(-8))
    >>> plan = plan_theory(a)
    >>> plan.n0, round(plan.zeta, 6), plan.steps, plan.batch
    (1.0, 0.008618, 53861, 117)
    """
    G, L, D = a.lipschitz, a.smoothness, a.gap
    n0 = L * D / G**2
    zeta = zeta_factor * (G * L * D * a.dimension * math.log(1 / a.delta)) ** (1 / 3) / (a.n * a.epsilon) ** (2 / 3)
    gamma = math.sqrt(2) * zeta / (n0 * G)
    steps = math.floor(4 * n0 * L * D / zeta**2) + 1
    if batches == "corollary":
        b = b0 = a.n * math.sqrt(a.epsilon / steps)
        batch = first = corollary_batch(a.n, steps, epsilon=a.epsilon)
    elif batches == "theorem":
        b, b0 = G / (n0 * zeta), G**3 / (zeta * L * D)
        batch, first = math.ceil(b), math.ceil(b0)
    else:
        raise InputError(f"batches must be theorem or corollary; got {batches!r}")
    noise = theorem_noise(batch / a.n, steps, epsilon=a.epsilon, delta=a.delta, beta=beta)
    return TheoryPlan(
        assumptions=a,
        n0=n0,
        zeta=zeta,
        gamma=gamma,
        b=b,
        b0=b0,
        batch=batch,
        first_batch=first,
        steps=steps,
        noise_of_theorem=noise,
        conditions=_utility_conditions(a, gamma, b, b0)
        + (_threshold(a, steps, beta) if batches == "corollary" else ())
        + _lemma_conditions(a, batch, noise),
    )


def _threshold(a: Assumptions, steps: int, beta: float) -> tuple[Condition]:
    """The corollary's condition on T."""
    least = corollary_steps(epsilon=a.epsilon, delta=a.delta, beta=beta)
    return (Condition(name="corollary", holds=steps >= least, text=f"T ≥ {least}: T = {steps}"),)


def _lemma_conditions(a: Assumptions, batch: int, noise: TheoremNoise) -> tuple[Condition, ...]:
    """Lemma 1's conditions at the theorem's noise; none where nothing is sampled."""
    if not 1 <= batch < a.n:
        return ()
    drawn = Sampling(scheme=Scheme.WOR, population=a.n, batch=batch)
    return lemma_conditions(GaussianRelease(noise_multiplier=noise.noise_multiplier, sampling=drawn), noise.order)


def _utility_conditions(a: Assumptions, gamma: float, b: float, b0: float) -> tuple[Condition, ...]:
    """What the utility theorem asks for, each with its numbers (its constant C6 taken to be 1)."""
    G, LD, ne = a.lipschitz, a.smoothness * a.gap, a.n * a.epsilon
    enough = max(G**8 * a.log**2 / (LD * a.dimension) ** 4, G**2 * math.sqrt(a.dimension * a.log) / LD)
    return (
        Condition(name="momentum", holds=gamma <= 1, text=f"γ ≤ 1: γ = {gamma:.4g}"),
        Condition(
            name="batches",
            holds=min(b, b0) >= 1 and max(b, b0) <= a.n,
            text=f"batches fit in the data: b = {b:.4g}, b0 = {b0:.4g}, n = {a.n}",
        ),
        Condition(
            name="records",
            holds=ne >= enough,
            text=f"n·ε ≥ max(G⁸log²/(L·D·d)⁴, G²√(d·log)/(L·D)): {ne:.4g} ≥ {enough:.4g}",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Theory:
    """Algorithm 1 as the paper proves it: declared constants, adaptive step, no clipping.

    Args:
        lipschitz: G, which no example's gradient norm exceeds anywhere.
        smoothness: L, the Lipschitz constant of every example's gradient.
        gap: D_F = F(θ⁰) − min F; with it the utility theorem plans T, ζ, n0, γ, b, b0.
        zeta, n0: instead of `gap`: ζ and n0 as given; T, b, b0 then come from the training settings.
        excess: "raise" stops at an example that breaks the declared constants; "clip" clips it.
        batches: "theorem", or "corollary": b = b0 = n·√(ε/T), with which the paper's accountant holds for large T.
        beta: β of Algorithm 1: take the noise of the paper's privacy theorem at this β, or at the "best" one at which
            its conditions hold. None calibrates the noise by the accountant of the privacy settings.
        zeta_factor: the absolute constant of ζ, which the paper leaves open; only with `gap`.
    """

    lipschitz: float
    smoothness: float
    gap: float | None = None
    zeta: float | None = None
    n0: float | None = None
    excess: Excess = Excess.RAISE
    batches: Batches = "theorem"
    beta: float | Literal["best"] | None = None
    zeta_factor: float = 1.0

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
        for name in ("lipschitz", "smoothness", "gap", "zeta", "n0", "zeta_factor"):
            value = getattr(self, name)
            need(value is None or 0 < value < math.inf, f"{name} must be positive and finite", **{name: value})
        need(self.batches in ("theorem", "corollary"), "batches must be theorem or corollary", batches=self.batches)
        number = isinstance(self.beta, float) and 0 < self.beta < 1
        need(self.beta in (None, "best") or number, 'beta must lie between 0 and 1, or be "best"', beta=self.beta)
        object.__setattr__(self, "excess", Excess(self.excess))

    def resolve(
        self, schedule: Schedule, budget: EpsilonDelta | None, *, n: int, dimension: int
    ) -> tuple[Srm, Schedule, AdaptiveStep]:
        """The method, schedule and step rule this mode stands for; `schedule` is that of the training settings."""
        if self.gap is not None:
            plan = self._plan(self.gap, _needed(budget), n=n, dimension=dimension)
            return plan.method(excess=self.excess), plan.schedule, plan.stepper
        if self.zeta is None or self.n0 is None:
            raise AssertionError("checked in __post_init__")
        if self.batches == "corollary":
            batch = corollary_batch(n, schedule.steps, epsilon=_needed(budget)[0])
            need(1 <= batch <= n, "the corollary's batch n·√(ε/T) must fit in the data", batch=batch, n=n)
            schedule = Schedule(steps=schedule.steps, batch=batch, first_batch=batch)
        gamma = min(1.0, math.sqrt(2) * self.zeta / (self.n0 * self.lipschitz))
        diff = self.zeta / self.n0
        method = Srm(max_grad_norm=self.lipschitz, max_diff_norm=diff, gamma=gamma, excess=self.excess)
        return method, schedule, AdaptiveStep(zeta=self.zeta, n0=self.n0, smoothness=self.smoothness)

    def _plan(self, gap: float, budget: EpsilonDelta, *, n: int, dimension: int) -> TheoryPlan:
        """The theorem's plan, which can be run."""
        (epsilon, delta), G, L = budget, self.lipschitz, self.smoothness
        a = Assumptions(lipschitz=G, smoothness=L, gap=gap, dimension=dimension, n=n, epsilon=epsilon, delta=delta)
        plan = plan_theory(a, batches=self.batches, zeta_factor=self.zeta_factor)
        broken = "; ".join(condition.text for condition in plan.conditions[:2] if not condition.holds)
        need(plan.runnable, f"the theorem's parameters cannot be run: {broken}", remedy="give zeta and n0")
        return plan

    def fixed_noise(self, schedule: Schedule, budget: EpsilonDelta, *, n: int) -> float | None:
        """The noise multiplier of the paper's privacy theorem for `schedule`; None if the accountant is to choose."""
        if self.beta is None:
            return None
        same, (epsilon, delta) = schedule.batch == schedule.first_batch, budget
        need(
            same,
            "the paper's noise is for equal batches here",
            first_batch=schedule.first_batch,
            remedy="leave beta out",
        )
        rate, steps = schedule.batch / n, schedule.steps
        if self.beta != "best":
            return theorem_noise(rate, steps, epsilon=epsilon, delta=delta, beta=self.beta).noise_multiplier
        best = best_theorem_noise(rate, steps, epsilon=epsilon, delta=delta)
        if best is None:
            raise InputError("Lemma 1's conditions hold at no beta here; give a number, or leave beta out")
        return best.noise_multiplier


def _needed(budget: EpsilonDelta | None) -> EpsilonDelta:
    """The budget, without which nothing can be planned."""
    if budget is None:
        raise InputError("planning from the utility theorem needs a budget; give zeta and n0 instead of gap")
    return budget
