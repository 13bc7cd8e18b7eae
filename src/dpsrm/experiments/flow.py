"""Does the number of steps matter? The paper's objective on a9a after flow of the same length in few or many steps.

Flow of length τ in T steps of size τ/T over the same four passes: T decides the batch, and with it the noise. If what
enters θ depends on τ alone (docs/does-it-help.md), the error does not depend on T.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpsrm.experiments.figures import write_figure
from dpsrm.experiments.problems import Problem, load_problem
from dpsrm.experiments.rate_figures import new_figure
from dpsrm.experiments.recipes import Recipe
from dpsrm.experiments.runner import run_recipe
from dpsrm.experiments.tables import half_width

PROBLEM, _EPSILON, _PASSES, _CLIP = "a9a", 0.5, 4, 2.0
FLOWS = (4.0, 16.0, 64.0)
STEPS = (4, 8, 16, 32, 64, 128, 256)
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "DP-SGD": ("sgd", {}),
    "DP-SGD momentum": ("sgd", {"momentum": 0.5}),
    "DP-SRM": ("srm", {"gamma": 0.5, "max_diff_norm": 0.5 * _CLIP}),
}
"""One setting each, the same everywhere: nothing is tuned. γ = ½ keeps as much of v as momentum ½ does."""
_COLOURS = {"DP-SGD": "#0072b2", "DP-SGD momentum": "#56b4e9", "DP-SRM": "#d55e00"}
_TICKS = (0.35, 0.4, 0.46, 0.5, 0.55, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class FlowRow:
    """One method at one τ and T: the mean test objective of some trials, and half its 95 % interval."""

    method: str
    flow: float
    steps: int
    batch: int
    noise_multiplier: float
    objective: float
    half: float
    trials: int

    def __str__(self) -> str:
        """For a terminal."""
        told = f"objective {self.objective:.4f} ± {self.half:.4f}"
        return f"flow {self.flow:g} in {self.steps} steps, {self.method}: {told}"


Cell = tuple[str, float, int]
"""A method, τ and T."""


def cells() -> list[Cell]:
    """Every row there should be."""
    return [(method, flow, steps) for flow in FLOWS for steps in STEPS for method in METHODS]


def flow_recipe(cell: Cell, n: int) -> Recipe:
    """What a cell runs on n records: a constant rate, the last iterate, Poisson sampling."""
    label, flow, steps = cell
    method, own = METHODS[label]
    batch = min(n, round(_PASSES * n / steps))
    return Recipe(
        label=label,
        method=method,
        settings={"max_grad_norm": _CLIP, **own},
        training={"batch": batch, "steps": steps, "learning_rate": flow / steps, "output": "last"},
        epsilon=_EPSILON,
        sampling="poisson",
    )


def missing_cells(rows: Iterable[FlowRow]) -> list[Cell]:
    """The cells without a row yet."""
    done = {(row.method, row.flow, row.steps) for row in rows}
    return [cell for cell in cells() if cell not in done]


def flow_problem(folder: Path) -> Problem:
    """The records, from the data folder."""
    return load_problem(PROBLEM, folder)


def flow_row(problem: Problem, cell: Cell, *, trials: int = 10) -> FlowRow:
    """Run a cell."""
    recipe = flow_recipe(cell, len(problem.train))
    found = run_recipe(problem, recipe, range(trials), points=0)
    values = np.array([trial["test_objective"] for trial in found])
    return FlowRow(
        method=recipe.label,
        flow=cell[1],
        steps=cell[2],
        batch=recipe.training["batch"],
        noise_multiplier=found[0]["noise_multiplier"],
        objective=float(values.mean()),
        half=half_width(values),
        trials=trials,
    )


def read_flow(path: Path) -> list[FlowRow]:
    """The rows in a file of results."""
    return [FlowRow(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def keep_flow(path: Path, row: FlowRow) -> None:
    """Add a row to the results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def draw_flow(rows: Sequence[FlowRow], stem: Path) -> None:
    """The objective against the number of steps, a panel for each τ."""
    figure = new_figure((14, 4.4))
    for axes, flow in zip(figure.subplots(1, len(FLOWS)), FLOWS, strict=True):
        for method in METHODS:
            line = sorted((row for row in rows if (row.method, row.flow) == (method, flow)), key=lambda row: row.steps)
            steps, means = [row.steps for row in line], [row.objective for row in line]
            axes.errorbar(
                steps,
                means,
                yerr=[row.half for row in line],
                marker="o",
                capsize=3,
                color=_COLOURS[method],
                label=method,
            )
        axes.set(
            xscale="log", yscale="log", xlabel="steps T", ylabel="test objective", title=f"flow of length τ = {flow:g}"
        )
        axes.set_xticks(STEPS, map(str, STEPS))
        axes.minorticks_off()
        low, high = axes.get_ylim()
        axes.set_yticks(
            [tick for tick in _TICKS if low <= tick <= high], [f"{t:g}" for t in _TICKS if low <= t <= high]
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    write_figure(figure, stem)
