"""One reproduction from end to end: tune, run what is missing, make tables, figures and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from dpsrm.core.errors import need
from dpsrm.core.tracking import Track, silent
from dpsrm.experiments.charts import curve_charts
from dpsrm.experiments.columns import markdown
from dpsrm.experiments.figures import draw_curves
from dpsrm.experiments.image_spaces import image_spaces
from dpsrm.experiments.lab import Lab
from dpsrm.experiments.overview import overview
from dpsrm.experiments.problems import ABOUT, About, load_problem, prepare_problem
from dpsrm.experiments.ratios import RIVAL
from dpsrm.experiments.recipes import REPLACE, Recipe, at_half_step, with_papers_noise
from dpsrm.experiments.report import Chapter, write_report
from dpsrm.experiments.runner import missing, run_jobs
from dpsrm.experiments.spaces import SPACES, Space
from dpsrm.experiments.tables import TableRow, rows
from dpsrm.experiments.timing import measure
from dpsrm.experiments.tuning import LONG, SHORT, Tuned, read_tuned, tune, write_tuned


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which rows: of these budgets, models, methods and samplings; all of them where nothing is named."""

    epsilons: tuple[float, ...] = ()
    models: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    samplings: tuple[str, ...] = ()

    def includes(self, recipe: Recipe) -> bool:
        """Whether a tuned row is wanted; non-private ones have no budget to ask for."""
        budget = not self.epsilons or recipe.epsilon is None or recipe.epsilon in self.epsilons
        model = not self.models or recipe.model in self.models
        return budget and model and (not self.methods or recipe.label in self.methods)


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """One problem, where its data and results are, and how to work."""

    problem: str
    lab: Lab
    workers: int = 2
    track: Track = silent

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        need(self.problem in ABOUT, f"the problem must be one of {', '.join(ABOUT)}", problem=self.problem)
        need(self.workers >= 1, "workers must be 1 or more", workers=self.workers)

    @property
    def about(self) -> About:
        """The problem's public facts."""
        return ABOUT[self.problem]

    def tune(self, wanted: Wanted) -> None:
        """Search settings on a part of the training set; what was searched before is not run again, other rows stay."""

        effort = SHORT if self.about.images else LONG
        for model in wanted.models or self.about.models:
            spaces = [space for space in self._spaces(model) if not wanted.methods or space.label in wanted.methods]
            need(len(spaces) > 0, "the method must be one of the table's", methods=", ".join(wanted.methods))
            budgets = wanted.epsilons or self.about.epsilons
            found = tune(self.lab, self.problem, budgets, self.hold_out, spaces=spaces, effort=effort)
            new = {_cell(each) for each in found}
            kept = [each for each in self._known() if _cell(each) not in new]
            write_tuned(self._own, [*kept, *found])

    def hold_out(self, recipes: Sequence[Recipe], seeds: Sequence[int], title: str) -> None:
        """Run the trials, measured on a part of the training set, that are not in the results yet."""
        self._run(recipes, seeds, title, validation=True)

    def _spaces(self, model: str) -> Sequence[Space]:
        """The rows of a model that are searched."""
        return image_spaces(self.problem, model) if self.about.images else SPACES

    def run(self, recipes: Sequence[Recipe], seeds: Sequence[int]) -> None:
        """Run the trials that are not in the results yet."""
        self._run(recipes, seeds, self.problem, validation=False)

    def tuned(self) -> list[Tuned]:
        """The outcome of the search: in the results, or else as it came with the package."""
        found = self._known()
        need(len(found) > 0, "there are no tuned settings for this problem", remedy="run with --tune first")
        return found

    def recipes(self, wanted: Wanted | None = None) -> list[Recipe]:
        """The rows: as tuned or derived from it, the same under another sampling or adjacency, the paper's noise."""
        chosen = [tuned.recipe for tuned in self.tuned() if wanted is None or wanted.includes(tuned.recipe)]
        chosen += [at_half_step(recipe) for recipe in chosen if recipe.label == RIVAL and self.about.halved]
        private = [recipe for recipe in chosen if recipe.epsilon is not None]
        again = [
            replace(recipe, **cast(Any, self.about.also)) for recipe in private if recipe.method not in ("gd", "agd")
        ]
        papers = [recipe for recipe in private if "paper's" in recipe.label and self.about.papers_noise]
        found = [*chosen, *again, *(with_papers_noise(recipe, self.about.records) for recipe in papers)]
        asked = wanted.samplings if wanted else ()
        return [recipe for recipe in found if not asked or recipe.epsilon is None or recipe.sampling in asked]

    def time(self, recipes: Sequence[Recipe], *, rounds: int = 9) -> None:
        """Measure side by side what the rows that have trials cost, for the tables' and figures' seconds."""
        need(self.about.images, "only rows of images are timed side by side", problem=self.problem)
        tried = [recipe for recipe in recipes if self.lab.read(self.problem, recipe)]
        prepare_problem(self.problem, self.lab.data, self.track)
        problem = load_problem(self.problem, self.lab.data)
        self.lab.keep_costs(self.problem, measure(problem, tried, rounds=rounds, track=self.track))

    def rows(self, recipes: Sequence[Recipe]) -> list[TableRow]:
        """The table."""
        charged = {_cell(tuned): tuned.epsilon_with_tuning for tuned in self.tuned()}
        return rows(self.lab, self.problem, recipes, charged)

    def chapter(self, model: str, images: Path) -> Chapter:
        """Rows and figures of a model for the report; the figures are written to `images` as PNG and SVG."""
        recipes = self.recipes(Wanted(models=(model,)))
        searched = (self.about.tuned_under, REPLACE, None)
        drawn = [r for r in recipes if (r.sampling, r.adjacency, r.noise_multiplier) == searched]
        name = f"{self.problem}-{model.split()[-1]}" if model else self.problem
        figures = {}
        for epsilon in self.about.epsilons:
            stem = images / f"{name}-{epsilon:g}".replace(".", "_")
            if draw_curves(self.lab, self.problem, drawn, epsilon=epsilon, stem=stem):
                figures[epsilon] = curve_charts(self.lab, self.problem, drawn, epsilon=epsilon)
        return Chapter(problem=self.problem, model=model, rows=self.rows(recipes), figures=figures)

    def _known(self) -> list[Tuned]:
        """What has been searched so far."""
        shipped = Path(__file__).parent / f"{self.problem}-tuned.json"
        return read_tuned(self._own if self._own.exists() else shipped)

    @property
    def _own(self) -> Path:
        """Where a search of the user's own is kept."""
        return self.lab.results / f"{self.problem}-tuned.json"

    def _run(self, recipes: Sequence[Recipe], seeds: Sequence[int], title: str, *, validation: bool) -> None:
        """Run what is missing, keeping each result as it comes."""
        jobs = missing(self.lab, self.problem, recipes, seeds, validation=validation)
        if jobs:
            if self.problem == "cifar10-cnn6":
                self.lab.bring_trunk()
            trunk = prepare_problem(self.problem, self.lab.data, self.track)  # here, so that not every worker does it
            self.lab.need_same_trunk(self.problem, trunk)
            for _ in self.track(run_jobs(self.lab, jobs, workers=self.workers), len(jobs), title):
                pass


def _cell(tuned: Tuned) -> tuple[str, str, float | None]:
    """Which row a search was for: model, method, ε."""
    return tuned.recipe.model, tuned.recipe.label, tuned.recipe.epsilon


def publish(lab: Lab, folder: Path) -> Path:
    """Write tables (Markdown), figures and `report.html` of every problem with results; returns the report."""
    folder.mkdir(parents=True, exist_ok=True)
    works = [Reproduction(problem=problem, lab=lab) for problem in ABOUT if lab.knows(problem)]
    chapters = [work.chapter(model, folder / "images") for work in works for model in work.about.models]
    chapters = [chapter for chapter in chapters if chapter.rows]
    for work in works:
        found = [row for chapter in chapters if chapter.problem == work.problem for row in chapter.rows]
        text = (overview if work.about.images else markdown)(work.problem, found) + "\n"
        (folder / f"{work.problem}-table.md").write_text(text, encoding="utf-8")
    report = folder / "report.html"
    write_report(chapters, report)
    return report
