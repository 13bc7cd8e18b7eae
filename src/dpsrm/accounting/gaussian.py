"""The Gaussian mechanism alone, in closed form (Balle & Wang 2018), in logarithms so that nothing overflows."""

from __future__ import annotations

import math

from scipy.special import log_ndtr

from dpsrm.accounting.guarantee import exp_up

_ULP = 2.0**-52
_SHARP = 1e6  # a μ above this makes the arguments of Φ cancel; Φ(−x) ≤ e^{−x²/2} answers instead
_ROUND = 1e-12
_UNDERFLOW = -745.0  # e to this power is the least number there is


def delta(noise: float, epsilon: float) -> float:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ = 1/`noise`, rounded up.

    The rounding errors of both logarithms are added; the first term alone is an upper bound too.

    >>> round(delta(1.0, 1.0), 6)
    0.126937
    """
    mu = 1 / noise
    if mu > _SHARP:
        distance = epsilon / mu * (1 - _ROUND) - mu / 2 * (1 + _ROUND)
        return exp_up(-distance * distance / 2) if distance > 0 else 1.0
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    if first < _UNDERFLOW:
        return math.ulp(0.0)
    inner = float(log_ndtr(-mu / 2 - epsilon / mu))
    rounding = 4 * _ULP * (1 + abs(first) + abs(inner))
    return min(math.exp(first) * min(-math.expm1(min(epsilon + inner - first, 0.0)) + rounding, 1.0), 1.0)


def epsilon(noise: float, delta_: float) -> float:
    """The least ε ≥ 0 with δ(ε) ≤ `delta_`: the upper end of a bisection.

    *Guarantee*: `delta(noise, epsilon(noise, d))` ≤ d.

    >>> round(epsilon(1 / 0.06133, 1e-5), 4)
    0.2
    """
    mu = 1 / noise
    if mu > _SHARP:
        return (mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta_))) * (1 + 4 * _ROUND)
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


def gaussian_mu(epsilon_: float, delta_: float) -> float:
    """μ of the Gaussian mechanism that spends (ε, δ) exactly (Dong, Roth & Su 2022), to nine digits.

    >>> round(gaussian_mu(0.2, 1e-5), 5), round(gaussian_mu(0.5, 1e-5), 5)
    (0.06133, 0.14221)
    """
    low, high = 1e-9, 1e6
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if delta(1 / middle, epsilon_) <= delta_ else (low, middle)
    return low
