"""The Gaussian mechanism alone, in closed form (Balle & Wang 2018), in logarithms so that nothing overflows."""

from __future__ import annotations

import math

from scipy.special import log_ndtr


def delta(noise: float, epsilon: float) -> float:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ = 1/`noise`.

    >>> round(delta(1.0, 1.0), 6)
    0.126937
    """
    mu = 1 / noise
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return min(-math.exp(first) * math.expm1(min(second - first, 0.0)), 1.0)


def epsilon(noise: float, delta_: float) -> float:
    """The least ε ≥ 0 with δ(ε) ≤ `delta_`: the upper end of a bisection.

    *Guarantee*: `delta(noise, epsilon(noise, d))` ≤ d.

    >>> round(epsilon(1 / 0.06133, 1e-5), 4)
    0.2
    """
    if delta(noise, 0.0) <= delta_:
        return 0.0
    low, high = 0.0, 1.0
    while delta(noise, high) > delta_:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if delta(noise, middle) <= delta_ else (middle, high)
    return high
