"""From trials to the rows of a table: means with 95 % confidence intervals, the paper's numbers beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
from scipy import stats

from dpsrm.experiments.lab import Lab
from dpsrm.experiments.paper import PAPER, PaperRow
from dpsrm.experiments.problems import ABOUT
from dpsrm.experiments.ratios import RIVAL, Ratio, ratio
from dpsrm.experiments.recipes import REPLACE, Recipe

Charged = Mapping[tuple[str, str, float | None], float | None]
"""By model, method and ε: the ε if the search for the settings is charged too."""

MEASURES = ("test_objective", "test_log_loss", "test_error", "train_objective", "gradient_norm", "seconds")


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One row: a recipe's means over its trials; `ci` are half-widths of 95 % intervals.

    `criterion` names the measure that decides. What was not measured is None. The last two, of images: the cost until
    DP-SGD's final error is reached, as a share of DP-SGD's.
    """

    method: str
    model: str
    epsilon: float | None
    epsilon_proved: float | None
    epsilon_with_tuning: float | None
    sampling: str
    adjacency: str
    accountant: str
    trials: int
    criterion: str
    test_objective: float
    test_log_loss: float
    test_error: float
    train_objective: float | None = None
    gradient_norm: float | None = None
    seconds: float
    passes: float
    steps: float | None = None
    gradients: float
    noise_multiplier: float
    paper: PaperRow | None
    ci: dict[str, float]
    iterations_to_rival: Ratio | None = None
    time_to_rival: Ratio | None = None

    @property
    def value(self) -> float:
        """The measure that decides."""
        return float(getattr(self, self.criterion))

    @property
    def interval(self) -> str:
        """The measure that decides, with its 95 % confidence: an objective, or an error in per cent."""
        half = self.ci[self.criterion]
        if self.criterion == "test_error":
            return f"{100 * self.value:.2f} % ± {100 * half:.2f}"
        return f"{self.value:.4f} ± {half:.4f}"

    def to_json(self) -> dict[str, Any]:
        """The row as `--json` prints it."""
        return asdict(self)


def rows(lab: Lab, problem: str, recipes: Sequence[Recipe], charged: Charged) -> list[TableRow]:
    """A row for each recipe that has trials, by model, non-private first, then by ε, sampling and criterion."""
    tried = [(recipe, trials) for recipe in recipes if (trials := lab.read(problem, recipe))]
    found = [_row(trials, problem, recipe, charged) for recipe, trials in tried]
    if ABOUT[problem].images:
        found = [_raced(row, trials, _rival(recipe, tried)) for row, (recipe, trials) in zip(found, tried, strict=True)]
    return sorted(found, key=lambda r: (r.model, r.epsilon or 0.0, r.sampling != "wor", r.adjacency, r.value))


def _row(trials: Sequence[dict[str, Any]], problem: str, recipe: Recipe, charged: Charged) -> TableRow:
    """The means of some trials."""
    measured = [name for name in MEASURES if all(name in trial for trial in trials)]
    values = {name: np.array([trial[name] for trial in trials], dtype=float) for name in measured}
    proved = [trial["epsilon_proved"] for trial in trials if trial["epsilon_proved"] is not None]
    about, paper = ABOUT[problem], PAPER.get(problem, {})
    searched = (recipe.sampling, recipe.adjacency, recipe.noise_multiplier) == (about.tuned_under, REPLACE, None)
    return TableRow(
        method=recipe.label,
        model=recipe.model,
        epsilon=recipe.epsilon,
        epsilon_proved=max(proved) if proved else None,
        epsilon_with_tuning=charged.get((recipe.model, recipe.label, recipe.epsilon)) if searched else None,
        sampling=recipe.sampling,
        adjacency=recipe.adjacency,
        accountant="pld" if recipe.epsilon is not None else "none",
        trials=len(trials),
        criterion=about.criterion,
        passes=float(np.mean([trial["passes"] for trial in trials])),
        steps=float(np.mean([trial["steps"] for trial in trials])) if "steps" in trials[0] else None,
        gradients=float(np.mean([trial["gradients"] for trial in trials])),
        noise_multiplier=float(np.mean([trial["noise_multiplier"] for trial in trials])),
        paper=paper.get((recipe.label.split(",")[0], recipe.epsilon)),
        ci={name: half_width(each) for name, each in values.items()},
        **cast(Any, {name: float(np.mean(each)) for name, each in values.items()}),
    )


def _rival(recipe: Recipe, tried: Sequence[tuple[Recipe, Sequence[dict[str, Any]]]]) -> Sequence[dict[str, Any]]:
    """The trials of DP-SGD under the same conditions, or none."""
    same = replace(recipe, label=RIVAL)
    return next((trials for r, trials in tried if _conditions(r) == _conditions(same)), [])


def _conditions(recipe: Recipe) -> tuple[object, ...]:
    """What two rows that are compared have in common, and the method."""
    return recipe.label, recipe.model, recipe.epsilon, recipe.sampling, recipe.adjacency


def _raced(row: TableRow, trials: Sequence[dict[str, Any]], rival: Sequence[dict[str, Any]]) -> TableRow:
    """The row with how soon it was as good as DP-SGD."""
    if not rival or row.epsilon is None or row.method == RIVAL:
        return row
    steps, seconds = (ratio(trials, rival, cost) for cost in ("steps", "seconds"))
    return replace(row, iterations_to_rival=steps, time_to_rival=seconds)


def half_width(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Half the width of the 95 % confidence interval of the mean (Student's t)."""
    if len(values) < 2:
        return float("nan")
    return float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
