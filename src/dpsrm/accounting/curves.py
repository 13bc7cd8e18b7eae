"""Rényi curves of one release: for every order α > 1 a bound ρ(α) on D_α(M(D) ‖ M(D′)).

Symbols: q = `rate`, s = `noise` (std ÷ sensitivity), α = `orders`. Everything works on whole arrays of orders.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

Array = npt.NDArray[np.float64]

NEGLIGIBLE = 1e-100  # a smaller ρ is rounded up to this: no cost is ever lost to underflow
LEAST_NOISE, MOST_NOISE = 0.01, 2.0**20
"""With less noise than the first sampling is not counted as a help; more than the second counts as the second."""

_SMALL_EPSILON = 1e-3  # below it ρ(α) of a pure release is bounded by αε²/2, which then is tight to ε²
_HIGHEST_MOMENT = 256  # central moments up to here enter Thm 27; beyond, its simpler bound alone
_MAX_NODES = 50_000  # an order that would need more quadrature nodes gets ρ = ∞, which is sound


def gaussian(noise: float, orders: Array) -> Array:
    """ρ(α) = α/(2s²), exact for the Gaussian mechanism (Mironov 2017).

    >>> gaussian(2.0, np.array([4.0]))
    array([0.5])
    """
    with np.errstate(over="ignore"):
        return np.maximum(orders / noise / noise / 2, NEGLIGIBLE)


def pure(epsilon: float, orders: Array) -> Array:
    """ρ(α) of randomised response, the worst ε-DP mechanism: ln(p^α r^{1−α} + r^α p^{1−α})/(α−1), p = e^ε r.

    It never exceeds ε nor αε²/2 (Bun & Steinke 2016, Prop. 1.4); at a small ε, where the logarithm would cancel, it is
    taken to be the latter. Elsewhere the logarithm's rounding error is added.
    """
    with np.errstate(over="ignore"):
        if epsilon < _SMALL_EPSILON:
            return np.maximum(np.minimum(orders * epsilon * epsilon / 2, epsilon), NEGLIGIBLE)
        log_p, log_r = -np.logaddexp(0, -epsilon), -np.logaddexp(0, epsilon)
        moment = np.logaddexp(orders * log_p + (1 - orders) * log_r, orders * log_r + (1 - orders) * log_p)
        moment += 4 * np.finfo(float).eps * orders * (1 + epsilon)
        rho: Array = np.minimum(moment / (orders - 1), epsilon)
    return rho


def zcdp(rho: float, orders: Array) -> Array:
    """ρ(α) = ρα, the definition of ρ-zCDP (Bun & Steinke 2016)."""
    with np.errstate(over="ignore"):
        return np.maximum(rho * orders, NEGLIGIBLE)


def wor_general(rate: float, noise: float, orders: Array) -> Array:
    """WOR, replace-one, the general bound: Wang–Balle–Kasiviswanathan 2019, Thm 9, at integer orders α ≥ 2.

    (α−1)ρ(α) = ln(1 + q²·C(α,2)·min{4(e^{ρ(2)}−1), 2e^{ρ(2)}} + Σ_{j=3}^α 2 q^j C(α,j) e^{(j−1)ρ(j)}).

    *Guarantee*: an upper bound for any base mechanism with ρ(j) = j/(2s²).
    """
    if noise < LEAST_NOISE:
        return gaussian(noise, orders)
    j = np.arange(2, int(orders.max()) + 1, dtype=np.float64)
    return _subsampled(rate, orders, j, _simple_terms(min(noise, MOST_NOISE), j))


def wor_gaussian(rate: float, noise: float, orders: Array) -> Array:
    """WOR, replace-one, the bound for Gaussian noise: Wang–Balle–Kasiviswanathan 2019, Thm 27.

    As Thm 9 with the j-th coefficient min{4√(B_j⁻ B_j⁺), 2e^{(j−1)ρ(j)}}, where B are the central moments
    E[(L−1)^{2k}] of the likelihood ratio L at the even orders next to j. Between integers (α−1)ρ is interpolated
    linearly (Cor. 10), and ρ never exceeds the Gaussian's own α/(2s²) (quasi-convexity).

    *Departs from dp-accounting*, which computes the same: B_{2k} by quadrature of a positive function instead of
    forward differences, all orders at once: no cancellation; at `rdp.ORDERS` 0.08 s against 6.7 s.
    """
    if noise < LEAST_NOISE:
        return gaussian(noise, orders)
    noise, highest = min(noise, MOST_NOISE), math.ceil(orders.max())
    j = np.arange(2, highest + 1, dtype=np.float64)
    terms = _simple_terms(noise, j)
    known = slice(1, min(highest, _HIGHEST_MOMENT - 1) - 1)  # j = 3 .. 255
    log_even = _log_even_moments(noise, min(highest + 1, _HIGHEST_MOMENT) // 2)
    below, above = np.floor(j[known] / 2).astype(int), np.ceil(j[known] / 2).astype(int)
    terms[known] = np.minimum(terms[known], math.log(4) + (log_even[below - 1] + log_even[above - 1]) / 2)
    low, high = np.floor(orders), np.ceil(orders)
    cgf_low = (low - 1) * _subsampled(rate, np.maximum(low, 2), j, terms)
    cgf_high = (high - 1) * _subsampled(rate, np.maximum(high, 2), j, terms)
    share = orders - low
    return np.minimum(((1 - share) * cgf_low + share * cgf_high) / (orders - 1), gaussian(noise, orders))


def poisson_replace(rate: float, noise: float, orders: Array) -> Array:
    """Poisson sampling under replace-one: D_α of its dominating pair, by quadrature.

    P, Q = (1−q)N(0,s²) + q·N(±½,s²) dominate M(D), M(D′) (docs/decisions/poisson.md), so every f-divergence of the
    mechanism, and with it D_α, is at most that of (P, Q); the mirror image has the same.

    *Guarantee*: E_Q[(P/Q)^α] − 1 is the integral of the non-negative Q·(L^α − 1 − α(L−1)); the trapezoid rule
    converges geometrically on it, and the distance between two interleaved rules is added on top.
    """
    return np.array([_quadrature(rate, noise, float(order), means=(0.5, -0.5)) for order in orders])


def poisson_add_remove(rate: float, noise: float, orders: Array) -> Array:
    """Poisson sampling under add/remove: D_α((1−q)N(0,s²) + q·N(1,s²) ‖ N(0,s²)), by the same quadrature.

    This direction is the larger one (Mironov–Talwar–Zhang 2019).
    *Departs from dp-accounting*, whose series fails to converge at low fractional orders and logs a warning for each.
    """
    return np.array([_quadrature(rate, noise, float(order), means=(1.0, 0.0)) for order in orders])


def _simple_terms(noise: float, j: Array) -> Array:
    """ln of Thm 9's coefficients without the binomial and the power of q, j = 2, 3, …"""
    terms = math.log(2) + j * (j - 1) / (2 * noise**2)
    rho2 = 1 / noise**2
    log_expm1 = rho2 + math.log(-math.expm1(-rho2))
    terms[0] = min(math.log(4) + log_expm1, math.log(2) + rho2)
    return terms


