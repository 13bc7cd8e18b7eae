"""From trials to the rows of a table: means with 95 % confidence intervals, the paper's numbers beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from dpsrm.experiments.recipes import Recipe
from dpsrm.experiments.runner import Lab

PAPER: dict[str, dict[tuple[str, float | None], tuple[float, float, float]]] = {
    "a9a": {
        ("STORM (non-private)", None): (0.3346, float("nan"), float("nan")),
        ("DP-GD", 0.2): (0.4155, 0.0953, 1.245),
        ("DP-AGD", 0.2): (0.3713, 0.0437, 96.21),
        ("RRPSGD", 0.2): (0.4019, 0.2175, 39.61),
        ("DP-SRM", 0.2): (0.3579, 0.0528, 0.6007),
        ("DP-GD", 0.5): (0.3859, 0.0866, 1.261),
        ("DP-AGD", 0.5): (0.3627, 0.0402, 95.45),
        ("RRPSGD", 0.5): (0.3861, 0.1454, 52.32),
        ("DP-SRM", 0.5): (0.3506, 0.0502, 0.7383),
    },
    "ijcnn1": {
        ("STORM (non-private)", None): (0.2096, float("nan"), float("nan")),
        ("DP-GD", 0.2): (0.3160, 0.0184, 0.5180),
        ("DP-AGD", 0.2): (0.2645, 0.0133, 90.05),
        ("RRPSGD", 0.2): (0.3110, 0.0175, 47.64),
        ("DP-SRM", 0.2): (0.2503, 0.0117, 0.4748),
        ("DP-GD", 0.5): (0.2717, 0.0171, 0.4990),
        ("DP-AGD", 0.5): (0.2416, 0.0397, 94.28),
        ("RRPSGD", 0.5): (0.3033, 0.0160, 59.06),
        ("DP-SRM", 0.5): (0.2341, 0.0082, 0.4368),
    },
}
"""(objective, gradient norm, CPU seconds) of the paper's Tables 2 and 3, by method and ε."""

MEASURES = ("test_objective", "test_log_loss", "test_error", "train_objective", "gradient_norm", "seconds")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: a recipe's means over its trials; `ci` are half-widths of 95 % intervals."""

    method: str
    epsilon: float | None
    epsilon_proved: float | None
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
    paper: tuple[float, float, float] | None
    ci: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """The row as `--json` prints it."""
        return asdict(self)


def rows(lab: Lab, problem: str, recipes: Sequence[Recipe]) -> list[Row]:
    """A row for each recipe that has trials, non-private first, then by ε, sampling and objective."""
    found = [_row(lab.read(problem, recipe), problem, recipe) for recipe in recipes if lab.read(problem, recipe)]
    return sorted(found, key=lambda r: (r.epsilon or 0.0, r.sampling != "wor", r.test_objective))


def _row(trials: Sequence[dict[str, Any]], problem: str, recipe: Recipe) -> Row:
    """The means of some trials."""
    values = {name: np.array([trial[name] for trial in trials], dtype=float) for name in MEASURES}
    proved = [trial["epsilon_proved"] for trial in trials if trial["epsilon_proved"] is not None]
    paper = PAPER.get(problem, {})
    return Row(
        method=recipe.label,
        epsilon=recipe.epsilon,
        epsilon_proved=max(proved) if proved else None,
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
    "sampling",
    "test objective",
    "paper",
    "log-loss",
    "0/1 error",
    "‖∇F‖",
    "paper ",
    "passes",
    "gradients",
    "CPU s",
    "paper  ",
)


def cells(row: Row) -> tuple[str, ...]:
    """A row as text, in the order of `HEAD`."""
    paper = ("", "", "") if row.paper is None else tuple("" if np.isnan(x) else f"{x:.4g}" for x in row.paper)
    budget = "∞" if row.epsilon is None else f"{row.epsilon:g} ({row.epsilon_proved:.3g})"
    return (
        row.method,
        budget,
        row.sampling,
        f"{row.test_objective:.4f} ± {row.ci['test_objective']:.4f}",
        paper[0],
        f"{row.test_log_loss:.4f}",
        f"{100 * row.test_error:.2f} %",
        f"{row.gradient_norm:.4f}",
        paper[1],
        f"{row.passes:.1f}",
        f"{row.gradients:.3g}",
        f"{row.seconds:.2f}",
        paper[2],
    )


def markdown(found: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [f"| {' | '.join(h.strip() for h in HEAD)} |", "|" + "---|" * len(HEAD)]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in found)])
