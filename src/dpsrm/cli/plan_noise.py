"""The choices of `dpsrm plan`, the noise that each of them takes, and that as a table or a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from dpsrm.accounting import accountant, calibrate_noise, expected_runs, runs_to_gamma, select_epsilon
from dpsrm.accounting.guarantee import rounded_up
from dpsrm.cli.account import spending
from dpsrm.cli.show import save_figure
from dpsrm.core.errors import DpsrmError, need_extra
from dpsrm.core.events import Adjacency, Scheme, Spending


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to spend the budget."""

    n: int
    batch: int
    steps: int
    sampling: Scheme
    accountant: str
    adjacency: Adjacency

    def spend(self, noise: float) -> Spending:
        """What this choice releases with a given noise."""
        return spending(self.n, self.batch, self.steps, noise=noise, scheme=self.sampling, adjacency=self.adjacency)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a choice costs; the noise is NaN (JSON: null), and `why` says so, where its accountant proves nothing."""

    batch: int
    steps: int
    sampling: str
    accountant: str
    noise_multiplier: float = math.nan
    effective_noise: float = math.nan
    why: str = ""


def provable_schemes(adjacency: Adjacency) -> tuple[Scheme, ...]:
    """The samplings that have a proof under `adjacency`."""
    if adjacency is Adjacency.REPLACE_ONE:
        return Scheme.POISSON, Scheme.WOR
    if adjacency is Adjacency.ADD_REMOVE:
        return (Scheme.POISSON,)
    raise AssertionError(adjacency)


def calibrated_row(choice: Candidate, epsilon: float, delta: float) -> Row:
    """Calibrate one choice."""
    row = Row(
        batch=choice.batch, steps=choice.steps, sampling=choice.sampling.value, accountant=choice.accountant, why=""
    )
    proof = accountant(choice.accountant)
    try:
        noise = calibrate_noise(choice.spend, accountant=proof, epsilon=epsilon, delta=delta)
    except DpsrmError as error:
        if choice.accountant in ("rdp9", "paper"):  # they cover less than is asked here; that is an answer
            return Row(**{**asdict(row), "why": str(error)})
        raise
    effective = noise * choice.n / (choice.batch * math.sqrt(choice.steps))
    return Row(**{**asdict(row), "noise_multiplier": noise, "effective_noise": effective})


def selection_cost(choice: Candidate, row: Row, delta: float, *, tries: int) -> dict[str, float]:
    """ε of choosing the best of about `tries` runs of `choice` (Papernot & Steinke, K logarithmic)."""
    gamma = runs_to_gamma(tries, eta=0.0)
    cost = select_epsilon(choice.spend(row.noise_multiplier), delta, eta=0.0, gamma=gamma)
    return {"expected_runs": expected_runs(0.0, gamma), "gamma": gamma, "epsilon": cost}


def noise_table(rows: Sequence[Row], title: str) -> Table:
    """The choices for people."""
    table = Table(title=title)
    for name in ("batch", "steps", "sampling", "accountant", "noise", "effective"):
        table.add_column(name, justify="right")
    for row in rows:
        cost = (
            ("no guarantee", "")
            if row.why
            else (rounded_up(row.noise_multiplier, 4), rounded_up(row.effective_noise, 4))
        )
        table.add_row(str(row.batch), str(row.steps), row.sampling, row.accountant, *cost)
    return table


def draw_noise(rows: Sequence[Row], path: Path, title: str) -> None:
    """Effective noise against batch size, one line per sampling and accountant."""
    need_extra("matplotlib", extra="cli")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for key in dict.fromkeys((row.sampling, row.accountant) for row in rows):
        found = [row for row in rows if (row.sampling, row.accountant) == key and not row.why]
        if found:
            axes.plot([r.batch for r in found], [r.effective_noise for r in found], "o-", label=" · ".join(key))
    axes.set(xscale="log", yscale="log", xlabel="b, the (expected) number of records in a batch", title=title)
    axes.set_ylabel("effective noise of the whole run: s·n/(b·√T)")
    _label_ticks(axes, sorted({row.batch for row in rows}), [row.effective_noise for row in rows if not row.why])
    axes.legend(title="sampling · accountant")
    axes.grid(alpha=0.3, which="both")
    figure.supxlabel("s: noise ÷ sensitivity of one release · n: records · T: releases · less is better", fontsize=8)
    save_figure(figure, path)


def _label_ticks(axes: Any, batches: Sequence[int], noises: Sequence[float]) -> None:
    """Every batch size, and five noises, written out."""
    axes.set_xticks(batches, [str(batch) for batch in batches])
    if noises:
        low, high = min(noises), max(noises)
        ticks = [low * (high / low) ** (k / 4) for k in range(5)] if high > low else [low]
        axes.set_yticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
