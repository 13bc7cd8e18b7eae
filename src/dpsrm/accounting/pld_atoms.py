"""Releases known only by a bound — pure ε-DP, ρ-zCDP — as finitely many atoms of privacy loss."""

from __future__ import annotations

import math

import numpy as np

from dpsrm.accounting.curves import Array
from dpsrm.accounting.pld_grid import Pld, from_atoms

_POINTS = 2000  # knots of the zCDP profile on either side of loss 0


def pure(epsilon: float, dx: float) -> Pld:
    """Randomised response: loss +ε with probability e^ε/(1+e^ε), else −ε; it dominates every ε-DP release."""
    up = 1 / (1 + math.exp(-epsilon))
    return from_atoms(np.array([-epsilon, epsilon]), np.array([1 - up, up]), infinite=0.0, dx=dx)


def zcdp(rho: float, dx: float) -> Pld:
    """A pair that dominates every ρ-zCDP release.

    The profile H of such a release is convex and, with D_α ≤ ρα in both directions, at most U(γ) (`_bound`) at every
    knot; between knots a convex H lies under the chord. So H lies under the piecewise linear U, and, being convex,
    under its lower convex hull. The hull is convex, falls from 1 at γ = 0 and stays above (1−γ)₊: it is the profile
    of a pair, whose loss has an atom at each corner γ: γ times the change of slope.

    *Guarantee*: dominates; it is not attained (zCDP says less than the noise's distribution does).
    """
    reach = min(rho + 2 * math.sqrt(48 * rho), 500.0)
    right = np.linspace(0.0, reach, _POINTS + 1)
    above = _bound(right, rho)
    keep = right > 0
    left = -right[keep][::-1]
    below = -np.expm1(left) + np.exp(left) * above[keep][::-1]
    gamma = np.concatenate([[0.0], np.exp(left), np.exp(right)])
    corners = _hull(gamma, np.concatenate([[1.0], below, above]))
    slopes = np.append(np.diff(corners[1]) / np.diff(corners[0]), 0.0)
    knots = corners[0][1:]
    masses = knots * np.maximum(np.diff(slopes), 0.0)
    return from_atoms(np.log(knots), masses, infinite=float(corners[1][-1]), dx=dx)


def _bound(losses: Array, rho: float) -> Array:
    """U(e^ε) for ε ≥ 0: the least of min_α e^{(α−1)(ρα−ε)}(1−1/α)^α/(α−1) and two bounds on total variation.

    The first is Canonne–Kamath–Steinke 2020, Prop. 12, sound for any choice of α; the others, from KL ≤ ρ, are
    Pinsker's √(ρ/2) and Bretagnolle–Huber's √(1−e^{−ρ}).
    """
    variation = min(math.sqrt(rho / 2), math.sqrt(-math.expm1(-rho)))
    best = np.full_like(losses, math.log(variation))
    centre = np.maximum((losses - rho) / (2 * rho), 0.1 / math.sqrt(rho))
    for factor in np.geomspace(0.5, 2.0, 25):
        excess = factor * centre  # α − 1
        alpha = 1 + excess
        log_delta = excess * (rho * alpha - losses) + alpha * np.log(excess / alpha) - np.log(excess)
        best = np.minimum(best, log_delta)
    return np.exp(best)


def _hull(x: Array, y: Array) -> tuple[Array, Array]:
    """Lower convex hull of points with increasing x (Andrew's monotone chain)."""
    chain: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        while len(chain) >= 2 and _not_convex(chain[-2], chain[-1], point):
            chain.pop()
        chain.append(point)
    hull = np.array(chain)
    return hull[:, 0], hull[:, 1]


def _not_convex(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether b lies on or above the chord from a to c."""
    return (b[1] - a[1]) * (c[0] - b[0]) >= (c[1] - b[1]) * (b[0] - a[0])
