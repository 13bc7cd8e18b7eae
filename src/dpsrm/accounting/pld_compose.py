"""Composition of privacy-loss distributions: one FFT over a tilted, Chernoff-bounded window.

The loss of Σ T_k releases is a sum of independent losses. Each pmf is tilted by e^{θℓ − K(θ)}
(pld_tilt.py), so that the sum's bulk sits where the answer is; the FFT's absolute error then becomes an error relative
to the answer. Tilting is undone by e^{A − θS}, A = Σ T_k K_k(θ).

Where errors go: mass that wraps around from above the window is missing at the top and is added to δ; mass that wraps
around from below is counted too high; both are bounded by Chernoff. p_∞ composes exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, rfft

from dpsrm.accounting.curves import Array
from dpsrm.accounting.pld_grid import Pld
from dpsrm.accounting.pld_tilt import Parts, Tilt, bins, count_releases, log_mgf

MOST_RELEASES = 2**48
_ULP = 2.0**-52

Spectrum = npt.NDArray[np.complex128]


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """δ as a function of ε for a composition, accurate near the question it was made for.

    `deltas[j]` belongs to ε = first + j·dx and includes the error `budget[j]`; in between δ is linear in e^ε.
    """

    first: float
    dx: float
    deltas: Array
    budget: Array

    @classmethod
    def unknown(cls) -> Profile:
        """Of what cannot be computed: δ = 1 at every ε."""
        return cls(first=0.0, dx=1.0, deltas=np.ones(1), budget=np.ones(1))

    def reaches(self, delta: float) -> bool:
        """Whether the least ε for `delta` lies inside the window, not below it."""
        return self.first <= 0 or bool(self.deltas[0] > delta)

    def epsilon(self, delta: float) -> tuple[float, float]:
        """The least ε ≥ 0 with δ(ε) ≤ `delta` (∞ if none), and the error budget in it."""
        if self.deltas[-1] > delta:
            return math.inf, float(self.budget[-1])
        j = int(np.argmax(self.deltas <= delta))
        if j == 0:
            return max(self.first, 0.0), self.delta(max(self.first, 0.0))[1]
        share = (self.deltas[j - 1] - delta) / (self.deltas[j - 1] - self.deltas[j])
        loss = self.first + (j - 1) * self.dx + math.log1p(share * math.expm1(self.dx))
        epsilon = max(loss + 1e-12 * abs(loss) + 4 * _ULP * abs(self.first), 0.0)
        return epsilon, self.delta(epsilon)[1]

    def delta(self, epsilon: float) -> tuple[float, float]:
        """δ(ε), at most 1, and the error budget in it."""
        place = (epsilon - self.first) / self.dx
        if place < 0:
            return 1.0, 0.0
        last = self.deltas.size - 1
        j = int(min(place, last))
        share = math.expm1((place - j) * self.dx) / math.expm1(self.dx) if j < last else 0.0
        delta = float(self.deltas[j] + share * (self.deltas[min(j + 1, last)] - self.deltas[j]))
        return min(max(delta, math.ulp(0.0)), 1.0), float(self.budget[j])


def compose(parts: Parts, tilt: Tilt) -> Profile:
    """δ(ε) of the whole composition over the window of `tilt`.

    *Guarantee*: every δ is an upper bound for the sum of the given PLDs: clipped at 0 where the FFT's noise is
    negative, plus the wrapped mass, plus a bound on the FFT's error (8 ulp per release, in the 2-norm). A mass at S
    counts (1 − e^{ε−S}) in δ(ε), so the FFT's noise counts at most 1 − e^{−width of the window}.
    *Edge cases*: above 2⁴⁸ releases that bound would no longer be one: δ = 1.
    """
    if count_releases(parts) > MOST_RELEASES:
        return Profile.unknown()
    dx, size = parts[0][0].dx, bins(tilt, parts[0][0].dx)
    start = math.floor(tilt.low / dx)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for pld, count in parts:
        spectrum *= _power(rfft(_folded(pld, tilt.theta, size)), count)
    tilted = np.roll(irfft(spectrum, n=size), -(start % size))
    losses = dx * np.arange(start, start + size)
    untilt = np.exp(np.minimum(tilt.cost - tilt.theta * losses, 600.0))
    noise = _ULP * (8 * count_releases(parts) + 32) * math.sqrt(2 * float(np.sum(np.abs(spectrum) ** 2)))
    budget = untilt * (-math.expm1(-size * dx) * noise + 2 * tilt.outside)
    deltas = _infinite(parts) + budget + _hockey_sticks(np.maximum(tilted, 0.0) * untilt, dx)
    found = Profile(first=float(losses[0]), dx=dx, deltas=deltas, budget=budget)
    return found if bool(np.all(np.isfinite(deltas))) else Profile.unknown()


def _hockey_sticks(mass: Array, dx: float) -> Array:
    """δ_j = Σ_{i>j} (1 − e^{−(i−j)dx}) mass_i, by δ_{j−1} = e^{−dx}δ_j + (1−e^{−dx})Σ_{i≥j} mass_i: nothing cancels."""
    above = np.cumsum(mass[::-1])[::-1]
    return _discounted(-math.expm1(-dx) * np.append(above[1:], 0.0), dx)


def _discounted(terms: Array, dx: float) -> Array:
    """y_j = Σ_{i≥j} e^{−(i−j)dx} terms_i, in blocks over which e^{−·dx} stays a number, for 0 ≤ terms_{j+1} ≤ terms_j.

    Nothing cancels. A block adds to the one below it at most e^{−50} of what is there, so that what would come from two
    blocks further up is far below the last bit.
    """
    block = min(max(1, int(100 / dx)), terms.size)
    rows = np.append(terms, np.zeros(-terms.size % block)).reshape(-1, block)
    weights = np.exp(-dx * np.arange(block))
    inside = np.cumsum((rows * weights)[:, ::-1], axis=1)[:, ::-1]
    above = math.exp(-dx * block) * np.append(inside[1:, 0], 0.0)
    sums: Array = (inside + above[:, None]) / weights
    return sums.ravel()[: terms.size]


def _infinite(parts: Parts) -> float:
    """Probability that some release has an infinite loss."""
    return -math.expm1(sum(count * math.log1p(-min(pld.infinite, 1 - 1e-16)) for pld, count in parts))


def _power(spectrum: Spectrum, count: int) -> Spectrum:
    """spectrum**count by squaring: much faster than exp and log, and at most 3·count roundings (Higham §3.6)."""
    raised, square = spectrum if count & 1 else None, spectrum
    while count := count >> 1:
        square = square * square
        if count & 1:
            raised = square if raised is None else raised * square
    if raised is None:
        raise AssertionError("a release is counted at least once")
    return raised


def _folded(pld: Pld, theta: float, size: int) -> Array:
    """The tilted pmf, wrapped around a circle of `size` bins; loss 0 is at index 0."""
    with np.errstate(divide="ignore"):
        tilted = np.exp(np.log(pld.mass) + theta * pld.losses - log_mgf(pld, theta))
    return np.bincount(pld.index % size, weights=tilted, minlength=size).astype(np.float64)
