"""The paper's figures with 95 % confidence bands.

Logistic regression: objective and gradient norm against passes; networks: test error against iterations and time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpsrm.core.errors import need_extra
from dpsrm.experiments.lab import Lab
from dpsrm.experiments.paper import FAMILY
from dpsrm.experiments.problems import ABOUT
from dpsrm.experiments.recipes import Recipe

_OWN = ("#d55e00", "#e69f00", "#cc79a7", "#7b1fa2")
_RIVALS = ("#0072b2", "#56b4e9", "#009e73", "#666666", "#8d6e63", "#1a237e", "#9e9d24")
"""Warm colours, thick lines for the DP-SRM family; cold ones, dashed, for its rivals."""


@dataclass(frozen=True)
class Panel:
    """One half of a figure: which column of the curves against what, in words and on which scale."""

    column: int
    against: str
    xlabel: str
    ylabel: str
    title: str
    factor: float = 1.0
    log: bool = False


_PASSES = "passes (records drawn ÷ n)"
_LOGISTIC = (
    Panel(1, "passes", _PASSES, "training objective", "{problem}, ε = {epsilon:g}, δ = 1e-5, without replacement"),
    Panel(2, "passes", _PASSES, "‖∇F‖", "norm of the full gradient", log=True),
)
_IMAGES = (
    Panel(
        1, "steps", "iterations", "test error, %", "{problem}, {model}, ε = {epsilon:g}, δ = 1e-5, Poisson", factor=100
    ),
    Panel(1, "seconds", "processor seconds, planning included", "test error, %", "the same against time", factor=100),
)
"""The seconds of a point are its share of the trial's: all steps of a trial cost the same, to a few per cent."""


Tried = list[tuple[Recipe, list[dict[str, Any]]]]
"""Recipes, and their trials."""


def panels(problem: str) -> tuple[Panel, ...]:
    """The two halves of a problem's figure."""
    return _IMAGES if ABOUT[problem].images else _LOGISTIC


def tried(lab: Lab, problem: str, recipes: Sequence[Recipe], epsilon: float) -> Tried:
    """The recipes at `epsilon` that have trials with curves, and those trials."""
    found = [(recipe, lab.read(problem, recipe)) for recipe in recipes if recipe.epsilon == epsilon]
    return [(recipe, trials) for recipe, trials in found if any(trial.get("curve") for trial in trials)]


def draw_curves(lab: Lab, problem: str, recipes: Sequence[Recipe], *, epsilon: float, stem: Path) -> list[Path]:
    """Write `stem`.png and .svg: the two panels of the problem, with every private recipe at `epsilon`.

    Edge cases: without any curve at `epsilon` nothing is written, and no path returned.
    """
    need_extra("matplotlib", extra="cli")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = tried(lab, problem, recipes, epsilon)
    if not found:
        return []
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, 2), panels(problem), strict=True):
        ends = _draw(axes, panel, found)
        title = panel.title.format(problem=problem, model=found[0][0].model, epsilon=epsilon)
        axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel, title=title)
        if ABOUT[problem].images:
            axes.set_xlim(left=0)
            axes.set_ylim(0.95 * min(ends), min(95, 1.5 * max(ends)))
        elif panel.log:
            axes.set(xscale="log", yscale="log")
        else:
            axes.set(xscale="log")
            axes.set_ylim(min(ends) - 0.01, min(0.7, max(ends) + 0.1))
        axes.grid(alpha=0.25, which="both")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return write_figure(figure, stem, dpi=120)


def write_figure(figure: Any, stem: Path, *, dpi: int = 110) -> list[Path]:
    """PNG and SVG, the same bytes for the same figure."""
    need_extra("matplotlib", extra="cli")
    from matplotlib import rc_context

    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    with rc_context({"svg.hashsalt": stem.name}):  # else an SVG of the same numbers has other names in it each time
        for path in paths:
            figure.savefig(path, dpi=dpi, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def _draw(axes: Any, panel: Panel, found: Sequence[tuple[Recipe, Sequence[dict[str, Any]]]]) -> list[float]:
    """A line and a band for every recipe; returns where the lines end."""
    ends, colours = [], {True: cycle(_OWN), False: cycle(_RIVALS)}
    for recipe, trials in found:
        own = recipe.label.startswith(FAMILY)
        colour = next(colours[own])
        curves = curves_of(trials, panel.against)
        mean, half = band_of(panel.factor * curves[:, :, panel.column])
        along = np.nanmean(curves[:, :, 0], axis=0)
        style = {"linewidth": 2.4 if own else 1.4, "linestyle": "-" if own else "--"}
        axes.plot(along, mean, label=recipe.label, color=colour, **style)
        axes.fill_between(along, mean - half, mean + half, color=colour, alpha=0.2)
        ends.append(float(panel.factor * np.nanmean(curves[:, -1, panel.column])))
    return ends


def curves_of(trials: Sequence[dict[str, Any]], against: str) -> npt.NDArray[np.float64]:
    """(trials, points, 3): how far, and the two numbers of a point; NaN where a trial had ended."""
    longest = max(len(trial.get("curve", ())) for trial in trials)
    curves = np.full((len(trials), longest, 3), np.nan)
    for number, trial in enumerate(trials):
        if trial.get("curve"):
            curves[number, : len(trial["curve"])] = trial["curve"]
            curves[number, :, 0] *= trial[against]
    return curves


def band_of(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean over the trials that had not ended, and half the width of its 95 % confidence interval (0 for one alone)."""
    counts = np.sum(~np.isnan(values), axis=0)
    mean = np.nanmean(values, axis=0)
    variance = np.nansum((values - mean) ** 2, axis=0) / np.maximum(counts - 1, 1)
    return mean, stats.t.ppf(0.975, np.maximum(counts - 1, 1)) * np.sqrt(variance / counts)
