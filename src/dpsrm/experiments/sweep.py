"""Whose step was too large? The same methods over the same grid of rates, on records held out from training.

A search of five tries finds a good rate for one method and misses it for another; a sweep asks all of them everywhere.
CNN6 with ReLU, where the table has the largest lead of DP-SRM (ε = 8) and its clearest loss (ε = 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpsrm.experiments.figures import write_figure
from dpsrm.experiments.lab import Lab
from dpsrm.experiments.rate_figures import new_figure
from dpsrm.experiments.recipes import Recipe
from dpsrm.experiments.tables import half_width

PROBLEM, MODEL, TRIALS = "cifar10-cnn6", "CNN6 relu", 3
EPSILONS = (2.0, 8.0)
RATES = (2.5, 3.5, 5.0, 7.0, 10.0, 14.0, 20.0)
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "DP-SGD": ("sgd", {}),
    "DP-SGD momentum": ("sgd", {"momentum": 0.5}),
    "DP-SRM": ("srm", {"gamma": 0.5, "max_diff_norm": 0.05}),
}
"""C1 = 1 for all. γ = ½ and C2 = 0.05 are what DP-SRM's search found at ε = 8."""
COLOURS = {"DP-SGD": "#0072b2", "DP-SGD momentum": "#56b4e9", "DP-SRM": "#d55e00"}


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One method at one ε and rate: the mean error on the held-out records in %, and half its 95 % interval."""

    method: str
    epsilon: float
    rate: float
    error: float
    half: float
    trials: int

    def __str__(self) -> str:
        """For a terminal."""
        told = f"held-out error {self.error:.2f} ± {self.half:.2f} %"
        return f"ε = {self.epsilon:g}, clip × rate {self.rate:g}, {self.method}: {told}"


def sweep_recipes() -> list[Recipe]:
    """Every cell: as the tables' rows are run, but for the rate."""
    return [
        Recipe(
            label=label,
            method=method,
            settings={"max_grad_norm": 1.0, **own},
            training={"batch": 1024, "epochs": 10.0, "learning_rate": rate, "decay": "linear", "output": "last"},
            epsilon=epsilon,
            sampling="poisson",
            model=MODEL,
        )
        for epsilon in EPSILONS
        for rate in RATES
        for label, (method, own) in METHODS.items()
    ]


def sweep_rows(lab: Lab) -> list[SweepRow]:
    """The cells that were run."""
    found = [(recipe, lab.read(f"{PROBLEM}-validation", recipe)) for recipe in sweep_recipes()]
    return [_row(recipe, [trial["test_error"] for trial in trials]) for recipe, trials in found if len(trials) > 1]


def _row(recipe: Recipe, errors: list[float | None]) -> SweepRow:
    """The mean of some trials; one that diverged has the error of guessing."""
    values = 100 * np.array([0.9 if error is None else error for error in errors])
    return SweepRow(
        method=recipe.label,
        epsilon=float(recipe.epsilon or 0.0),
        rate=recipe.training["learning_rate"],
        error=float(values.mean()),
        half=half_width(values),
        trials=len(values),
    )


def draw_sweep(rows: list[SweepRow], stem: Path) -> None:
    """The error against the rate, a panel for each ε."""
    figure = new_figure((10, 4.4))
    for axes, epsilon in zip(figure.subplots(1, len(EPSILONS)), EPSILONS, strict=True):
        for method, colour in COLOURS.items():
            line = [row for row in rows if (row.method, row.epsilon) == (method, epsilon)]
            rates, errors, halves = ([getattr(row, name) for row in line] for name in ("rate", "error", "half"))
            axes.errorbar(rates, errors, yerr=halves, marker="o", capsize=3, color=colour, label=method)
        title = f"{MODEL}, ε = {epsilon:g}"
        axes.set(xscale="log", xlabel="clip × learning rate", ylabel="held-out error, %", title=title)
        axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    write_figure(figure, stem)
