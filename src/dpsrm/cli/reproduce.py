"""`dpsrm reproduce`: the paper's tables and figures, its numbers beside ours, under a proof that holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from dpsrm.cli.reproduce_theory import reproduce_accountants, reproduce_help, reproduce_rates
from dpsrm.cli.show import DataDir, Json, going_on, next_step, out, print_json, track
from dpsrm.core.errors import need, need_extra

if TYPE_CHECKING:
    from dpsrm.experiments.problems import About
    from dpsrm.experiments.reproduction import Reproduction, Wanted
    from dpsrm.experiments.tables import TableRow

_Kind = TypeVar("_Kind", str, float)
_MORE = ("features", "rates", "accountants", "does-it-help")
"""What can be reproduced beside single problems; features are all problems named features-…"""


def reproduce(
    problem: Annotated[
        str,
        typer.Argument(
            help="a9a, ijcnn1, mnist, cifar10-cnn5, cifar10-cnn6, features-mnist, features-fashion-mnist, "
            "features-cifar10, features (these three), rates, accountants, does-it-help."
        ),
    ],
    data_dir: DataDir = None,
    results: Annotated[Path, typer.Option(help="Where results are kept, and found again.")] = Path("results"),
    trials: Annotated[int | None, typer.Option(help="Trials per row; by default 30, and 10 for rates.")] = None,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    tune: Annotated[bool, typer.Option(help="Search settings on a part of the training set first.")] = False,
    quick: Annotated[
        bool, typer.Option(help="Two trials of the tuned rows at the second ε: for a9a the picture in a minute.")
    ] = False,
    epsilon: Annotated[list[float] | None, typer.Option(help="Only this budget (may be repeated).")] = None,
    model: Annotated[list[str] | None, typer.Option(help='Only this model, as "CNN4 tanh" (may be repeated).')] = None,
    method: Annotated[list[str] | None, typer.Option(help='Only this row, as "DP-SRM" (may be repeated).')] = None,
    under: Annotated[list[str] | None, typer.Option(help="Only the rows under wor or poisson.")] = None,
    seconds: Annotated[
        bool, typer.Option(help="Of images: measure the seconds of all rows that have trials anew, side by side.")
    ] = False,
    from_results: Annotated[bool, typer.Option(help="Make table and figures without running anything.")] = False,
    docs: Annotated[
        Path | None, typer.Option(help="Write tables, figures and report here (else RESULTS/report).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Reproduce the paper's nonconvex logistic regression (a9a, ijcnn1), its convolutional networks or its theory.

    Example: dpsrm reproduce a9a --data-dir data --quick
    """
    for package in ("joblib", "matplotlib"):  # before the work, not after it
        need_extra(package, extra="experiments")
    from dpsrm.data.public import data_folder
    from dpsrm.experiments.images import FEATURE_SETS
    from dpsrm.experiments.lab import Lab
    from dpsrm.experiments.problems import ABOUT
    from dpsrm.experiments.reproduction import Reproduction, publish

    known = (*ABOUT, *_MORE)
    need(problem in known, f"the problem must be one of {', '.join(known)}", problem=problem)
    need(trials is None or trials >= 1, "trials must be 1 or more", trials=trials)
    where, run = docs or results / "report", not from_results
    if problem == "rates":
        data, count = data_folder(data_dir).resolve(), trials or 10
        reproduce_rates(data, results, trials=count, workers=workers, run=run, docs=where, as_json=as_json)
        return
    if problem == "accountants":
        reproduce_accountants(results, run=run, docs=where, as_json=as_json)
        return
    if problem == "does-it-help":
        data = data_folder(data_dir).resolve()
        reproduce_help(data, results, workers=workers, run=run, docs=where, as_json=as_json)
        return
    asked = Asked(epsilon, model, method, under)
    lab = Lab(data_folder(data_dir).resolve(), results)
    found: dict[str, list[TableRow]] = {}
    for name in FEATURE_SETS if problem == "features" else (problem,):
        if problem == "features" and not run and not lab.knows(name):
            continue
        work = Reproduction(problem=name, lab=lab, workers=workers, track=track)
        wanted = asked.wanted(work.about, quick=quick)
        count = (2 if quick else trials or 30) if run else 0
        found[name] = _rows(work, wanted, tune=tune and run, trials=count, seconds=seconds)
    need(any(found.values()), "there are no results yet", results=str(results), remedy="run without --from-results")
    report = publish(lab, where)
    if as_json:
        rows = [{**row.to_json(), "problem": name} for name, each in found.items() for row in each]
        print_json({"problem": problem, "report": str(report), "rows": rows})
        return
    for name, each in found.items():
        out.print(_table(name, each))
    out.print(f"All columns, figures, and what agrees with the paper: {report}", soft_wrap=True)
    places = f" --data-dir {quote(str(data_dir))}" if data_dir else ""
    places += "" if results == Path("results") else f" --results {quote(str(results))}"
    next_step("more trials add to what is kept", f"dpsrm reproduce {problem}{places} --trials 30")


def _rows(work: Reproduction, wanted: Wanted, *, tune: bool, trials: int, seconds: bool) -> list[TableRow]:
    """A problem's rows, after what was asked for is run: searches, trials that are missing, times."""
    with going_on("what is finished is kept; the same command goes on"):
        if tune:
            work.tune(wanted)
        recipes = work.recipes(wanted)
        work.run(recipes, range(trials))
        if seconds:
            work.time(work.recipes())
    return work.rows(recipes)


class Asked(NamedTuple):
    """Which rows the options ask for."""

    epsilon: list[float] | None
    model: list[str] | None
    method: list[str] | None
    under: list[str] | None

    def wanted(self, about: About, *, quick: bool) -> Wanted:
        """The same for a problem, whose budgets and models must be among those asked for."""
        from dpsrm.experiments.reproduction import Wanted

        budgets = _known(self.epsilon, about.epsilons, "epsilon")
        return Wanted(
            epsilons=(about.epsilons[1],) if quick and not budgets else budgets,
            models=_known(self.model, about.models, "model"),
            methods=tuple(self.method or ()),
            samplings=_known(self.under, ("wor", "poisson"), "under"),
        )


def _known(asked: Sequence[_Kind] | None, known: Sequence[_Kind], name: str) -> tuple[_Kind, ...]:
    """What was asked for, each of which must be known."""
    for each in asked or ():
        need(each in known, f"{name} must be one of {', '.join(map(str, known))}", got=each)
    return tuple(asked or ())


def _table(problem: str, found: Sequence[TableRow]) -> Table:
    """The rows in the columns that fit into a terminal."""
    from dpsrm.experiments.columns import cells, columns

    shown = [column for column in columns(problem) if column.brief]
    heads = [Column(column.head, no_wrap=column.head not in ("method", "model")) for column in shown]
    under = "" if any(column.head == "adjacency" for column in shown) else ", replace-one"
    title = f"{problem}: means of trials ± 95 % confidence, δ = 1e-5{under}"
    table = Table(*heads, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in found:
        table.add_row(*cells(row, shown))
    return table
