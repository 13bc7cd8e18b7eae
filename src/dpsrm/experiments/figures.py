"""The paper's figures: objective and gradient norm against passes over the data, with 95 % confidence bands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from dpsrm.experiments.recipes import Recipe
from dpsrm.experiments.runner import Lab


def draw_curves(lab: Lab, problem: str, recipes: Sequence[Recipe], *, epsilon: float, stem: Path) -> list[Path]:
    """Write `stem`.png and .svg: training objective and full gradient norm of every private recipe at `epsilon`."""
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for recipe in recipes:
        trials = lab.read(problem, recipe)
        if recipe.epsilon != epsilon or not trials:
            continue
        shortest = min(len(trial["curve"]) for trial in trials)
        if shortest == 0:
            continue
        curves = np.array([trial["curve"][:shortest] for trial in trials])
        passes = np.mean([trial["passes"] for trial in trials]) * curves[:, :, 0].mean(axis=0)
        for axes, column in ((left, 1), (right, 2)):
            mean = curves[:, :, column].mean(axis=0)
            spread = curves[:, :, column].std(axis=0, ddof=1) if len(trials) > 1 else np.zeros_like(mean)
            half = stats.t.ppf(0.975, max(len(trials) - 1, 1)) * spread / np.sqrt(len(trials))
            axes.plot(passes, mean, label=f"{recipe.label} ({recipe.sampling})")
            axes.fill_between(passes, mean - half, mean + half, alpha=0.2)
    left.set(xlabel="passes (records drawn ÷ n)", ylabel="training objective", title=f"{problem}, ε = {epsilon:g}")
    right.set(xlabel="passes (records drawn ÷ n)", ylabel="‖∇F‖", yscale="log", title="full gradient norm")
    left.set_xscale("log")
    right.set_xscale("log")
    low, high = left.get_ylim()
    left.set_ylim(low, min(high, 0.75))
    right.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=120)
    return paths
