"""What the paper's theorems take for granted: `lipschitz` is G and `smoothness` L everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from dpsrm.core.errors import need


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What theory mode takes for granted.

    Args:
        lipschitz: G, a bound on every example's gradient norm, everywhere.
        smoothness: L, the Lipschitz constant of every example's gradient.
        gap: D_F = F(θ⁰) − min F.
        dimension: d, the number of parameters.
        n: the number of records.
        epsilon, delta: the budget.
    """

    lipschitz: float
    smoothness: float
    gap: float
    dimension: int
    n: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Refuse constants that make no problem."""
        for field in fields(self):
            value = getattr(self, field.name)
            need(0 < value < math.inf, f"{field.name} must be positive and finite", **{field.name: value})
        need(self.delta < 1, "delta must be below 1", delta=self.delta)

    @property
    def log(self) -> float:
        """ln(1/δ)."""
        return -math.log(self.delta)
