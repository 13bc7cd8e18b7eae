"""Plots of audits: the canaries' scores with the claimed curve, and a membership test's ROC on a log scale."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsrm.accounting.guarantee import rounded_down, rounded_up
from dpsrm.audit.bounds import curve
from dpsrm.core.errors import need_extra

if TYPE_CHECKING:
    from dpsrm.audit.audit import AuditResult
    from dpsrm.audit.black_box import BlackBox
    from dpsrm.audit.repeated import RepeatedBlackBox
    from dpsrm.training import Plan

_FEWEST = 1e-4


def audit_figure(result: AuditResult) -> Any:
    """The canaries' ROC against the most that the claim allows; log scale."""
    scores, signs = result.observed.scores(), result.observed.signs_m
    claimed, found = rounded_up(result.target.epsilon), rounded_down(result.bound.epsilon, 3)
    title = f"{result.target.method.name}, claimed ε = {claimed}: at least {found}"
    return _roc(result.observed.plan, scores, signs, title)


def black_box_figure(found: BlackBox | RepeatedBlackBox, title: str) -> Any:
    """The membership test's ROC against the most that the claim allows; log scale."""
    return _roc(found.plan, found.scores, found.signs_m, title)


def svg(figure: Any) -> str:
    """A figure as SVG, for a report."""
    need_extra("matplotlib", extra="cli")
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _roc(plan: Plan, scores: Any, signs: Any, title: str) -> Any:
    """True against false positives, with the curve of the plan and the diagonal."""
    need_extra("matplotlib", extra="cli")
    from matplotlib.figure import Figure

    coins = signs[np.argsort(-scores, kind="stable")]
    tpr, fpr = np.cumsum(coins == 1) / max(1, (signs == 1).sum()), np.cumsum(coins == -1) / max(1, (signs == -1).sum())
    most = np.logspace(np.log10(_FEWEST), 0, 200)
    inverse = curve(plan, 1.0)
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([inverse(float(y)) for y in most], most, "k--", label="most that the claim allows")
    thin = np.unique(np.linspace(0, len(fpr) - 1, 4000).astype(int))
    axes.plot(np.maximum(fpr[thin], _FEWEST), np.maximum(tpr[thin], _FEWEST), label="measured")
    axes.plot(most, most, ":", color="grey", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(_FEWEST, 1), ylim=(_FEWEST, 1.05), title=title)
    axes.set(xlabel="false positives", ylabel="true positives")
    axes.legend(loc="lower right", fontsize=8)
    return figure
