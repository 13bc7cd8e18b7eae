"""What recursive momentum can buy, from public numbers alone: the facts and figures of docs/does-it-help.md.

T steps of size η = τ/T with noise s·R/b each bring noise of √T·η·s·R/b = τ·R·s/(b·√T) into θ, contraction aside. Where
the noise is large, s ≈ (b/n)·√T/μ, and that is τ·R/(nμ): batch and steps drop out (μ: what (ε, δ) is in Gaussian DP).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsrm.accounting.guarantee import gaussian_mu
from dpsrm.core.events import Scheme
from dpsrm.experiments.figures import write_figure
from dpsrm.experiments.paper import FAMILY
from dpsrm.experiments.rate_figures import new_figure
from dpsrm.experiments.recipes import DELTA
from dpsrm.experiments.remark import Setting, needed_noise
from dpsrm.experiments.tables import TableRow

_N, _EPSILON, _PASSES = 50_000, 4.0, 10
BATCHES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
GAMMAS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
_COLOURS = {"DP-SGD": "#0072b2", "DP-SGD momentum": "#56b4e9", FAMILY: "#d55e00"}


@dataclass(frozen=True, kw_only=True)
class NoiseRow:
    """One batch size at ε = 4, 10 passes over 50,000 records, replace-one: noise multipliers, and what enters θ.

    `entered_*` is the noise that has entered θ after flow of length τ, in units of τ·R/(nμ).
    """

    batch: int
    steps: int
    wor: float
    poisson: float
    entered_wor: float
    entered_poisson: float

    def __str__(self) -> str:
        """For a terminal."""
        return f"batch {self.batch}: noise multiplier WOR {self.wor:.3f}, Poisson {self.poisson:.3f}"


def noise_row(batch: int) -> NoiseRow:
    """Calibrate both samplings at this batch size."""
    steps = round(_PASSES * _N / batch)
    setting = Setting(problem="CIFAR-10", n=_N, batch=batch, epsilon=_EPSILON, steps=steps)
    wor, poisson = (needed_noise(setting, "pld", scheme) or 0.0 for scheme in (Scheme.WOR, Scheme.POISSON))
    unit = batch * steps**0.5 / (_N * gaussian_mu(_EPSILON, DELTA))
    return NoiseRow(
        batch=batch, steps=steps, wor=wor, poisson=poisson, entered_wor=wor / unit, entered_poisson=poisson / unit
    )


def extra_factor(gamma: float, ratio: float) -> float:
    """How much more one release of DP-SRM moves θ in the end than one of DP-SGD: 1 + (1−γ)·C2/(γ·C1).

    `ratio` is C2/C1. A release of bound R = γC1 + (1−γ)C2 enters v, which is kept with weight 1−γ at every step: it
    moves θ by η·R·(1 + (1−γ) + (1−γ)² + …) = η·R/γ.

    >>> extra_factor(1.0, 0.5), extra_factor(0.5, 0.5)
    (1.0, 1.5)
    """
    return 1 + (1 - gamma) * ratio / gamma


def read_noise(path: Path) -> list[NoiseRow]:
    """The rows in a file of results."""
    return [NoiseRow(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def draw_noise(rows: Sequence[NoiseRow], stem: Path) -> None:
    """Noise multipliers, what enters θ, and DP-SRM's factor."""
    figure = new_figure((14, 4.4))
    multipliers, entered, factor = figure.subplots(1, 3)
    batches = [row.batch for row in rows]
    for name, colour in (("wor", "#0072b2"), ("poisson", "#d55e00")):
        multipliers.plot(batches, [getattr(row, name) for row in rows], marker="o", color=colour, label=name)
        entered.plot(batches, [getattr(row, f"entered_{name}") for row in rows], marker="o", color=colour, label=name)
    entered.axhline(1, color="grey", linewidth=0.8)
    multipliers.set(xscale="log", yscale="log", xlabel="batch", ylabel="noise multiplier", title=f"ε = {_EPSILON:g}")
    entered.set(xscale="log", xlabel="batch", ylabel="noise in θ ÷ τR/(nμ)", title="noise in θ after the same flow")
    for ratio in (0.01, 0.1, 0.5, 1.0):
        factor.plot(GAMMAS, [extra_factor(gamma, ratio) for gamma in GAMMAS], marker="o", label=f"C2 = {ratio:g}·C1")
    factor.set(yscale="log", xlabel="γ", ylabel="noise in θ ÷ DP-SGD's", title="DP-SRM's extra noise")
    for axes in (multipliers, entered, factor):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    write_figure(figure, stem)


def draw_gains(tables: Mapping[str, Sequence[TableRow]], stem: Path) -> None:
    """For every problem and ε: DP-SGD with momentum and the best of the DP-SRM family, relative to DP-SGD."""
    cells = [(problem, cell) for problem, rows in tables.items() for cell in gains(rows)]
    figure = new_figure((9, 1.2 + 0.28 * len(cells)))
    axes = figure.subplots()
    for at, (_, cell) in enumerate(cells):
        for name, (mean, half) in cell["gain"].items():
            height = at + (0.15 if name == FAMILY else -0.15)
            axes.errorbar(100 * mean, height, xerr=100 * half, fmt="o", color=_COLOURS[name], capsize=3, markersize=5)
    axes.axvline(0, color=_COLOURS["DP-SGD"], label="DP-SGD")
    for name in ("DP-SGD momentum", FAMILY):
        axes.plot([], [], "o", color=_COLOURS[name], label=f"best of {name}" if name == FAMILY else name)
    axes.set_yticks(range(len(cells)), [_name(*each) for each in cells], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="objective or error ÷ DP-SGD's − 1, %", title="left of 0 is better than DP-SGD; bars: 95 %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    write_figure(figure, stem)


def _name(problem: str, cell: Mapping[str, Any]) -> str:
    """What a cell is called in the figure."""
    what = problem if problem.startswith("features") else cell["model"] or problem
    return f"{what}, ε = {cell['epsilon']:g}, {cell['sampling']}"


def gains(rows: Sequence[TableRow]) -> list[dict[str, Any]]:
    """Cells (ε, sampling, model; replace-one) with DP-SGD and others: how far they are from it, with half-widths."""
    found, private = [], [row for row in rows if row.epsilon is not None and row.adjacency == "replace-one"]
    for epsilon, sampling, model in sorted({(row.epsilon or 0.0, row.sampling, row.model) for row in private}):
        cell = [row for row in private if (row.epsilon, row.sampling, row.model) == (epsilon, sampling, model)]
        rival = next((row for row in cell if row.method == "DP-SGD"), None)
        family = [row for row in cell if row.method.startswith(FAMILY) and "paper's" not in row.method]
        momentum = [row for row in cell if row.method == "DP-SGD momentum"]
        best = {FAMILY: family, "DP-SGD momentum": momentum}
        if rival is not None and (family or momentum):
            gain = {name: _relative(min(each, key=lambda row: row.value), rival) for name, each in best.items() if each}
            found.append({"epsilon": epsilon, "sampling": sampling, "model": model, "gain": gain})
    return found


def _relative(row: TableRow, rival: TableRow) -> tuple[float, float]:
    """The difference of two means relative to the second, with half the width of its 95 % interval."""
    half = (row.ci[row.criterion] ** 2 + rival.ci[rival.criterion] ** 2) ** 0.5
    return (row.value - rival.value) / rival.value, half / rival.value
