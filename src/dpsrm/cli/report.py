"""`dpsrm report`: the pages of a run, made again and opened."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from dpsrm.cli.show import Json, err, next_step, out, plain_text, print_json
from dpsrm.core.errors import need


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    to: Annotated[Path | None, typer.Option("--out", help="Write the publishable pages here instead.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the publishable page in the browser.")] = False,
    as_json: Json = False,
) -> None:
    """Make a run's pages again: report.html to show to others, private/report.html for yourself.

    Both are single files without scripts or network. In its place the publishable page is only ever written as the
    ledger binds it.

    Example: dpsrm report runs/demo --open
    """
    from dpsrm.report.remake import remake

    need(to is None or len(runs) == 1, "--out takes the pages of one run", runs=len(runs))
    made = {str(run): remake(run, out=to) for run in runs}
    if as_json:
        pages = {
            run: {"report": str(each.report), "private": None if each.private is None else str(each.private)}
            for run, each in made.items()
        }
        print_json({"runs": pages})
    for each in made.values() if not as_json else ():
        out.print(f"To show to others: {plain_text(each.report)}", highlight=False, soft_wrap=True)
        if each.private is not None:
            out.print(f"For yourself alone: {plain_text(each.private)}", highlight=False, soft_wrap=True)
    if show:
        for each in made.values():
            if webbrowser.open(each.report.resolve().as_uri()) is False:
                err.print("There is no browser here: open the file in another way.")
    if not as_json:
        next_step("send the folder without private/; whoever gets it runs", "dpsrm verify RUN --expect HEAD")
