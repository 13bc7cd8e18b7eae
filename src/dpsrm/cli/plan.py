"""`dpsrm plan`: what each choice of batch, steps, sampling and accountant costs in noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track
from rich.table import Table

from dpsrm.accounting import accountant, calibrate_noise, expected_runs, select_epsilon
from dpsrm.cli.show import err, out, print_json
from dpsrm.core.errors import DpsrmError, InputError, need
from dpsrm.core.events import Adjacency, Charge, GaussianRelease, Sampling, Scheme, Spending


@dataclass(frozen=True, kw_only=True)
class Row:
    """One choice; `noise_multiplier` None where the accountant proves nothing at any noise."""

    batch: int
    steps: int
    sampling: str
    accountant: str
    noise_multiplier: float | None
    noise_per_pass: float | None
    why: str = ""


def plan(
    n: Annotated[int, typer.Option("--n", help="Number of records.")],
    epsilon: Annotated[float, typer.Option(help="ε to spend.")],
    delta: Annotated[float, typer.Option(help="δ, e.g. 1e-5.")],
    epochs: Annotated[float, typer.Option(help="Passes over the data, counted in records drawn.")] = 10.0,
    batches: Annotated[str, typer.Option(help="Batch sizes, e.g. 100,500,2000; by default n/512 … n/8.")] = "",
    accountants: Annotated[str, typer.Option(help="Accountants to compare.")] = "pld,rdp,paper",
    adjacency: Annotated[Adjacency, typer.Option(help="Which datasets are neighbours.")] = Adjacency.REPLACE_ONE,
    tries: Annotated[int, typer.Option(help="Also: ε if the best of about this many runs is chosen.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write a plot to this PNG or SVG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What each (batch, steps, sampling, accountant) costs in noise, so that you can choose before touching the data.

    Example: dpsrm plan --n 32561 --epsilon 0.5 --delta 1e-5 --plot plan.png
    """
    names = [name.strip() for name in accountants.split(",")]
    choices = [
        (batch, scheme, name) for batch in _sizes(n, batches) for scheme in _schemes(adjacency) for name in names
    ]
    bar = track(choices, "calibrating", console=err, transient=True, disable=as_json)
    rows = [
        _row(n, batch, scheme, by=name, passes=epochs, goal=(epsilon, delta, adjacency)) for batch, scheme, name in bar
    ]
    chosen = _selection(rows, n, delta, adjacency, tries) if tries else None
    if plot is not None:
        _draw(rows, plot, f"n = {n}, ε = {epsilon:g}, δ = {delta:g}, {epochs:g} passes")
    if as_json:
        print_json({"rows": [asdict(row) for row in rows], "selection": chosen})
        return
    out.print(
        _table(rows, f"noise for ε = {epsilon:g}, δ = {delta:g} ({adjacency.value}), {epochs:g} passes over n = {n}")
    )
    out.print(
        "noise: std ÷ sensitivity of one release · effective: of the mean over the whole run, noise ÷ (batch·√steps)·n"
    )
    if chosen is not None:
        out.print(
            f"choosing the best of {chosen['expected_runs']:.3g} runs on average: ε = {chosen['epsilon']:.4g} (rdp)"
        )


def _sizes(n: int, text: str) -> list[int]:
    """The batch sizes to try."""
    if not text:
        return sorted({max(1, n // k) for k in (512, 128, 32, 8)})
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--batches takes whole numbers separated by commas; got {text!r}") from error


def _schemes(adjacency: Adjacency) -> tuple[Scheme, ...]:
    """The samplings that have a proof under `adjacency`."""
    if adjacency is Adjacency.REPLACE_ONE:
        return Scheme.POISSON, Scheme.WOR
    if adjacency is Adjacency.ADD_REMOVE:
        return (Scheme.POISSON,)
    raise AssertionError(adjacency)


def _spend(row_n: int, batch: int, scheme: Scheme, *, steps: int, noise: float, adjacency: Adjacency) -> Spending:
    """`steps` equal releases."""
    drawn = Sampling(scheme=Scheme.FULL if batch == row_n else scheme, population=row_n, batch=batch)
    return Spending.of([Charge(GaussianRelease(noise_multiplier=noise, sampling=drawn), steps)], adjacency=adjacency)


def _row(n: int, batch: int, scheme: Scheme, *, by: str, passes: float, goal: tuple[float, float, Adjacency]) -> Row:
    """Calibrate one choice."""
    epsilon, delta, adjacency = goal
    need(0 < passes < math.inf, "epochs must be positive", epochs=passes)
    steps = max(1, round(passes * n / batch))
    proof = accountant(by)
    try:
        noise = calibrate_noise(
            lambda s: _spend(n, batch, scheme, steps=steps, noise=s, adjacency=adjacency),
            accountant=proof,
            epsilon=epsilon,
            delta=delta,
        )
    except DpsrmError as error:
        if by == "pld":
            raise
        nothing = {"noise_multiplier": None, "noise_per_pass": None, "why": str(error)}
        return Row(batch=batch, steps=steps, sampling=scheme.value, accountant=by, **nothing)
    effective = noise * n / (batch * math.sqrt(steps))
    return Row(
        batch=batch,
        steps=steps,
        sampling=scheme.value,
        accountant=by,
        noise_multiplier=noise,
        noise_per_pass=effective,
    )


def _selection(rows: Sequence[Row], n: int, delta: float, adjacency: Adjacency, tries: int) -> dict[str, float]:
    """ε of choosing the best of about `tries` runs of the first choice (Papernot & Steinke, logarithmic K)."""
    need(tries >= 2, "choosing needs two tries or more", tries=tries)
    low, high = 1e-12, 0.999
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if expected_runs(0.0, middle) > tries else (low, middle)
    first = next(row for row in rows if row.noise_multiplier is not None)
    noise = first.noise_multiplier
    if noise is None:
        raise AssertionError
    spending = _spend(n, first.batch, Scheme(first.sampling), steps=first.steps, noise=noise, adjacency=adjacency)
    return {
        "expected_runs": expected_runs(0.0, high),
        "gamma": high,
        "epsilon": select_epsilon(spending, delta, eta=0.0, gamma=high),
    }


def _table(rows: Sequence[Row], title: str) -> Table:
    """The choices for people."""
    table = Table(title=title)
    for name in ("batch", "steps", "sampling", "accountant"):
        table.add_column(name, justify="right")
    table.add_column("noise", justify="right")
    table.add_column("effective", justify="right")
    for row in rows:
        noise = "no guarantee" if row.noise_multiplier is None else f"{row.noise_multiplier:.4g}"
        effective = "" if row.noise_per_pass is None else f"{row.noise_per_pass:.4g}"
        table.add_row(str(row.batch), str(row.steps), row.sampling, row.accountant, noise, effective)
    return table


def _draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """Noise against batch size, one line per sampling and accountant."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for key in dict.fromkeys((row.sampling, row.accountant) for row in rows):
        found = [row for row in rows if (row.sampling, row.accountant) == key and row.noise_multiplier is not None]
        if found:
            axes.plot([r.batch for r in found], [r.noise_per_pass for r in found], "o-", label=" · ".join(key))
    axes.set(xscale="log", yscale="log", xlabel="batch size", title=title)
    axes.set_ylabel("effective noise of the run: s·n/(b·√T)")
    axes.legend()
    axes.grid(alpha=0.3, which="both")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write the plot {path}: {error}; give a .png or .svg path") from error
    finally:
        plt.close(figure)