def _subsampled(rate: float, orders: Array, j: Array, terms: Array) -> Array:
    """ln(1 + Σ_{j=2}^α q^j C(α,j) e^{terms_j})/(α−1) for integer `orders` (rows), `j` (columns)."""
    alpha = orders[:, None]
    with np.errstate(invalid="ignore"):
        log_choose = gammaln(alpha + 1) - gammaln(j + 1) - gammaln(np.maximum(alpha - j, 0) + 1)
    log_terms = np.where(j <= alpha, log_choose + j * math.log(rate) + terms, -np.inf)
    total: Array = np.logaddexp(0.0, logsumexp(log_terms, axis=1)) / (orders - 1)
    return total


def _log_even_moments(noise: float, count: int) -> Array:
    """ln E[(L−1)^{2k}], k = 1..count, for L = e^{x/s − 1/2s²}, x ~ N(0,1); trapezoid rule, step 1/5."""
    x = np.arange(-14.0, 2 * count / noise + 14.0, 0.2)
    exponent = x / noise - 1 / (2 * noise**2)
    size = np.abs(exponent) + 1e-300
    log_ratio = np.maximum(exponent, 0) + np.log(-np.expm1(-size))
    log_weight = math.log(0.2 / math.sqrt(2 * math.pi)) - x**2 / 2
    powers = 2.0 * np.arange(1, count + 1)
    return np.array([logsumexp(power * log_ratio + log_weight) for power in powers])


def _quadrature(rate: float, noise: float, order: float, *, means: tuple[float, float]) -> float:
    """D_α of (1−q)N(0,s²) + q·N(mean,s²) for two means; ∞ where the quadrature would be unreasonably long."""
    noise = min(noise, MOST_NOISE)
    if noise < LEAST_NOISE:
        return math.inf
    step = min(noise / 12, noise**2 / 2)
    low, high = -0.5 - 14 * noise, order + 14 * noise
    if (high - low) / step > _MAX_NODES:
        return math.inf
    first, second = (
        _log_excess(np.arange(low + shift, high, step), rate, noise, order=order, means=means) + math.log(step)
        for shift in (0.0, step / 2)
    )
    top = max(first, second)
    log_excess = top + math.log1p(-math.expm1(min(first, second) - top)) + 1e-12
    return float(np.logaddexp(0.0, log_excess)) / (order - 1)


def _log_excess(x: Array, rate: float, noise: float, *, order: float, means: tuple[float, float]) -> float:
    """ln Σ Q(x)·(L^α − 1 − α(L−1)) over the nodes `x`, L = P/Q, with P and Q relative to N(0,s²)."""
    log_up, log_down = (_log_mixture(mean * (x - mean / 2) / noise**2, rate) for mean in means)
    loss = log_up - log_down
    log_q = log_down - (x / noise) ** 2 / 2 - math.log(noise * math.sqrt(2 * math.pi))
    big = order * loss > 30
    small_loss = np.where(big, 0.0, loss)
    small = _excess(order, small_loss)
    with np.errstate(divide="ignore"):
        log_g = np.where(big, order * loss, np.log(small))
    return float(logsumexp(log_q + log_g))


def _log_mixture(exponent: Array, rate: float) -> Array:
    """ln(1 − q + q·e^x), to full relative precision however small q and x are."""
    log_mixture = np.log1p(rate * np.expm1(np.minimum(exponent, 1.0)))
    far = exponent >= 1
    log_mixture[far] = np.logaddexp(math.log1p(-rate), math.log(rate) + exponent[far])
    return log_mixture


def _excess(order: float, loss: Array) -> Array:
    """L^α − 1 − α(L−1) at L = e^loss: Σ_{k≥2} (α^k − α)·loss^k/k! where the difference would cancel."""
    excess = np.maximum(np.expm1(order * loss) - order * np.expm1(loss), 0.0)
    small = order * np.abs(loss) < 0.01
    tiny, series = loss[small], np.zeros(int(small.sum()))
    for k in range(7, 1, -1):
        series = series * tiny + (order**k - order) / math.factorial(k)
    excess[small] = np.maximum(series * tiny * tiny, 0.0)
    return excess
