"""Figures and tables of the measured rates and of the accountants over the paper's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpsrm.core.errors import need_extra
from dpsrm.experiments.figures import write_figure
from dpsrm.experiments.rates import CASES, EXPONENTS, GD, PAPERS, PRACTICE, RRPSGD, SRM, Slope
from dpsrm.experiments.remark import BARE, LEMMA, MOMENTS, PROOFS

_COLOURS = {SRM: "#d55e00", GD: "#0072b2", RRPSGD: "#009e73", PRACTICE: "#7b1fa2"}


def draw_rates(slopes: Sequence[Slope], stem: Path) -> None:
    """Write `stem`.png and .svg: E‖∇F‖ against n, a panel per case, with the fitted exponents in the legend."""
    figure = new_figure((13, 9.5))
    for axes, case in zip(figure.subplots(2, 2).flat, CASES, strict=True):
        for slope in slopes:
            if slope.series.case == case:
                _line(axes, slope)
        axes.set(xscale="log", yscale="log", xlabel="n", ylabel="E‖∇F‖", title=case.title)
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize=8)
    figure.suptitle("Theorems' parameters, δ = 1e-5, 10 trials; exponent of n fitted, ± 95 %")
    write_figure(figure, stem)


def _line(axes: Any, slope: Slope) -> None:
    """One algorithm under one noise."""
    series = slope.series
    promised = EXPONENTS.get(series.algorithm)
    beside = "" if promised is None else f" (theorem {promised:.2f})"
    label = f"{series.algorithm}, {series.noise_kind}: {slope.exponent:.2f} ± {slope.half_width:.2f}{beside}"
    style = {"marker": "o", "linestyle": "-"} if series.noise_kind == PAPERS else {"marker": "^", "linestyle": "--"}
    axes.plot(slope.sizes, slope.means, color=_COLOURS[series.algorithm], markersize=4, label=label, **style)


_HEADS = (
    *("problem", "algorithm", "noise", "n", "sizes", "trials", "exponent ± 95 %", "larger half", "theorem", "seen"),
    *("E‖∇F‖ at the least n", "at the largest", "of the output there", "ε by pld there", "gradients there"),
)


def rates_table(slopes: Sequence[Slope]) -> str:
    """The slopes as a Markdown table."""
    lines = [f"| {' | '.join(_HEADS)} |", "|" + "---|" * len(_HEADS)]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(slope))} |" for slope in slopes)])


def _cells(slope: Slope) -> list[str]:
    """A row."""
    series, promised = slope.series, EXPONENTS.get(slope.series.algorithm)
    return [
        *(series.case.title, series.algorithm, series.noise_kind, f"{slope.sizes[0]}–{slope.sizes[-1]}"),
        *(str(len(slope.sizes)), str(slope.trials), f"{slope.exponent:.3f} ± {slope.half_width:.3f}"),
        *(f"{slope.large:.3f}", "" if promised is None else f"{promised:.3f}", slope.seen),
        *(f"{slope.means[0]:.4f}", f"{slope.means[-1]:.4f}", f"{slope.outputs[-1]:.4f}", f"{slope.epsilons[-1]:.3g}"),
        f"{slope.gradients[-1]:.3g}",
    ]


def draw_remark(rows: Sequence[Mapping[str, Any]], stem: Path) -> None:
    """Write `stem`.png and .svg: noise needed, and ε at the paper's noise, for every setting."""
    figure = new_figure((13, 8.5))
    noise, told = figure.subplots(2, 1, sharex=True)
    names = [f"{row['problem']} {row['batch']}, {row['epsilon']:g}" for row in rows]
    for label in (BARE, MOMENTS, *PROOFS):
        values = [row["noise"][label] for row in rows]
        noise.plot(names, [float("nan") if v is None else v for v in values], label=label, **_style(label))
    for label in ("attack", MOMENTS, *PROOFS):
        shares = [(row["epsilon_at_papers_noise"][label], row["epsilon"]) for row in rows]
        told.plot(names, [float("nan") if v is None else v / e for v, e in shares], label=label, **_style(label))
    noise.set(yscale="log", ylabel="noise needed (std ÷ sensitivity)", title="a gap: no noise is enough")
    told.set(yscale="log", ylabel="ε at the paper's noise ÷ ε claimed", title="above 1: the claim is not proved")
    told.axhline(1, color="grey", linewidth=0.8)
    told.tick_params(axis="x", rotation=90, labelsize=8)
    for axes in (noise, told):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, ncols=2)
    write_figure(figure, stem)


def _style(label: str) -> dict[str, Any]:
    """Dotted for what proves nothing, full for Lemma 1 and the tight accountant."""
    proves = label in PROOFS
    strong = label in (LEMMA, "pld")
    return {"marker": ".", "linestyle": ("-" if strong else "--") if proves else ":", "linewidth": 2 if strong else 1.2}


def new_figure(size: tuple[float, float]) -> Any:
    """An empty figure, drawn without a screen."""
    need_extra("matplotlib", extra="cli")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
