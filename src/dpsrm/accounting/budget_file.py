"""The file of a shared budget: a hash chain of reservations, made under a lock.

A file that lost lines is refused (position.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpsrm.accounting.budget import Budget, Reservation
from dpsrm.accounting.position import Position, beside, need_newest, positions_near, read_position, write_position
from dpsrm.core.errors import DpsrmError, InputError, LedgerError
from dpsrm.core.events import Adjacency, Charge, Spending, event_from_json, event_to_json
from dpsrm.core.files import Chain, Lines, read_chain

_VERSION = 2


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
