"""A budget that several runs on the same records share: a hash-chained file of reservations, made under a lock.

A run reserves everything its plan may release before it starts. A reservation is never undone: a run that died may have
released what it charged, and only its own ledger knows. A file that lost lines is refused (position.py).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsrm.accounting.fixed_order import at_order, best_order, conversion_cost
from dpsrm.accounting.guarantee import Accountant, Guarantee, strict_epsilon
from dpsrm.accounting.pld import PldAccountant
from dpsrm.accounting.position import Position, beside, need_newest, positions_near, read_position, write_position
from dpsrm.core.chain import Chain, Lines, read_chain
from dpsrm.core.errors import BudgetExceeded, DpsrmError, InputError, LedgerError, need
from dpsrm.core.events import Adjacency, Charge, Spending, event_from_json, event_to_json

_VERSION = 2
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
                f"with this run the shared budget would be at epsilon={epsilon:.6g} of {self.epsilon:.6g} "
                f"(spent before: {self.spent:.6g}, composed by {self.proof_name}); the run was not started; take a "
                "smaller epsilon"
            )

    def digest(self, pieces: Iterable[bytes | memoryview]) -> str:
        """The digest of some records, keyed by this budget's salt."""
        mac = hmac.new(bytes.fromhex(self.salt), digestmod=hashlib.sha256)
        for piece in pieces:
            mac.update(len(piece).to_bytes(8, "little"))
            mac.update(piece)
        return mac.hexdigest()


def create_budget(path: Path, budget: Budget) -> None:
    """Write a new budget file and its position beside it, readable by their owner alone; neither may exist."""
    path = path.resolve()
    if beside(path).exists() and not path.exists():
        raise InputError(f"{beside(path)} says that there was a budget {path}; put it back, or choose another file")
    try:
        chain = Chain.create(path, mode=0o600)
    except OSError as error:
        raise InputError(f"cannot create the budget {path}: {error}; choose a file that does not exist") from error
    body = {
        "kind": "budget",
        "version": _VERSION,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "adjacency": budget.adjacency.value,
        "accountant": budget.accountant,
        "order": budget.order,
        "salt": secrets.token_hex(32),
        **({"parts": True} if budget.parts else {}),
    }
    try:
        chain.append(body)
        write_position(beside(path), Position(file=str(path), budget=chain.head, lines=1, head=chain.head))
    finally:
        chain.close()


def read_budget(path: Path, *, near: Iterable[Path] = ()) -> Budget:
    """Read and verify a budget file, and refuse one that is older than the runs made with it.

    Args:
        near: run folders beside which to look for runs of this budget, as is done beside the runs that it names.

    Guarantee: every reservation that was handed out counts. The last line counts if it only lost its line end. One that
    is torn was never handed out, as `reserve` returns only after FILE.head, which was read before, counts it.
    """
    path = path.resolve()
    kept = read_position(beside(path))
    named = [Path(each.run) for each in _budget(read_chain(path, torn=True), path).reservations]
    known = list(positions_near([*near, *named]))
    lines = read_chain(path, torn=True)
    need_newest(lines, path, kept=kept, known=known)
    return _budget(lines, path)


def reserve(path: Path, spending: Spending, *, run: str, data: str, unit: str | None = None) -> Position:
    """Reserve `spending` for `run`, or raise `BudgetExceeded`; the run keeps the position that is returned.

    Guarantee: the file is locked from reading what was reserved until the new reservation is on disk, so of two runs
    that want the last of a budget one gets it.
    """
    path = path.resolve()
    chain, lines = Chain.reopen(path, wait=True)
    try:
        found = _budget(lines, path)
        known = list(positions_near([Path(run), *(Path(each.run) for each in found.reservations)]))
        need_newest(lines, path, kept=read_position(beside(path)), known=known)
        found.need_room(spending, data, unit=unit)
        charges = [[event_to_json(charge.event), charge.count] for charge in spending.charges]
        named = {} if unit is None else {"unit": unit}
        chain.append({"kind": "reservation", "run": run, "data": data, "charges": charges, **named})
        position = Position(file=str(path), budget=lines.hashes[0], lines=chain.count, head=chain.head)
        write_position(beside(path), position)
    finally:
        chain.close()
    return position


def _budget(lines: Lines, path: Path) -> Budget:
    """The budget that verified lines state."""
    try:
        first, *rest = lines.bodies
        if first["kind"] != "budget" or first["version"] != _VERSION:
            raise ValueError(
                f"a budget opens with its header of version {_VERSION}; what an older one spent stays spent"
            )
        adjacency = Adjacency(first["adjacency"])
        return Budget(
            epsilon=first["epsilon"],
            delta=first["delta"],
            adjacency=adjacency,
            accountant=first["accountant"],
            order=first["order"],
            salt=bytes.fromhex(first["salt"]).hex(),
            parts=first.get("parts", False) is True,
            reservations=tuple(_reservation(body, adjacency) for body in rest),
        )
    except (KeyError, TypeError, ValueError, DpsrmError) as error:
        raise LedgerError(f"{path} is not a budget: {str(error)[:200]}; make one with dpsrm budget init") from error


def _reservation(body: dict[str, Any], adjacency: Adjacency) -> Reservation:
    """One line's reservation."""
    if body["kind"] != "reservation":
        raise ValueError("expected a reservation")
    charges = [Charge(event_from_json(event), count) for event, count in body["charges"]]
    spending = Spending.of(charges, adjacency=adjacency)
    unit = None if "unit" not in body else str(body["unit"])
    return Reservation(run=str(body["run"]), spending=spending, data=str(body["data"]), unit=unit)
