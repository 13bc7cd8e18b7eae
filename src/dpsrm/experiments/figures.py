"""The paper's figures: objective and gradient norm against passes over the data, with 95 % confidence bands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from dpsrm.experiments.paper import FAMILY
from dpsrm.experiments.recipes import Recipe
from dpsrm.experiments.runner import Lab

_OWN = ("#d55e00", "#e69f00", "#cc79a7", "#7b1fa2")
_RIVALS = ("#0072b2", "#56b4e9", "#009e73", "#666666", "#8d6e63", "#1a237e", "#9e9d24")
"""Warm colours, thick lines for the DP-SRM family; cold ones, dashed, for its rivals."""


def draw_curves(lab: Lab, problem: str, recipes: Sequence[Recipe], *, epsilon: float, stem: Path) -> list[Path]:
    """Write `stem`.png and .svg: training objective and full gradient norm of every private recipe at `epsilon`.

    Edge cases: without any curve at `epsilon` nothing is written, and no path returned.
    """
    found = [
        (recipe, curve)
        for recipe in recipes
        if recipe.epsilon == epsilon and (curve := _curves(lab.read(problem, recipe))) is not None
    ]
    if not found:
        return []
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    ends, colours = [], {True: cycle(_OWN), False: cycle(_RIVALS)}
    for recipe, curves in found:
        own = recipe.label.startswith(FAMILY)
        colour = next(colours[own])
        style = {"color": colour, "linewidth": 2.4 if own else 1.4, "linestyle": "-" if own else "--"}
        for axes, column in ((left, 1), (right, 2)):
            mean, half = _band(curves[:, :, column])
            passes = np.nanmean(curves[:, :, 0], axis=0)
            axes.plot(passes, mean, label=recipe.label, **style)
            axes.fill_between(passes, mean - half, mean + half, color=colour, alpha=0.2)
        ends.append(np.nanmean(curves[:, -1, 1]))
    left.set(ylabel="training objective", title=f"{problem}, ε = {epsilon:g}, δ = 1e-5, without replacement")
    left.set_ylim(min(ends) - 0.01, min(0.7, max(ends) + 0.1))
    right.set(ylabel="‖∇F‖", yscale="log", title="norm of the full gradient")
    for axes in (left, right):
        axes.set(xlabel="passes (records drawn ÷ n)", xscale="log")
        axes.grid(alpha=0.25, which="both")
    right.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def _curves(trials: Sequence[dict[str, Any]]) -> npt.NDArray[np.float64] | None:
    """(trials, points, 3): passes, objective, gradient norm; NaN where a trial had ended; None without any curve."""
    longest = max((len(trial.get("curve", ())) for trial in trials), default=0)
    if longest == 0:
        return None
    curves = np.full((len(trials), longest, 3), np.nan)
    for number, trial in enumerate(trials):
        if trial.get("curve"):
            curves[number, : len(trial["curve"])] = trial["curve"]
            curves[number, :, 0] *= trial["passes"]
    return curves


def _band(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean over the trials that had not ended, and half the width of its 95 % confidence interval (0 for one alone)."""
    counts = np.sum(~np.isnan(values), axis=0)
    mean = np.nanmean(values, axis=0)
    variance = np.nansum((values - mean) ** 2, axis=0) / np.maximum(counts - 1, 1)
    return mean, stats.t.ppf(0.975, np.maximum(counts - 1, 1)) * np.sqrt(variance / counts)
