"""What the theorems promise: E‖∇F(θ̃)‖ of DP-SRM, DP-GD and RRPSGD with the constants of the proofs, side by side.

Every bound is for the random iterate under the noise of the algorithm's own privacy proof. Constants that the paper
leaves open (ζ's) are chosen to make the bound smallest; those of DP-GD and RRPSGD come from the short proofs written
out at `gd_rate` and `rrpsgd_rate`, because the theorems, as the paper quotes them, are orders only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dpsrm.accounting.guarantee import Condition
from dpsrm.methods.assumptions import Assumptions
from dpsrm.methods.theorem_noise import order_for
from dpsrm.methods.theory import Batches, TheoryPlan, plan_theory

LARGEST_N = 10**15
"""How far `ahead_from` looks."""

_FACTORS = tuple(float(f) for f in np.geomspace(0.5, 500, 73))
"""Constants of ζ that are tried, a tenth apart."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """One algorithm's theorem for given assumptions.

    Attributes:
        utility: the bound on E‖∇F(θ̃)‖; infinite where the theorem's parameters cannot be run.
        gradients: the gradient complexity: per-example gradients computed in all.
        steps, batch: T and b; for RRPSGD the most rounds.
        learning_rate: of the constant step; None for the adaptive one.
        noise_multiplier: std ÷ sensitivity of a release, by the algorithm's own privacy theorem.
        zeta_factor: the constant of ζ (DP-SRM only).
        conditions: what its theorems require, with the numbers.
    """

    algorithm: str
    utility: float
    gradients: float
    steps: int
    batch: int
    learning_rate: float | None
    noise_multiplier: float
    conditions: tuple[Condition, ...]
    zeta_factor: float | None = None


RateOf = Callable[[Assumptions], Rate]


def srm_bound(plan: TheoryPlan, noise_multiplier: float) -> float:
    """The proof's bound for DP-SRM with any batches and any noise.

        E = 2ζ²/(n0²γb) + 2γG²/b + dσ²/γ + dσ0²/(Tγ) + G²/(Tγb0)          the mean of E‖v^t − ∇F(θ^t)‖²
        E‖∇F(θ̃)‖ ≤ 4n0·L·D_F/(Tζ) + 2ζ + E/ζ + √E

    with σ = 2sR/b, R = (1−γ)ζ/n0 + γG, σ0 = 2sG/b0.

    Source: eqs. (contraction), (6) and (9) of the proof of `thm:utility`. Departs from the paper: its (7) halves the
    second term of E by a slip, and its (8) takes the root term by term, which is larger.
    """
    a, zeta, gamma, T = plan.assumptions, plan.zeta, plan.gamma, plan.steps
    G, b, b0, d = a.lipschitz, plan.batch, plan.first_batch, a.dimension
    sigma = 2 * noise_multiplier * ((1 - gamma) * zeta / plan.n0 + gamma * G) / b
    first = 2 * noise_multiplier * G / b0
    error = 2 * zeta**2 / (plan.n0**2 * gamma * b) + 2 * gamma * G**2 / b
    error += (d * sigma**2 + d * first**2 / T + G**2 / (T * b0)) / gamma
    return 4 * plan.n0 * a.smoothness * a.gap / (T * zeta) + 2 * zeta + error / zeta + math.sqrt(error)


@lru_cache(maxsize=4096)
def srm_rate(
    a: Assumptions, *, batches: Batches = "theorem", beta: float = 0.5, zeta_factor: float | None = None
) -> Rate:
    """DP-SRM by `thm:dp` and `thm:utility` (or the corollary's batches); ζ's constant given, or the bound's best."""
    factors = _FACTORS if zeta_factor is None else (zeta_factor,)
    tried = ((_srm_utility(a, batches, beta, factor), factor) for factor in factors)
    utility, factor = min(tried)
    plan = plan_theory(a, batches=batches, beta=beta, zeta_factor=factor)
    return Rate(
        algorithm="DP-SRM" if batches == "theorem" else "DP-SRM, corollary's batches",
        utility=utility,
        gradients=float(plan.first_batch + 2 * (plan.steps - 1) * plan.batch),
        steps=plan.steps,
        batch=plan.batch,
        learning_rate=None,
        noise_multiplier=plan.noise_of_theorem.noise_multiplier,
        conditions=plan.conditions,
        zeta_factor=factor,
    )


def _srm_utility(a: Assumptions, batches: Batches, beta: float, factor: float) -> float:
    """The bound at one constant of ζ; infinite where γ > 1 or the batches do not fit."""
    plan = plan_theory(a, batches=batches, beta=beta, zeta_factor=factor)
    return srm_bound(plan, plan.noise_of_theorem.noise_multiplier) if plan.runnable else math.inf


def gd_rate(a: Assumptions, *, beta: float = 0.5) -> Rate:
    """DP-GD (Wang+ 2017): T full-batch steps of η = 1/L under T Gaussian releases of sensitivity 2G/n.

        F(θ^{t+1}) ≤ F(θ^t) − (‖∇F(θ^t)‖² − ‖u^t‖²)/(2L) in expectation, so  E‖∇F(θ̃)‖² ≤ 2L·D_F/T + dσ²
        σ² = 2·T·G²·α/(β·n²·ε), α as in the paper's `thm:dp`  (Lemma 1's first sentence: ρ = α·Δ²/(2σ²), no condition)

    and T makes the sum smallest. This has the order of their theorem, T ~ nε/√(d·ln(1/δ)).
    """
    order = order_for(beta, epsilon=a.epsilon, delta=a.delta)
    per_step = 2 * a.lipschitz**2 * order / (beta * a.n**2 * a.epsilon)
    steps = max(1, round(math.sqrt(2 * a.smoothness * a.gap / (a.dimension * per_step))))
    square = 2 * a.smoothness * a.gap / steps + a.dimension * steps * per_step
    return Rate(
        algorithm="DP-GD",
        utility=math.sqrt(square),
        gradients=float(a.n) * steps,
        steps=steps,
        batch=a.n,
        learning_rate=1 / a.smoothness,
        noise_multiplier=math.sqrt(steps * order / (2 * beta * a.epsilon)) * (1 + 1e-9),
        conditions=(),
    )


def rrpsgd_rate(a: Assumptions, *, noise_multiplier: float | None = None) -> Rate:
    """RRPSGD (Zhang+ 2017): at most n² rounds over one example, σ² = 32·G²·ln(n/δ)·ln(1/δ)/ε² unless noise is given.

        E‖∇F(θ̃)‖² ≤ (2·D_F + L·V·T·η²)/(T·(2η − L·η²)),  V = G² + dσ²  (Ghadimi & Lan 2013, Theorem 2.1)

    with η = min(1/L, √(2·D_F/(L·V·T))), the choice that makes the numerator's parts equal.
    """
    own = math.sqrt(32 * math.log(a.n / a.delta) * a.log) / (2 * a.epsilon)
    noise = own if noise_multiplier is None else noise_multiplier
    sigma2 = (2 * a.lipschitz * noise) ** 2
    variance, T, L = a.lipschitz**2 + a.dimension * sigma2, a.n**2, a.smoothness
    rate = min(1 / L, math.sqrt(2 * a.gap / (L * variance * T)))
    square = (2 * a.gap + L * variance * T * rate**2) / (T * (2 * rate - L * rate**2))
    small = Condition(name="budget", holds=a.epsilon <= 1, text=f"ε ≤ 1: ε = {a.epsilon:g}")
    return Rate(
        algorithm="RRPSGD",
        utility=math.sqrt(square),
        gradients=float(T),
        steps=T,
        batch=1,
        learning_rate=rate,
        noise_multiplier=noise,
        conditions=(small,),
    )


def ahead_from(a: Assumptions, leader: RateOf, rival: RateOf) -> int | None:
    """The n from which on (up to `LARGEST_N`) the leader's bound is below the rival's; None if it never is.

    All else stays as in `a`. The place is found to one part in a thousand.
    """

    def ahead(n: int) -> bool:
        at = replace(a, n=n)
        return leader(at).utility < rival(at).utility

    sizes = [int(n) for n in np.geomspace(10, LARGEST_N, 57)]
    behind = [n for n in sizes if not ahead(n)]
    if not behind:
        return sizes[0]
    if behind[-1] == sizes[-1]:
        return None
    low, high = behind[-1], sizes[sizes.index(behind[-1]) + 1]
    while high > low * 1.001:
        middle = int(math.sqrt(low) * math.sqrt(high))
        low, high = (low, middle) if ahead(middle) else (middle, high)
    return high
