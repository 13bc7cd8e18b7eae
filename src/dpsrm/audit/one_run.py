"""Lower bounds from one run: m records with a fair coin each, r guesses, v of them right.

Steinke, Nasr & Jagielski 2023 ("Privacy auditing with one (1) training run") for (ε, δ); Mahloujifar, Melis &
Chaudhuri 2024 (arXiv 2410.22235) for a whole trade-off curve, which loses nothing to δ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats
from scipy.special import ndtr, ndtri

from dpsrm.core.errors import need

Inverse = Callable[[float], float]
"""y → the least P[A | one record] with which P[A | another] can be y: f̄⁻¹, f̄ = 1 − f, f the trade-off curve."""


def guess_p_value(epsilon: float, *, m: int, r: int, v: int, delta: float) -> float:
    """The chance that an (ε, δ)-DP run lets v or more of r guesses be right: at most β + 2mδα (their Theorem 5.2).

    >>> round(guess_p_value(0.0, m=10, r=10, v=10, delta=0.0) * 1024, 6)
    1.0
    """
    p = 1 / (1 + math.exp(-epsilon))
    beta = float(stats.binom.sf(v - 1, r, p))
    if delta == 0 or v == 0:
        return min(1.0, beta)
    steps = np.arange(1, v + 1)
    alpha = float(((stats.binom.cdf(v - 1, r, p) - stats.binom.cdf(v - 1 - steps, r, p)) / steps).max())
    return min(1.0, beta + 2 * m * delta * alpha)


def one_run_epsilon(*, m: int, r: int, v: int, delta: float, confidence: float = 0.95) -> float:
    """The largest ε that v right guesses of r refute, at δ.

    Args:
        m: records with a coin.
        r: guesses, as many as were decided on beforehand.
        v: how many were right.

    Guarantee: of an (ε, δ)-DP run, it exceeds ε with a chance of at most 1 − confidence.

    >>> round(one_run_epsilon(m=100, r=100, v=100, delta=0.0), 4)
    3.493
    """
    need(0 <= v <= r <= m, "there are no more right guesses than guesses, no more guesses than records", m=m, r=r, v=v)
    return _largest(lambda epsilon: guess_p_value(epsilon, m=m, r=r, v=v, delta=delta) < 1 - confidence, most=50.0)


def _largest(refuted: Callable[[float], bool], *, most: float) -> float:
    """The largest number that is refuted, where all smaller ones are, too; 0 if none is."""
    low, high = 0.0, most
    if not refuted(0.0):
        return 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def refutes(inverse: Inverse, *, m: int, r: int, v: int, confidence: float = 0.95) -> bool:
    """Whether v of r right guesses refute, at this confidence, that the run keeps the curve of `inverse`.

    Let N be the number of right guesses, p_j = P[N = j]. A record is guessed right together with j − 1 others as often
    as f̄ of how often it is guessed wrong together with them allows; with Jensen over records and coins,

        Σ_{j≥k} (j/m)·p_j ≤ f̄(Σ_{j≥k−1} ((r−j)/m)·p_j)   for every k   (their Theorem 3.2).

    From P[N ≥ v] = τ = 1 − confidence these give, one k after the other, a lower bound of the mass below v; if it adds
    up to more than 1, τ was too large: P[N ≥ v] < τ.

    >>> gdp = lambda y: gaussian_inverse(y, mu=1.0)
    >>> refutes(gdp, m=1000, r=1000, v=900), refutes(gdp, m=1000, r=1000, v=930)
    (False, True)
    """
    tau = 1 - confidence
    right, wrong = tau * v / m, tau * (r - v) / m
    for j in range(v - 1, -1, -1):
        more = max(wrong, inverse(right))
        right += j / (r - j) * (more - wrong)
        wrong = more
        if right + wrong > r / m * (1 + 1e-12):
            return True
    return False


def gaussian_inverse(y: float, *, mu: float) -> float:
    """f̄⁻¹ of a μ-GDP run: Φ(Φ⁻¹(y) − μ)."""
    return float(ndtr(ndtri(min(y, 1.0)) - mu))


def profile_inverse(epsilons: Sequence[float], deltas: Sequence[float]) -> Inverse:
    """f̄⁻¹ of a run whose δ(ε) is at most `deltas` at `epsilons`: max over ε of (y − δ(ε))·e^{−ε}, both signs of ε.

    Guarantee: points that are left out only make it smaller, and what follows weaker.

    >>> pure = profile_inverse([1.0], [0.0])
    >>> round(pure(0.5) * math.e, 6)
    0.5
    """
    e, d = np.asarray(epsilons, dtype=np.float64), np.asarray(deltas, dtype=np.float64)
    levels, factors = np.concatenate([d, 1 - np.exp(-e) * (1 - d)]), np.exp(np.concatenate([-e, e]))

    def inverse(y: float) -> float:
        return max(0.0, float(((y - levels) * factors).max()))

    return inverse
