"""Privacy-loss distributions on a grid, rounded so that they can only be too pessimistic ("connect the dots").

A pair (P, Q) of distributions has the loss ℓ = ln(dP/dQ); its law under P is all that composition needs. A cell
(a, a+dx] with masses p under P and r under Q becomes two atoms at its ends that keep both masses:

    upper end: (p − e^a r)/(1 − e^{−dx})        lower end: the rest

This draws a straight line through two points of the convex profile γ ↦ H_γ(P‖Q), hence lies above it
(Doroshenko–Ghazi–Kamath–Kumar–Manurangsi 2022). Callers pass `gap` = p − e^a r, computed without cancellation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsrm.accounting.curves import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Pld:
    """P-masses at the losses (start + i)·dx, and at +∞.

    *Guarantee*: its profile is at least that of the pair it was made from, at every γ.
    """

    dx: float
    start: int
    mass: Array
    infinite: float

    @property
    def losses(self) -> Array:
        """The loss at each entry of `mass`."""
        return grid(self.dx, self.start, self.start + self.mass.size - 1)


def grid(dx: float, first: int, last: int) -> Array:
    """The losses first·dx .. last·dx."""
    return dx * np.arange(first, last + 1, dtype=np.float64)


def connect(*, start: int, dx: float, mass: Array, gap: Array, tail: tuple[float, float], below: float = 0.0) -> Pld:
    """The pessimistic PLD of cells: cell i spans the losses (start+i)·dx .. (start+i+1)·dx.

    Args:
        mass: each cell's p.
        gap: each cell's p − e^a r at its lower end a.
        tail: p and p − e^{top} r of everything above the last cell: e^{top} r goes to the top, the rest to +∞.
        below: p of everything under the first cell, rounded up to its lower end.
    """
    upper = np.clip(gap / -math.expm1(-dx), 0.0, mass)
    dots = np.zeros(mass.size + 1)
    dots[1:] += upper
    dots[:-1] += mass - upper
    infinite = min(max(tail[1], 0.0), tail[0])
    dots[-1] += tail[0] - infinite
    dots[0] += below
    return Pld(dx=dx, start=start, mass=dots, infinite=infinite)


def mirrored(right: Pld, *, atom: float) -> Pld:
    """The symmetric PLD with `right` (losses from 0 up) as its right half and `atom` more at 0.

    The mirror law of a pair that is its own mirror image: pmf(−ℓ) = e^{−ℓ} pmf(ℓ).
    """
    left = (right.mass * np.exp(-right.losses))[:0:-1]
    middle = atom + 2 * right.mass[0]
    mass = np.concatenate([left, [middle], right.mass[1:]])
    return Pld(dx=right.dx, start=1 - right.mass.size, mass=mass, infinite=right.infinite)


def from_atoms(losses: Array, masses: Array, *, infinite: float, dx: float) -> Pld:
    """The pessimistic PLD of finitely many atoms (loss, P-mass), each shared between its two neighbours on the grid."""
    below = np.floor(losses / dx).astype(np.int64)
    share = np.clip(np.expm1(-(losses - below * dx)) / math.expm1(-dx), 0.0, 1.0)
    start = int(below.min())
    size = int(below.max()) - start + 2
    mass: Array = np.bincount(below - start, weights=masses * (1 - share), minlength=size).astype(np.float64)
    mass += np.bincount(below - start + 1, weights=masses * share, minlength=size)
    return Pld(dx=dx, start=start, mass=mass, infinite=infinite)
