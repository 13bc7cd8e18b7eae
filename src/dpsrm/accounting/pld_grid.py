"""Privacy-loss distributions on a grid, rounded so that they can only be too pessimistic ("connect the dots").

A pair (P, Q) of distributions has the loss ℓ = ln(dP/dQ); its law under P is all that composition needs. A cell
(a, b] with masses p under P and r under Q becomes two atoms at its ends that keep both masses:

    upper end: (p − e^a r)/(1 − e^{a−b})        lower end: the rest

This draws a straight line through two points of the convex profile γ ↦ H_γ(P‖Q), hence lies above it
(Doroshenko–Ghazi–Kamath–Kumar–Manurangsi 2022). Callers pass `gap` = p − e^a r, computed without cancellation.

All knots are multiples of dx, so that losses add up on the grid; but far from 0, where there is little mass, knots
are spaced in proportion to the loss (`knots`): a few thousand of them reach as far as anyone needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsrm.accounting.curves import Array

Index = npt.NDArray[np.int64]
_FARTHEST = 2**62
_DENSE = 1024  # knots 0 .. 1024 are consecutive; above, each is about 1 + 1/1024 times the one before


@dataclass(frozen=True, kw_only=True, eq=False)
class Pld:
    """P-masses at the losses index·dx (increasing), and at +∞.

    *Guarantee*: its profile is at least that of the pair it was made from, at every γ.
    """

    dx: float
    index: Index
    mass: Array
    infinite: float

    @property
    def losses(self) -> Array:
        """The loss at each entry of `mass`."""
        return self.dx * self.index.astype(np.float64)


def knots(last: int) -> Index:
    """Grid indices from 0 to at least `last` (or 2⁶², the farthest): consecutive at first, then geometric.

    >>> knots(3)
    array([0, 1, 2, 3])
    >>> len(knots(10**7))
    10433
    """
    last = min(last, _FARTHEST)
    if last <= _DENSE:
        return np.arange(max(last, 1) + 1, dtype=np.int64)
    far = math.ceil(_DENSE * math.log(last / _DENSE))
    grown = np.ceil(_DENSE * np.exp(np.arange(1, far + 1) / _DENSE)).astype(np.int64)
    return np.unique(np.concatenate([np.arange(_DENSE + 1, dtype=np.int64), grown]))


def connect(*, index: Index, dx: float, mass: Array, gap: Array, tail: tuple[float, float], below: float = 0.0) -> Pld:
    """The pessimistic PLD of cells between consecutive knots `index`.

    Args:
        mass: each cell's p.
        gap: each cell's p − e^a r at its lower end a.
        tail: p and p − e^{top} r of everything above the last knot: e^{top} r goes to the top, the rest to +∞.
        below: p of everything under the first knot, rounded up to it.
    """
    width = dx * np.diff(index).astype(np.float64)
    upper = np.clip(gap / -np.expm1(-width), 0.0, mass)
    dots = np.zeros(mass.size + 1)
    dots[1:] += upper
    dots[:-1] += mass - upper
    infinite = min(max(tail[1], 0.0), tail[0])
    dots[-1] += tail[0] - infinite
    dots[0] += below
    return Pld(dx=dx, index=index, mass=dots, infinite=infinite)


def mirrored(right: Pld, *, atom: float) -> Pld:
    """The symmetric PLD with `right` (losses from 0 up) as its right half and `atom` more at 0.

    The mirror law of a pair that is its own mirror image: pmf(−ℓ) = e^{−ℓ} pmf(ℓ).
    """
    left = (right.mass * np.exp(-right.losses))[:0:-1]
    middle = atom + 2 * right.mass[0]
    mass = np.concatenate([left, [middle], right.mass[1:]])
    index = np.concatenate([-right.index[:0:-1], right.index])
    return Pld(dx=right.dx, index=index, mass=mass, infinite=right.infinite)


def from_atoms(losses: Array, masses: Array, *, infinite: float, dx: float) -> Pld:
    """The pessimistic PLD of finitely many atoms (loss, P-mass), each shared between its two neighbours on the grid."""
    below = np.floor(losses / dx).astype(np.int64)
    share = np.clip(np.expm1(-(losses - below * dx)) / math.expm1(-dx), 0.0, 1.0)
    index, place = np.unique(np.concatenate([below, below + 1]), return_inverse=True)
    mass = np.bincount(place, weights=np.concatenate([masses * (1 - share), masses * share]))
    return Pld(dx=dx, index=index, mass=mass.astype(np.float64), infinite=infinite)
