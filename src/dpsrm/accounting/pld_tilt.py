"""Tilts of privacy-loss distributions, each with a window that bounds, by Chernoff, what a composition leaves out.

Each pmf is tilted by e^{θℓ − K(θ)} (K its log-moment generating function), so that the bulk of the sum of all losses
sits where the answer is: near the ε or the δ that is asked for. pld_compose.py says what for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.fft import next_fast_len

from dpsrm.accounting.curves import Array
from dpsrm.accounting.pld_grid import Pld

MAX_BINS = 2**22
_FAR = 1e100  # an ε beyond this is answered as this one
_WRAP = 1e-12  # tilted mass allowed outside the window at either end (times `scale` if that is below 1)
_DOWN = -(2.0 ** np.arange(3, -1, -1))  # tilts below 0, in units of 1/scale; they only bound the window's lower end

Parts = Sequence[tuple[Pld, int]]  # each release's PLD and how often it happens


@dataclass(frozen=True, kw_only=True)
class Tilt:
    """A tilt θ, its cost A = Σ T·K(θ), and a window beyond either end of which the tilted sum has mass ≤ `outside`."""

    theta: float
    cost: float
    low: float
    high: float
    outside: float


def tilt_for_delta(parts: Parts, delta: float, *, scale: float) -> Tilt:
    """A tilt fit to find the ε at `delta`; `scale` is about the sum's standard deviation."""
    theta, cost = _costs(parts, scale)
    right = theta > 0
    t = theta[right]
    log_peak = t * np.log(t) - (1 + t) * np.log1p(t)  # of (1 − e^{−u})e^{−θu}, u > 0: δ ≤ e^{A − θε + log_peak}
    chernoff = float(np.min((cost[right] + log_peak - math.log(delta)) / t))
    return _narrowest(theta, cost, chernoff, releases=count_releases(parts), outside=_outside(scale))


def tilt_for_epsilon(parts: Parts, epsilon: float, *, scale: float) -> Tilt:
    """A tilt fit to find the δ at `epsilon`."""
    theta, cost = _costs(parts, scale)
    return _narrowest(theta, cost, min(epsilon, _FAR), releases=count_releases(parts), outside=_outside(scale))


def untilted(parts: Parts, scale: float) -> Tilt:
    """No tilt: the whole bulk of the sum is in the window, at the price of the FFT's error being absolute."""
    theta, cost = _costs(parts, scale)
    return _window(theta, cost, int(np.flatnonzero(theta == 0)[0]), _outside(scale))


def bins(tilt: Tilt, dx: float) -> int:
    """How many bins the window needs."""
    least = math.ceil((tilt.high - tilt.low) / dx) + 4
    return next_fast_len(least, real=True) if least <= MAX_BINS else least


def count_releases(parts: Parts) -> int:
    """How many releases are composed."""
    return sum(count for _, count in parts)


@lru_cache(maxsize=1024)
def log_mgf(pld: Pld, theta: float) -> float:
    """K(θ) = ln Σ mass·e^{θℓ} over the finite losses."""
    with np.errstate(divide="ignore"):
        exponents = np.log(pld.mass) + theta * pld.losses
    top = float(exponents.max())
    return top + math.log(float(np.sum(np.exp(exponents - top))))


def _outside(scale: float) -> float:
    """The tilted mass a window may leave out at either end: small against δ even if all losses are small."""
    return _WRAP * min(scale, 1.0)


def _costs(parts: Parts, scale: float) -> tuple[Array, Array]:
    """A ladder of tilts, in steps of √2 up to 16/scale and down to 1/8 at least, and A(θ) = Σ T·K(θ) at each."""
    lowest = min(math.floor(2 * math.log2(scale)) - 6, -8)
    theta = np.concatenate([_DOWN, [0.0], 2.0 ** (np.arange(lowest, 9) / 2)]) / scale
    cost = np.array([sum(count * log_mgf(pld, float(t)) for pld, count in parts) for t in theta])
    return theta, cost


def _narrowest(theta: Array, cost: Array, epsilon: float, *, releases: int, outside: float) -> Tilt:
    """The best tilt θ > 0 (Chernoff's at `epsilon`) or, if its window is smaller, a slightly smaller θ.

    A heavy-tailed loss has a huge moment just above the best tilt, hence a huge window there; a somewhat smaller tilt
    costs a few digits of the FFT's relative accuracy, of which there are plenty (fewer after many releases).
    """
    log_bound = np.where(theta > 0, cost - theta * epsilon, math.inf)
    log_bound[-1] = math.inf  # its window has no upper end
    slack = math.log(min(max(1e8 / releases, 1.0), 1e4))
    best = int(np.argmin(log_bound))
    good = np.flatnonzero(log_bound[: best + 1] <= log_bound[best] + slack)
    return min((_window(theta, cost, int(i), outside) for i in good), key=lambda tilt: tilt.high - tilt.low)


def _window(theta: Array, cost: Array, i: int, outside: float) -> Tilt:
    """The Chernoff window of the sum under the i-th tilt."""
    up, down, room = slice(i + 1, None), slice(0, i), math.log(1 / outside)
    high = np.min((cost[up] - cost[i] + room) / (theta[up] - theta[i]))
    low = np.max((cost[i] - cost[down] - room) / (theta[i] - theta[down]))
    return Tilt(theta=float(theta[i]), cost=float(cost[i]), low=float(low), high=float(high), outside=outside)
