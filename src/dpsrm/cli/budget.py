"""`dpsrm budget`: one budget for several runs on the same records."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from rich.table import Table

from dpsrm.accounting.budget import COMPOSED_BY, Budget, Reservation
from dpsrm.accounting.budget_file import create_budget, read_budget
from dpsrm.accounting.guarantee import rounded_down, rounded_up
from dpsrm.cli.show import Json, next_step, out, plain_text, print_json
from dpsrm.core.errors import DpsrmError
from dpsrm.core.events import Adjacency, Charge, Spending
from dpsrm.runs.folder import need_outside
from dpsrm.runs.ledger import read_ledger

budget = typer.Typer(help="Share one privacy budget among several runs on the same records.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="The budget file; keep it to yourself.")]


@budget.command()
def init(
    file: File,
    epsilon: Annotated[float, typer.Option(help="ε that all runs together may spend.")],
    delta: Annotated[float, typer.Option(help="δ of all runs together, e.g. 1e-5.")],
    adjacency: Annotated[Adjacency, typer.Option(help="Which datasets are neighbours.")] = Adjacency.REPLACE_ONE,
    by: Annotated[
        str, typer.Option("--accountant", help="rdp, or pld: tighter, if no run is chosen by another's result.")
    ] = "rdp",
    order: Annotated[float | None, typer.Option(help="The Rényi order of rdp; by default a fitting one.")] = None,
    parts: Annotated[bool, typer.Option(help="Allow runs on parts of the records; each is charged as on all.")] = False,
    as_json: Json = False,
) -> None:
    """Make a budget.

    Example: dpsrm budget init visits.budget --epsilon 2 --delta 1e-5
    """
    need_outside(file)
    create_budget(
        file, Budget(epsilon=epsilon, delta=delta, adjacency=adjacency, accountant=by, order=order, parts=parts)
    )
    show(file, as_json=as_json)
    if not as_json:
        next_step("let runs share it", f"dpsrm train … --budget {quote(str(file))}")


@budget.command()
def show(file: File, as_json: Json = False) -> None:
    """What is spent and what remains.

    Example: dpsrm budget show visits.budget --json
    """
    found = read_budget(file)
    rows = [_row(each) for each in found.reservations]
    facts = {
        "epsilon": found.epsilon,
        "delta": found.delta,
        "adjacency": found.adjacency.value,
        "unit": found.unit,
        "accountant": found.accountant,
        "order": found.order,
        "composition": COMPOSED_BY[found.accountant],
        "spent": found.spent,
        "remaining": found.remaining,
        "share": found.share,
        "runs": rows,
    }
    if as_json:
        print_json(facts)
        return
    out.print(f"ε = {rounded_up(found.spent)} of {found.epsilon:g} spent at δ = {rounded_up(found.delta)} ", end="")
    out.print(f"({found.adjacency.value}); {rounded_down(found.remaining)} remains")
    if found.unit is not None:
        out.print(f"Protected: all rows with the same {plain_text(found.unit)}.", highlight=False, soft_wrap=True)
    out.print(f"{found.share:.1%} of the room is taken{_fitting(found)}.", highlight=False)
    out.print(f"Composed by {plain_text(found.proof_name)}; this {COMPOSED_BY[found.accountant]}.", highlight=False)
    if rows:
        table = Table("run", "reserved releases", "charged", "state")
        for row in rows:
            table.add_row(*("?" if value is None else plain_text(value) for value in row.values()))
        out.print(table)
        out.print("A reservation counts in full, also of a run that died or charged less.", highlight=False)


_COUNTED = 10


def _fitting(found: Budget) -> str:
    """How many runs like the last one still fit: not what the difference of the two ε seems to say."""
    if not found.reservations or found.order is None:
        return ""
    last, fit = found.reservations[-1].spending, 0
    while fit < _COUNTED:
        more = Spending.of((Charge(c.event, (fit + 1) * c.count) for c in last.charges), adjacency=last.adjacency)
        if found.cost(more).epsilon > found.epsilon:
            break
        fit += 1
    return f"; runs like the last one that still fit: {fit}{' or more' if fit == _COUNTED else ''}"


def _row(reservation: Reservation) -> dict[str, Any]:
    """One run: what it reserved, and what its ledger says, if it can be found."""
    row = {"run": reservation.run, "reserved": reservation.spending.releases, "charged": None}
    try:
        facts = read_ledger(Path(reservation.run) / "ledger.jsonl", torn=True)
    except DpsrmError:
        return {**row, "state": "no ledger found"}
    return {**row, "charged": facts.spending.releases, "state": "finished" if facts.closed else "unfinished"}
