"""Parts of a query as sums over *atoms*: a point's gradient, or the difference of two points' gradients.

An example's part Σ_k c_k·∇f_i(θ_k) with coefficients of both signs loses most of its digits when the points are close
and the gradients nearly equal. So the coefficients are paired, positive with negative, and every pair becomes one
difference, which the blocks compute without cancelling; what is left over has one sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsrm.gradients.query import Query

Atom = tuple[int, int]
"""(j, j): the gradient at point j; (j, k) with j < k: the gradient at point j minus that at point k."""

Combination = dict[Atom, float]
"""Σ coefficient·atom, without zeros."""


def combination(coefficients: Sequence[float]) -> Combination:
    """The part with these coefficients as a sum over atoms.

    >>> combination((1.0, -1.0)), combination((1.0, 0.0))
    ({(0, 1): 1.0}, {(0, 0): 1.0})
    >>> combination((-0.5, 1.5))
    {(0, 1): -0.5, (1, 1): 1.0}
    """
    rest = list(coefficients)
    mixed: Combination = {}
    plus, minus = [k for k, c in enumerate(rest) if c > 0], [k for k, c in enumerate(rest) if c < 0]
    while plus and minus:
        j, k = plus[0], minus[0]
        amount = min(rest[j], -rest[k])
        mixed[min(j, k), max(j, k)] = amount if j < k else -amount
        rest[j] -= amount
        rest[k] += amount
        plus, minus = [j for j in plus if rest[j] > 0], [k for k in minus if rest[k] < 0]
    mixed.update({(k, k): rest[k] for k in plus + minus})
    return mixed


@dataclass(frozen=True)
class Mixture:
    """All parts of a query over their common atoms."""

    atoms: tuple[Atom, ...]
    parts: tuple[Combination, ...]

    @classmethod
    def of(cls, query: Query) -> Mixture:
        """The mixture of `query`'s parts."""
        parts = tuple(combination(part.coefficients) for part in query.parts)
        return cls(tuple(sorted({atom for part in parts for atom in part})), parts)
