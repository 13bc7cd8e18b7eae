"""`dpsrm reproduce`: the paper's tables and figures, its numbers beside ours, under a proof that holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from dpsrm.cli.show import err, out, print_json
from dpsrm.core.errors import need


def reproduce(
    problem: Annotated[str, typer.Argument(help="a9a or ijcnn1.")],
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data (else $DPSRM_DATA, else ./data).")] = None,
    results: Annotated[Path, typer.Option(help="Where results are kept, and found again.")] = Path("results"),
    trials: Annotated[int, typer.Option(help="Trials per row.")] = 30,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    tune: Annotated[bool, typer.Option(help="Search settings on a part of the training set first.")] = False,
    quick: Annotated[
        bool, typer.Option(help="Two trials of the tuned rows at ε = 0.5: the picture in a minute.")
    ] = False,
    from_results: Annotated[bool, typer.Option(help="Make table and figures without running anything.")] = False,
    docs: Annotated[
        Path | None, typer.Option(help="Write tables, figures and report here (else RESULTS/report).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Reproduce the paper's nonconvex logistic regression on a9a or ijcnn1.

    Example: dpsrm reproduce a9a --data-dir data --quick
    """
    from dpsrm.data.public import data_folder
    from dpsrm.experiments.reproduction import EPSILONS, Reproduction, publish
    from dpsrm.experiments.runner import Lab
    from dpsrm.experiments.tables import BRIEF, HEAD, cells

    need(trials >= 1, "trials must be 1 or more", trials=trials)
    lab = Lab(data_folder(data_dir).resolve(), results)
    work = Reproduction(problem=problem, lab=lab, workers=workers, track=_track)
    if tune and not from_results:
        work.tune()
    recipes = work.recipes((0.5,) if quick else EPSILONS)
    if not from_results:
        work.run(recipes, range(2 if quick else trials))
    found = work.rows(recipes)
    need(len(found) > 0, "there are no results yet", results=str(results), remedy="run without --from-results")
    report = publish(lab, docs or results / "report")
    if as_json:
        print_json({"problem": problem, "report": str(report), "rows": [row.to_json() for row in found]})
        return
    title = f"{problem}: means of trials ± 95 % confidence, δ = 1e-5, replace-one"
    columns = [Column(name, no_wrap=name != "method") for name in BRIEF]
    table = Table(*columns, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in found:
        told = dict(zip(HEAD, cells(row), strict=True))
        table.add_row(*(told[name] for name in BRIEF))
    out.print(table)
    out.print(f"All columns, figures, and what agrees with the paper: {report}")


def _track(jobs: Iterable[Any], total: int, title: str) -> Iterable[Any]:
    """A bar with the time left."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=err) as bar:
        yield from bar.track(jobs, total=total, description=title)
