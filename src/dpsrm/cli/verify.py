"""`dpsrm verify`: believe a run folder, or say why not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpsrm.cli.show import out, print_json


def verify(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Recompute ε from a run's ledger and check the chain, the model and the certificate; exit 1 if anything is wrong.

    Example: dpsrm verify runs/demo
    """
    from dpsrm.training import verify as verify_run

    result = verify_run(run)
    guarantee, facts = result.guarantee, result.facts
    if as_json:
        body = {} if guarantee is None else guarantee.to_json()
        print_json(
            {
                "ok": result.ok,
                "problems": list(result.problems),
                "private_randomness": None if facts is None else facts.header.private_randomness,
                **body,
            }
        )
    else:
        for problem in result.problems:
            out.print(f"[red]✗[/] {problem}", highlight=False)
        if result.ok and guarantee is not None:
            out.print(f"✓ the ledger is intact and proves ε = {guarantee.epsilon:.6g} at δ = {guarantee.delta:g}")
        elif result.ok:
            out.print("✓ the ledger is intact; it promises no privacy (ε = ∞)")
        if facts is not None and not facts.header.private_randomness:
            out.print("! seeded: reproducible, not private")
    if not result.ok:
        raise typer.Exit(1)
