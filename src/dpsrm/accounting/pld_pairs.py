"""The dominating pairs of one Gaussian release on a sampled batch, as privacy-loss distributions.

Units: the sensitivity is 1, the noise has standard deviation s = `noise`; q = `rate`; x is the released number.
Why each pair dominates: docs/decisions/pld.md (without replacement) and docs/decisions/poisson.md (Poisson).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from dpsrm.accounting.curves import Array
from dpsrm.accounting.pld_grid import Index, Pld, connect, knots, mirrored

_REACH = 9.5  # standard deviations kept on either side: Φ(−9.5) ≈ 1e-21 goes to +∞ at each release
_MAX_LOSS = 500.0  # larger losses count as infinite, so that e^ℓ stays a number


@dataclass(frozen=True, kw_only=True)
class Shifted:
    """(1−q)N(0,s²) + q·N(1,s²) against N(0,s²): loss L(x) = ln(1 − q + q·e^{(x−½)/s²})."""

    rate: float
    noise: float

    def loss(self, x: float) -> float:
        """L(x), increasing in x, at most `_MAX_LOSS`."""
        return min(_log_mixture((x - 0.5) / self.noise**2, self.rate), _MAX_LOSS)

    def at(self, losses: Array) -> Array:
        """x with L(x) = ℓ; −∞ for losses that no x has."""
        ratio = np.maximum(np.expm1(losses) / self.rate, -1.0)
        with np.errstate(divide="ignore"):
            return 0.5 + self.noise**2 * np.log1p(ratio)


@dataclass(frozen=True, kw_only=True)
class Opposed:
    """(1−q)N(0,s²) + q·N(½,s²) against (1−q)N(0,s²) + q·N(−½,s²): an odd, increasing loss."""

    rate: float
    noise: float

    def loss(self, x: float) -> float:
        """L(x), at most `_MAX_LOSS`."""
        scale = 2 * self.noise**2
        up, down = (_log_mixture(exponent / scale, self.rate) for exponent in (x - 0.25, -x - 0.25))
        return min(up - down, _MAX_LOSS)

    def at(self, losses: Array) -> Array:
        """x with L(x) = ℓ ≥ 0: s²ℓ + 2s²·asinh(w), w = (1/q − 1)·e^{1/8s²}·sinh(ℓ/2), in logs where w is huge."""
        variance = self.noise**2
        log_factor = math.log1p(-self.rate) - math.log(self.rate) + 1 / (8 * variance)
        with np.errstate(divide="ignore"):
            log_w = log_factor + losses / 2 + np.log(-np.expm1(-losses)) - math.log(2)
        asinh = np.where(log_w > 20, math.log(2) + log_w, np.arcsinh(np.exp(np.minimum(log_w, 20))))
        return variance * losses + 2 * variance * asinh


def wor(rate: float, noise: float, dx: float) -> Pld:
    """One release on a batch drawn without replacement, under replace-one; at q = 1 the Gaussian mechanism.

    Right half: the losses of `Shifted` at x > ½; atom (1−q)(1 − 2Φ(−1/2s)) at 0; left half by the mirror law.

    *Guarantee*: at least the profile h(γ) = q·G_s(1 + (γ−1)/q), γ ≥ 1, that dominates the release and its mirror.
    """
    pair = Shifted(rate=rate, noise=noise)
    right = _mixture(pair, _right(pair.loss(1 + _REACH * noise), dx), dx)
    atom = (1 - rate) * (1 - 2 * float(ndtr(-0.5 / noise)))
    return mirrored(right, atom=atom)


def poisson_replace(rate: float, noise: float, dx: float) -> Pld:
    """One release on a Poisson batch under replace-one: the pair `Opposed`, its own mirror image."""
    pair = Opposed(rate=rate, noise=noise)
    index = _right(pair.loss(0.5 + _REACH * noise), dx)
    losses = dx * index.astype(np.float64)
    x = pair.at(losses)
    still, up, down = (_masses(x, mean, noise) for mean in (0.0, 0.5, -0.5))
    mass = (1 - rate) * still + rate * up
    gap = rate * (up - np.exp(losses) * down) - (1 - rate) * np.expm1(losses) * still
    tail = (float(mass[-1]), float(gap[-1]))
    return mirrored(connect(index=index, dx=dx, mass=mass[:-1], gap=gap[:-1], tail=tail), atom=0.0)


def poisson_remove(rate: float, noise: float, dx: float) -> Pld:
    """One release on a Poisson batch, the record present against absent: `Shifted`."""
    pair = Shifted(rate=rate, noise=noise)
    return _mixture(pair, _both(pair, dx), dx)


def poisson_add(rate: float, noise: float, dx: float) -> Pld:
    """One release on a Poisson batch, the record absent against present: `Shifted` with its sides exchanged."""
    pair = Shifted(rate=rate, noise=noise)
    index = _both(pair, dx)
    losses = dx * index.astype(np.float64)
    x = pair.at(losses)
    base, moved = _masses(x, 0.0, noise)[:-1], _masses(x, 1.0, noise)[:-1]
    gap = np.exp(-losses[1:]) * ((np.expm1(losses[1:]) + rate) * base - rate * moved)
    below = float(ndtr(-x[-1] / noise))
    rest, rest_moved = float(ndtr(x[0] / noise)), float(ndtr((x[0] - 1) / noise))
    rest_gap = math.exp(-losses[0]) * ((math.expm1(losses[0]) + rate) * rest - rate * rest_moved)
    return connect(index=-index[::-1], dx=dx, mass=base[::-1], gap=gap[::-1], tail=(rest, rest_gap), below=below)


def variance(pair: Shifted | Opposed) -> float:
    """Variance of the symmetric loss of a release (for the grid's step, so a rough quadrature is enough)."""
    start, means = (0.5, (0.0, 1.0)) if isinstance(pair, Shifted) else (0.0, (-0.5, 0.5))
    x = np.linspace(start, means[1] + _REACH * pair.noise, 1001)
    loss = np.array([pair.loss(each) for each in x])
    low, high = (
        np.exp(-(((x - mean) / pair.noise) ** 2) / 2) / (pair.noise * math.sqrt(2 * math.pi)) for mean in means
    )
    still = np.exp(-((x / pair.noise) ** 2) / 2) / (pair.noise * math.sqrt(2 * math.pi))
    upper = (1 - pair.rate) * still + pair.rate * high
    lower = still if isinstance(pair, Shifted) else (1 - pair.rate) * still + pair.rate * low
    step = float(x[1] - x[0])
    square = step * float(np.sum(loss**2 * (upper + lower)))
    return max(square - (step * float(np.sum(loss * (upper - lower)))) ** 2, square * 1e-3)


def _log_mixture(exponent: float, rate: float) -> float:
    """ln(1 − q + q·e^x), to full relative precision however small q and x are."""
    if rate == 1:
        return exponent
    if exponent > _MAX_LOSS:  # ln q ≥ −37: what is left out here is lost in rounding
        return math.log(rate) + exponent
    return math.log1p(rate * math.expm1(exponent))


def _right(loss: float, dx: float) -> Index:
    """Knots from 0 up to `loss` at least."""
    return knots(math.ceil(loss / dx))


def _both(pair: Shifted, dx: float) -> Index:
    """Knots that span the losses of all x within reach."""
    low, high = pair.loss(-_REACH * pair.noise), pair.loss(1 + _REACH * pair.noise)
    return np.concatenate([-_right(-low, dx)[:0:-1], _right(high, dx)])


def _mixture(pair: Shifted, index: Index, dx: float) -> Pld:
    """`Shifted` on the knots `index`; what lies below the first is rounded up to it, unless that is 0: left out."""
    rate, noise = pair.rate, pair.noise
    losses = dx * index.astype(np.float64)
    x = pair.at(losses)
    base, moved = _masses(x, 0.0, noise), _masses(x, 1.0, noise)
    mass = (1 - rate) * base + rate * moved
    gap = rate * moved - (np.expm1(losses) + rate) * base
    below = 0.0
    if index[0] < 0:
        below = (1 - rate) * float(ndtr(x[0] / noise)) + rate * float(ndtr((x[0] - 1) / noise))
    tail = (float(mass[-1]), float(gap[-1]))
    return connect(index=index, dx=dx, mass=mass[:-1], gap=gap[:-1], tail=tail, below=below)


def _masses(x: Array, mean: float, noise: float) -> Array:
    """N(mean, noise²) of each cell (x_i, x_{i+1}] and of (x_last, ∞), each from the nearer tail."""
    z = np.append((x - mean) / noise, np.inf)
    from_left, from_right = np.diff(ndtr(z)), -np.diff(ndtr(-z))
    return np.where(z[:-1] > 0, from_right, from_left)
