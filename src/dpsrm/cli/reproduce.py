"""`dpsrm reproduce`: the paper's tables and figures, its numbers beside ours, under a proof that holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import track
from rich.table import Table

from dpsrm.cli.show import err, out, print_json
from dpsrm.core.errors import need

if TYPE_CHECKING:
    from dpsrm.experiments.recipes import Recipe
    from dpsrm.experiments.runner import Job, Lab

EPSILONS = (0.2, 0.5)


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
    docs: Annotated[Path | None, typer.Option(help="Write table and figures into this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Reproduce the paper's nonconvex logistic regression on a9a or ijcnn1.

    Example: dpsrm reproduce a9a --data-dir data --quick
    """
    from dpsrm.data.public import LIBSVM_SETS, data_folder
    from dpsrm.experiments.runner import Lab
    from dpsrm.experiments.tables import HEAD, cells, rows

    need(problem in LIBSVM_SETS, f"the problem must be one of {', '.join(LIBSVM_SETS)}", problem=problem)
    need(trials >= 1, "trials must be 1 or more", trials=trials)
    lab = Lab(data_folder(data_dir).resolve(), results)
    if tune and not from_results:
        _tune(lab, problem, workers)
    recipes = _recipes(lab, problem, epsilons=(0.5,) if quick else EPSILONS)
    if not from_results:
        _run(lab, problem, recipes, range(2 if quick else trials), workers=workers)
    found = rows(lab, problem, recipes)
    if docs is not None:
        _write(lab, problem, recipes, docs)
    if as_json:
        print_json({"problem": problem, "rows": [row.to_json() for row in found]})
        return
    table = Table(*HEAD, title=f"{problem}: means of trials ± 95 % confidence, δ = 1e-5, replace-one")
    for row in found:
        table.add_row(*cells(row))
    out.print(table)


def _tuned_file(results: Path, problem: str) -> Path:
    """Where the outcome of a search is kept: in the results, or with the package."""
    own = results / f"{problem}-tuned.json"
    shipped = Path(__file__).parent.parent / "experiments" / f"{problem}-tuned.json"
    return own if own.exists() else shipped


def _tune(lab: Lab, problem: str, workers: int) -> None:
    """Random search, the same number of tries for every method."""
    from dpsrm.experiments.runner import missing
    from dpsrm.experiments.tuning import SEEDS, all_tries, best, write_tuned

    recipes = all_tries(EPSILONS, ("wor",))
    _show_progress(lab, missing(lab, problem, recipes, SEEDS, validation=True), workers, "tuning")
    write_tuned(lab.results / f"{problem}-tuned.json", best(lab, problem, recipes))


def _recipes(lab: Lab, problem: str, *, epsilons: Sequence[float]) -> list[Recipe]:
    """The rows: tuned under WOR as in the paper, the same under Poisson, and the paper's settings with its noise."""
    from dpsrm.experiments.recipes import RECORDS, with_papers_noise
    from dpsrm.experiments.tuning import read_tuned

    tuned = read_tuned(_tuned_file(lab.results, problem))
    need(len(tuned) > 0, "there are no tuned settings for this problem", remedy="run with --tune first")
    chosen = [recipe for recipe in tuned if recipe.epsilon is None or recipe.epsilon in epsilons]
    private = [recipe for recipe in chosen if recipe.epsilon is not None]
    poisson = [replace(recipe, sampling="poisson") for recipe in private if recipe.method not in ("gd", "agd")]
    paper = [with_papers_noise(recipe, RECORDS[problem]) for recipe in private if "paper's" in recipe.label]
    return [*chosen, *poisson, *paper]


def _run(lab: Lab, problem: str, recipes: Sequence[Recipe], seeds: Sequence[int], *, workers: int) -> None:
    """Run what is missing."""
    from dpsrm.experiments.runner import missing

    _show_progress(lab, missing(lab, problem, recipes, list(seeds), validation=False), workers, problem)


def _show_progress(lab: Lab, jobs: Sequence[Job], workers: int, title: str) -> None:
    """Run jobs under a progress bar with the time left."""
    from dpsrm.experiments.runner import run_jobs

    need(workers >= 1, "workers must be 1 or more", workers=workers)
    if jobs:
        for _ in track(run_jobs(lab, jobs, workers=workers), title, total=len(jobs), console=err):
            pass


def _write(lab: Lab, problem: str, recipes: Sequence[Recipe], folder: Path) -> None:
    """The table as Markdown and the figures as PNG and SVG."""
    from dpsrm.experiments.figures import draw_curves
    from dpsrm.experiments.tables import markdown, rows

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{problem}-table.md").write_text(markdown(rows(lab, problem, recipes)) + "\n")
    for epsilon in EPSILONS:
        wor = [recipe for recipe in recipes if recipe.sampling == "wor" and recipe.noise_multiplier is None]
        draw_curves(
            lab, problem, wor, epsilon=epsilon, stem=folder / "images" / f"{problem}-{epsilon:g}".replace(".", "_")
        )
