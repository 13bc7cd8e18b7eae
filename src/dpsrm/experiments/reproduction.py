"""One reproduction from end to end: tune, run what is missing, make tables, figures and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpsrm.core.errors import need
from dpsrm.data.public import public_files
from dpsrm.experiments.figures import draw_curves
from dpsrm.experiments.problems import RECORDS
from dpsrm.experiments.recipes import Recipe, with_papers_noise
from dpsrm.experiments.report import Chapter, write_report
from dpsrm.experiments.runner import Lab, missing, run_jobs
from dpsrm.experiments.tables import Row, markdown, rows
from dpsrm.experiments.tuning import Tuned, read_tuned, tune, write_tuned

EPSILONS = (0.2, 0.5)
"""The paper's budgets."""

Track = Callable[[Iterable[Any], int, str], Iterable[Any]]
"""Shows progress: passes an iterable of known length on, under a title."""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """One problem, where its data and results are, and how to work."""

    problem: str
    lab: Lab
    workers: int = 2
    track: Track = lambda items, _total, _title: items

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        need(self.problem in RECORDS, f"the problem must be one of {', '.join(RECORDS)}", problem=self.problem)
        need(self.workers >= 1, "workers must be 1 or more", workers=self.workers)

    def tune(self) -> None:
        """Search settings on a part of the training set; what was searched before is not run again."""

        def run(recipes: Sequence[Recipe], seeds: Sequence[int], title: str) -> None:
            self._run(recipes, seeds, title, validation=True)

        write_tuned(self._own, tune(self.lab, self.problem, EPSILONS, run))

    def run(self, recipes: Sequence[Recipe], seeds: Sequence[int]) -> None:
        """Run the trials that are not in the results yet."""
        self._run(recipes, seeds, self.problem, validation=False)

    def tuned(self) -> list[Tuned]:
        """The outcome of the search: in the results, or else as it came with the package."""
        shipped = Path(__file__).parent / f"{self.problem}-tuned.json"
        found = read_tuned(self._own if self._own.exists() else shipped)
        need(len(found) > 0, "there are no tuned settings for this problem", remedy="run with --tune first")
        return found

    def recipes(self, epsilons: Sequence[float] = EPSILONS) -> list[Recipe]:
        """The rows: tuned under WOR as in the paper, the same under Poisson, the paper's settings with its noise."""
        chosen = [t.recipe for t in self.tuned() if t.recipe.epsilon is None or t.recipe.epsilon in epsilons]
        private = [recipe for recipe in chosen if recipe.epsilon is not None]
        poisson = [replace(recipe, sampling="poisson") for recipe in private if recipe.method not in ("gd", "agd")]
        paper = [with_papers_noise(recipe, RECORDS[self.problem]) for recipe in private if "paper's" in recipe.label]
        return [*chosen, *poisson, *paper]

    def rows(self, recipes: Sequence[Recipe]) -> list[Row]:
        """The table."""
        charged = {(t.recipe.label, t.recipe.epsilon): t.epsilon_with_tuning for t in self.tuned()}
        return rows(self.lab, self.problem, recipes, charged)

    def chapter(self, images: Path) -> Chapter:
        """Rows and figures for the report; the figures are written to `images` as PNG and SVG."""
        recipes = self.recipes()
        wor = [recipe for recipe in recipes if recipe.sampling == "wor" and recipe.noise_multiplier is None]
        figures = {}
        for epsilon in EPSILONS:
            stem = images / f"{self.problem}-{epsilon:g}".replace(".", "_")
            if draw_curves(self.lab, self.problem, wor, epsilon=epsilon, stem=stem):
                figures[epsilon] = stem.with_suffix(".svg")
        return Chapter(problem=self.problem, rows=self.rows(recipes), figures=figures)

    @property
    def _own(self) -> Path:
        """Where a search of the user's own is kept."""
        return self.lab.results / f"{self.problem}-tuned.json"

    def _run(self, recipes: Sequence[Recipe], seeds: Sequence[int], title: str, *, validation: bool) -> None:
        """Run what is missing, keeping each result as it comes."""
        jobs = missing(self.lab, self.problem, recipes, seeds, validation=validation)
        if jobs:
            public_files(self.problem, self.lab.data)  # here, so that not every worker downloads them
            for _ in self.track(run_jobs(self.lab, jobs, workers=self.workers), len(jobs), title):
                pass


def publish(lab: Lab, folder: Path) -> Path:
    """Write tables (Markdown), figures and `report.html` of every problem with results; returns the report."""
    folder.mkdir(parents=True, exist_ok=True)
    works = [Reproduction(problem=problem, lab=lab) for problem in RECORDS if lab.knows(problem)]
    chapters = [work.chapter(folder / "images") for work in works]
    for chapter in chapters:
        (folder / f"{chapter.problem}-table.md").write_text(markdown(chapter.rows) + "\n", encoding="utf-8")
    report = folder / "report.html"
    write_report(chapters, report)
    return report
