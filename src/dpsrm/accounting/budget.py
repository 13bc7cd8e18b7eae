"""A budget that several runs on the same records share: what they reserved, what it costs, what there is room for.

A run reserves everything its plan may release before it starts. A reservation is never undone: a run that died may have
released what it charged, and only its own ledger knows. The file is budget_file.py's.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from dpsrm.accounting.fixed_order import at_order, best_order, conversion_cost
from dpsrm.accounting.guarantee import Accountant, Guarantee, rounded_up, strict_epsilon
from dpsrm.accounting.pld import PldAccountant
from dpsrm.core.errors import BudgetExceeded, need
from dpsrm.core.events import Adjacency, Spending

COMPOSED_BY = {
    "rdp": "holds also for runs chosen by looking at earlier results",
    "pld": "holds only if no run was chosen by looking at another's result",
}
"""The accountants that can compose runs, and when the figure holds."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What one run may release, a keyed digest of the records it runs on, and what it protects if not one record."""

    run: str
    spending: Spending
    data: str
    unit: str | None = None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A budget file's content.

    Args:
        epsilon, delta: what all runs together may cost.
        adjacency: which datasets are neighbours; every run must promise the same.
        accountant: which proves the composition: "rdp", at one order, or "pld" (see `COMPOSED_BY`).
        order: the Rényi order of "rdp", fixed now and for ever; None: `best_order` chooses it by epsilon and delta.
        salt: keys the digests of records, so that they say nothing without this file.
        parts: whether runs may be on parts of the records, such as folds. Each is charged as if it had seen all.
        reservations: in the order in which they were made.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str = "rdp"
    order: float | None = None
    salt: str = ""
    parts: bool = False
    reservations: tuple[Reservation, ...] = ()

    def __post_init__(self) -> None:
        """Refuse budgets that are none; fix the order."""
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            need(isinstance(value, float | int) and not isinstance(value, bool), f"{name} must be a number")
        need(0 < self.epsilon < float("inf"), "epsilon must be positive and finite", epsilon=self.epsilon)
        need(0 < self.delta < 1, "delta must lie strictly between 0 and 1", delta=self.delta, remedy="try 1e-5")
        need(self.accountant in COMPOSED_BY, f"the accountant must be one of {', '.join(COMPOSED_BY)}")
        need(self.order is None or self.accountant == "rdp", "only rdp has a Rényi order", order=self.order)
        if self.accountant == "rdp":
            order = best_order(self.epsilon, self.delta) if self.order is None else self.order
            object.__setattr__(self, "order", at_order(order).order)
            room = conversion_cost(order, self.delta) < self.epsilon
            need(room, "no run fits so small a budget at this order", order=order, remedy="use --accountant pld")

    @property
    def proof(self) -> Accountant:
        """What composes the runs."""
        return PldAccountant() if self.order is None else at_order(self.order)

    @property
    def proof_name(self) -> str:
        """The same in words."""
        return self.accountant if self.order is None else f"{self.accountant} at the order {self.order:g}"

    @property
    def spending(self) -> Spending:
        """All reservations together."""
        charges = (charge for each in self.reservations for charge in each.spending.charges)
        return Spending.of(charges, adjacency=self.adjacency)

    def cost(self, more: Spending | None = None) -> Guarantee:
        """What all reservations (and `more`) cost together, by composition."""
        added = more.charges if more is not None else ()
        both = Spending.of([*self.spending.charges, *added], adjacency=self.adjacency)
        return strict_epsilon(self.proof, both, self.delta)

    @property
    def spent(self) -> float:
        """ε of all reservations; 0 if there is none."""
        return self.cost().epsilon if self.reservations else 0.0

    @property
    def remaining(self) -> float:
        """ε − spent, never negative. Composition is better than addition: a run may cost less than its own ε."""
        return max(0.0, self.epsilon - self.spent)

    @property
    def share(self) -> float:
        """How much of the room is taken, 0 … 1: of ε, or of the Rényi divergence that ε leaves at the fixed order.

        At a fixed order even a tiny run proves no small ε, so `spent` and `remaining` look worse than what is left.
        """
        nothing = 0.0 if self.order is None else conversion_cost(self.order, self.delta)
        return max(0.0, self.spent - nothing) / (self.epsilon - nothing) if self.reservations else 0.0

    @property
    def unit(self) -> str | None:
        """What the runs protect, if not one record."""
        return self.reservations[0].unit if self.reservations else None

    def need_room(self, spending: Spending, data: str, *, unit: str | None = None) -> None:
        """Refuse a run that would exceed the budget, promises another adjacency or unit, or runs on other records."""
        need(
            spending.adjacency is self.adjacency,
            f"the budget is for {self.adjacency.value} adjacency",
            adjacency=spending.adjacency.value,
        )
        need(
            not self.reservations or unit == self.unit,
            "the runs of one budget must protect the same unit: a record's promises do not add up to a person's",
            unit=unit or "one record",
            earlier=self.unit or "one record",
            remedy="give all runs the same --unit, or make another budget",
        )
        other = [] if self.parts else [each.run for each in self.reservations if each.data != data]
        need(
            not other,
            "the runs of one budget must be on the same records",
            earlier=other[:1],
            remedy="give the same data, or make another budget: for other people's records, or with --parts for folds",
        )
        epsilon = self.cost(spending).epsilon
        if not epsilon <= self.epsilon:
            raise BudgetExceeded(
                f"with this run the shared budget would be at epsilon={rounded_up(epsilon)} of {self.epsilon:.6g} "
                f"(spent before: {rounded_up(self.spent)}, composed by {self.proof_name}); the run was not started; "
                "take a smaller epsilon"
            )

    def digest(self, pieces: Iterable[bytes | memoryview]) -> str:
        """The digest of some records, keyed by this budget's salt."""
        mac = hmac.new(bytes.fromhex(self.salt), digestmod=hashlib.sha256)
        for piece in pieces:
            mac.update(len(piece).to_bytes(8, "little"))
            mac.update(piece)
        return mac.hexdigest()
