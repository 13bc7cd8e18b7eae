"""From trials to the rows of a table: means with 95 % confidence intervals, the paper's numbers beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from dpsrm.experiments.paper import PAPER, PaperRow
from dpsrm.experiments.recipes import Recipe
from dpsrm.experiments.runner import Lab

Charged = Mapping[tuple[str, float | None], float | None]
"""By method and ε: the ε if the search for the settings is charged too."""

MEASURES = ("test_objective", "test_log_loss", "test_error", "train_objective", "gradient_norm", "seconds")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: a recipe's means over its trials; `ci` are half-widths of 95 % intervals."""

    method: str
    epsilon: float | None
    epsilon_proved: float | None
    epsilon_with_tuning: float | None
    sampling: str
    accountant: str
    trials: int
    test_objective: float
    test_log_loss: float
    test_error: float
    train_objective: float
    gradient_norm: float
    seconds: float
    passes: float
    gradients: float
    noise_multiplier: float
    paper: PaperRow | None
    ci: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """The row as `--json` prints it."""
        return asdict(self)


def rows(lab: Lab, problem: str, recipes: Sequence[Recipe], charged: Charged) -> list[Row]:
    """A row for each recipe that has trials, non-private first, then by ε, sampling and objective."""
    tried = ((recipe, lab.read(problem, recipe)) for recipe in recipes)
    found = [_row(trials, problem, recipe, charged) for recipe, trials in tried if trials]
    return sorted(found, key=lambda r: (r.epsilon or 0.0, r.sampling != "wor", r.test_objective))


def _row(trials: Sequence[dict[str, Any]], problem: str, recipe: Recipe, charged: Charged) -> Row:
    """The means of some trials."""
    values = {name: np.array([trial[name] for trial in trials], dtype=float) for name in MEASURES}
    proved = [trial["epsilon_proved"] for trial in trials if trial["epsilon_proved"] is not None]
    paper = PAPER.get(problem, {})
    searched = recipe.sampling == "wor" and recipe.noise_multiplier is None
    return Row(
        method=recipe.label,
        epsilon=recipe.epsilon,
        epsilon_proved=max(proved) if proved else None,
        epsilon_with_tuning=charged.get((recipe.label, recipe.epsilon)) if searched else None,
        sampling=recipe.sampling,
        accountant="pld" if recipe.epsilon is not None else "none",
        trials=len(trials),
        passes=float(np.mean([trial["passes"] for trial in trials])),
        gradients=float(np.mean([trial["gradients"] for trial in trials])),
        noise_multiplier=float(np.mean([trial["noise_multiplier"] for trial in trials])),
        paper=paper.get((recipe.label.split(",")[0], recipe.epsilon)),
        ci={name: _half_width(each) for name, each in values.items()},
        **{name: float(np.mean(each)) for name, each in values.items()},
    )


def _half_width(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Half the width of the 95 % confidence interval of the mean (Student's t)."""
    if len(values) < 2:
        return float("nan")
    return float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))


HEAD = (
    "method",
    "ε (proved)",
    "ε with tuning (δ = 0.0017)",
    "sampling",
    "test objective",
    "paper",
    "log-loss",
    "0/1 error",
    "train objective",
    "‖∇F‖",
    "paper ",
    "passes",
    "paper  ",
    "gradients",
    "CPU s",
    "paper   ",
)


BRIEF = ("method", "ε (proved)", "sampling", "test objective", "paper", "‖∇F‖", "CPU s")
"""The columns that fit into a terminal."""


def cells(row: Row) -> tuple[str, ...]:
    """A row as text, in the order of `HEAD`."""
    paper = row.paper or PaperRow(np.nan, np.nan)
    budget = "∞" if row.epsilon is None else f"{row.epsilon:g} ({row.epsilon_proved:.3g})"
    return (
        row.method,
        budget,
        "" if row.epsilon_with_tuning is None else f"{row.epsilon_with_tuning:.3g}",
        row.sampling,
        f"{row.test_objective:.4f} ± {row.ci['test_objective']:.4f}",
        _figure(paper.objective),
        f"{row.test_log_loss:.4f}",
        f"{100 * row.test_error:.2f} %",
        f"{row.train_objective:.4f}",
        f"{row.gradient_norm:.4f}",
        _figure(paper.gradient_norm),
        f"{row.passes:.1f}",
        _figure(paper.passes),
        f"{row.gradients:.3g}",
        f"{row.seconds:.2f}",
        _figure(paper.seconds),
    )


def _figure(value: float | None) -> str:
    """A number of the paper's, or nothing."""
    return "" if value is None or np.isnan(value) else f"{value:.4g}"


def markdown(found: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [f"| {' | '.join(h.strip() for h in HEAD)} |", "|" + "---|" * len(HEAD)]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in found)])
