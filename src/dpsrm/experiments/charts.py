"""The curves of a reproduction as inline charts: the best few with their names, all of them on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsrm.experiments.figures import Panel, band_of, curves_of, panels, tried
from dpsrm.experiments.lab import Lab
from dpsrm.experiments.paper import FAMILY
from dpsrm.experiments.recipes import Recipe
from dpsrm.report.page import Axis, Chart, Curve, Markup, tag

_POINTS = 60
"""A curve has no more points than this in the page."""
_RIVALS = 2


def curve_charts(lab: Lab, problem: str, recipes: Sequence[Recipe], *, epsilon: float) -> Markup:
    """A chart for each panel of the problem at `epsilon`; nothing without curves."""
    found = tried(lab, problem, recipes, epsilon)
    if not found:
        return Markup("")
    shown = []
    for number, panel in enumerate(panels(problem)):
        named = {recipe.label: _curve(panel, recipe.label, trials) for recipe, trials in found}
        few = _best(list(named.values()))
        title = panel.title.format(problem=problem, model=found[0][0].model, epsilon=epsilon)
        name = f"{problem}-{found[0][0].model}-{epsilon:g}-{number}".replace(" ", "-").replace(".", "_")
        parts = [_chart(name, title, panel, few)]
        if len(few) < len(named):
            every = _chart(f"{name}-all", title, panel, list(named.values()))
            parts.append(tag("details", tag("summary", f"All {len(named)} curves: {title}"), every))
        shown.append(tag("div", *parts))
    return tag("div", *shown, class_="charts")


def _best(curves: list[Curve]) -> list[Curve]:
    """The best of the DP-SRM family and the best of its rivals, by where they end."""
    by_end = sorted(curves, key=lambda curve: curve.points[-1][1])
    own = [curve for curve in by_end if curve.name.startswith(FAMILY)]
    return [*own[:1], *[curve for curve in by_end if curve not in own][:_RIVALS]]


def _curve(panel: Panel, label: str, trials: Sequence[dict[str, Any]]) -> Curve:
    """The mean of the trials, with its band, thinned out."""
    curves = curves_of(trials, panel.against)
    mean, half = band_of(panel.factor * curves[:, :, panel.column])
    along = np.nanmean(curves[:, :, 0], axis=0)
    kept = sorted({*np.linspace(0, len(along) - 1, _POINTS).round().astype(int).tolist()})
    points = [(float(along[k]), float(mean[k])) for k in kept]
    return Curve(name=label, points=points, band=[float(half[k]) for k in kept])


def _chart(name: str, title: str, panel: Panel, curves: Sequence[Curve]) -> Markup:
    """One panel; far-off beginnings are cut at the top, as in the paper."""
    ends = [curve.points[-1][1] for curve in curves]
    along = [x for curve in curves for x, _ in curve.points if x > 0]
    values = [y for curve in curves for _, y in curve.points if y > 0]
    low, high = (min(values), max(values)) if panel.log else (0.95 * min(ends), 1.35 * max(ends))
    told = "; ".join(f"{curve.name} ends at {curve.points[-1][1]:.4g}" for curve in curves)
    chart = Chart(
        name=name,
        title=title.split(", δ")[0],
        alternative=f"{panel.ylabel} against {panel.xlabel}, means and 95 % bands: {told}.",
        x=Axis(label=panel.xlabel, low=min(along), high=max(along), log=panel.against == "passes"),
        y=Axis(label=panel.ylabel, low=low, high=high, log=panel.log),
        curves=curves,
    )
    return chart.render(rows=6)
