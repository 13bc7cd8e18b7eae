"""The noise of the paper's privacy theorem at any β, the best β, and the corollary's batches with their threshold.

Symbols: q = b/n the sampling rate, T the number of releases, α the Rényi order, s = σ/Δ the noise multiplier. Lemma 1
charges ρ(α) = 3.5·q²α/s² a release; β is the share of ε that pays for Σρ, the rest pays ln(1/δ)/(α−1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsrm.core.errors import need

_MOST_ORDER = 4096  # the paper's accountant knows no higher one
_MARGIN = 1 + 1e-9  # over the formula, so that rounding never costs more than ε


@dataclass(frozen=True, kw_only=True)
class TheoremNoise:
    """β, the order α that belongs to it, and the noise multiplier s = √(3.5·q²·T·α/(β·ε))."""

    beta: float
    order: int
    noise_multiplier: float


def order_for(beta: float, *, epsilon: float, delta: float) -> int:
    """α = ln(1/δ)/((1−β)·ε) + 1, rounded up because Lemma 1 is proved for whole orders only.

    >>> order_for(0.5, epsilon=1.0, delta=1e-5)
    25
    """
    need(0 < beta < 1, "beta must lie strictly between 0 and 1", beta=beta)
    need(epsilon > 0 and 0 < delta < 1, "epsilon must be positive, delta between 0 and 1", epsilon=epsilon, delta=delta)
    return math.ceil(-math.log(delta) / ((1 - beta) * epsilon) * (1 - 1e-12)) + 1


def theorem_noise(rate: float, steps: int, *, epsilon: float, delta: float, beta: float = 0.5) -> TheoremNoise:
    """The noise of the paper's privacy theorem, σ² = 14·T·R²·α/(β·n²·ε), as a noise multiplier.

    Args:
        rate: q = b/n.
        steps: T.
        epsilon, delta: the budget.
        beta: β of Algorithm 1's input.

    Guarantee: (ε, δ)-DP where Lemma 1's conditions hold at the order; nothing is claimed elsewhere.

    Source: `thm:dp`. Departs from the paper: α is rounded up to a whole number.

    >>> round(theorem_noise(0.01, 1000, epsilon=1.0, delta=1e-5).noise_multiplier, 3)  # √(3.5·1e-4·1000·25/0.5)
    4.183
    """
    order = order_for(beta, epsilon=epsilon, delta=delta)
    noise = math.sqrt(3.5 * steps * order / (beta * epsilon)) * rate * _MARGIN
    return TheoremNoise(beta=beta, order=order, noise_multiplier=noise)


def best_theorem_noise(rate: float, steps: int, *, epsilon: float, delta: float) -> TheoremNoise | None:
    """The least noise of `theorem_noise` over all β at which Lemma 1's conditions hold; None if they hold at none.

    β is searched on a ladder of 0.02 %, and where the order changes: β = 1 − ln(1/δ)/((α−1)·ε) for every whole α.

    >>> found = best_theorem_noise(512 / 60000, 1172, epsilon=3.0, delta=1e-5)
    >>> found.order, round(found.beta, 3), round(found.noise_multiplier, 2)
    (5, 0.041, 3.5)
    >>> best_theorem_noise(50 / 32561, 2605, epsilon=0.2, delta=1e-5) is None
    True
    """
    log = -math.log(delta)
    whole = np.arange(math.floor(log / epsilon) + 2, _MOST_ORDER + 1, dtype=np.float64)
    betas = np.concatenate([1 - log / ((whole - 1) * epsilon), np.geomspace(1e-4, 0.9999, 46000)])
    betas = betas[(betas > 0) & (betas < 1)]
    orders = np.ceil(log / ((1 - betas) * epsilon) * (1 - 1e-12)) + 1
    variances = 3.5 * rate**2 * steps * orders / (betas * epsilon) * _MARGIN**2
    products = rate * orders * (1 + variances)
    holds = (variances >= 0.7) & (products < 1) & (orders - 1 <= -2 / 3 * variances * np.log(products))
    if not holds.any():
        return None
    best = int(np.argmin(np.where(holds, variances, np.inf)))
    noise = math.sqrt(float(variances[best]))
    return TheoremNoise(beta=float(betas[best]), order=int(orders[best]), noise_multiplier=noise)


def corollary_batch(n: int, steps: int, *, epsilon: float) -> int:
    """The corollary's b = n·√(ε/T), rounded down: rounded up it would break Lemma 1's conditions at the threshold.

    >>> corollary_batch(1000, 400, epsilon=1.0)
    50
    """
    return math.floor(n * math.sqrt(epsilon / steps))


def corollary_steps(*, epsilon: float, delta: float, beta: float = 0.5) -> int:
    """The least T from which on the corollary's batches satisfy Lemma 1's conditions, whatever n.

    With b² = n²ε/T the theorem's noise is s² = 3.5·α/β, whatever T, and q = √(ε/T). The conditions qα(1+s²) < 1 and
    α − 1 ≤ ⅔·s²·ln(1/(qα(1+s²))) then say

        T ≥ ε·α²·(1 + 3.5·α/β)²·exp(6·β·(α−1)/(7·α))

    Guarantee: for every T from here on and every n with `corollary_batch` ≥ 1 the conditions hold with that batch too:
    q²·ln(1/(qα(1+kq²))) first rises and then falls in q, and rounding down at most halves q, where there is room.

    Source: `coro:dp`. Departs from the paper: the exact number instead of an order, with σ'² = 7α at β = ½ (its proof
    says 14α, twice what its own σ² gives).

    >>> corollary_steps(epsilon=1.0, delta=1e-5)
    29213697
    """
    order = order_for(beta, epsilon=epsilon, delta=delta)
    within = order * (1 + 3.5 * order / beta * _MARGIN**2)
    return math.ceil(epsilon * within**2 * math.exp(6 * beta * (order - 1) / (7 * order)))


def corollary_beta(*, epsilon: float, delta: float) -> float:
    """The β whose threshold `corollary_steps` is the smallest: about 0.3 where ε is small.

    >>> round(corollary_beta(epsilon=1.0, delta=1e-5), 3)
    0.323
    """
    least = math.floor(-math.log(delta) / epsilon) + 2
    betas = (1 + math.log(delta) / ((order - 1) * epsilon) for order in range(least, 10 * least + 10))
    return min((b for b in betas if 0 < b < 1), key=lambda b: corollary_steps(epsilon=epsilon, delta=delta, beta=b))
