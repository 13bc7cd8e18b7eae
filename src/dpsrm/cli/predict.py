"""`dpsrm predict`: what a published model says about new records."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from dpsrm.cli.show import Json, err, next_step, plain_text, print_json, track
from dpsrm.core.errors import need
from dpsrm.core.files import write_atomically
from dpsrm.runs.folder import need_outside


def predict(
    run: Annotated[Path, typer.Argument(help="The run folder; its private/ is not needed.")],
    data: Annotated[Path, typer.Option(help="CSV, Parquet, .npz or LIBSVM file; labels are not needed.")],
    to: Annotated[Path | None, typer.Option("--out", help="A CSV file to write; otherwise stdout.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file of that name.")] = False,
    proba: Annotated[bool, typer.Option(help="The probability of each class, too.")] = False,
    expect: Annotated[str | None, typer.Option(help="The chain head that training printed.")] = None,
    as_json: Json = False,
) -> None:
    """Predict new records with a run's model, from the published folder alone, after checking it.

    Example: dpsrm predict runs/visits --data new.csv --proba --out predictions.csv
    """
    _need_free(to, data, overwrite=overwrite)
    from dpsrm.training import load_run

    columns = replace(load_run(run, expect=expect), track=track).prediction_columns(data, proba=proba)
    rows = len(columns["prediction"])
    text = _csv([list(columns), *zip(*columns.values(), strict=True)])
    if to is not None:
        write_atomically(to, text.encode())
    if as_json:
        print_json({"run": str(run), "rows": rows, "out": None if to is None else str(to), **columns})
    elif to is None:
        typer.echo(text, nl=False)
    else:
        err.print(f"{rows} predictions: {plain_text(to)}", highlight=False, soft_wrap=True)
        next_step("what the model may be used for stands in its report", f"dpsrm report {quote(str(run))} --open")


def _need_free(to: Path | None, data: Path, *, overwrite: bool) -> None:
    """Refuse to write over a file that nobody asked to lose, over the records ever, and into the pages of a run."""
    if to is None:
        return
    need_outside(to)
    if not to.exists():
        return
    own = data.exists() and to.samefile(data)
    need(not own, "--out must not be the file of records", out=str(to), remedy="give another --out")
    need(overwrite, "--out must not exist yet", out=str(to), remedy="give another --out, or --overwrite")


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV; numbers with all their digits."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
