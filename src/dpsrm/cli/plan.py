"""`dpsrm plan`: what each choice of batch, steps, sampling and accountant costs in noise."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from dpsrm.accounting.guarantee import rounded_up
from dpsrm.cli.plan_noise import Candidate, calibrated_row, draw_noise, noise_table, provable_schemes, selection_cost
from dpsrm.cli.plan_ranks import plan_ranks
from dpsrm.cli.plan_theory import plan_rates
from dpsrm.cli.show import Json, err, next_step, out, print_json
from dpsrm.core.errors import InputError, need
from dpsrm.core.events import Adjacency

ALL = "pld,rdp,paper"
"""The accountants that `--accountants all` compares, in several times the time of pld alone."""


def plan(
    n: Annotated[int, typer.Option("--n", help="Number of records.")],
    epsilon: Annotated[float, typer.Option(help="ε to spend.")],
    delta: Annotated[float, typer.Option(help="δ, e.g. 1e-5.")],
    epochs: Annotated[float, typer.Option(help="Passes over the data, counted in records drawn.")] = 10.0,
    batches: Annotated[str, typer.Option(help="Batch sizes, e.g. 100,500,2000; by default n/512 … n/8.")] = "",
    accountants: Annotated[str, typer.Option(help="Which to compare: pld,rdp,rdp9,paper, or all.")] = "pld",
    adjacency: Annotated[Adjacency, typer.Option(help="Which datasets are neighbours.")] = Adjacency.REPLACE_ONE,
    tries: Annotated[int, typer.Option(help="Also: ε if the best of about this many runs is chosen.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write a plot to this PNG or SVG file.")] = None,
    theory: Annotated[
        bool, typer.Option("--theory", help="Instead: what the theorems promise; needs the four constants below.")
    ] = False,
    dimension: Annotated[int | None, typer.Option(help="d, the number of parameters.")] = None,
    lipschitz: Annotated[float | None, typer.Option(help="G, which no example's gradient norm exceeds.")] = None,
    smoothness: Annotated[float | None, typer.Option(help="L, of every example's gradient.")] = None,
    gap: Annotated[float | None, typer.Option(help="D_F = F(θ⁰) − min F.")] = None,
    beta: Annotated[float, typer.Option(help="β of the paper's noise.")] = 0.5,
    ranks: Annotated[int, typer.Option(help="Instead: what a step costs on up to so many ranks.")] = 0,
    rates: Annotated[str, typer.Option(help="Rates for --ranks, e.g. bandwidth=1e9,normal=5e-9.")] = "",
    as_json: Json = False,
) -> None:
    """What each (batch, steps, sampling, accountant) costs in noise, so that you can choose before touching the data.

    Example: dpsrm plan --n 32561 --epsilon 0.5 --delta 1e-5 --plot plan.png

    With --theory: the utility bounds of DP-SRM, DP-GD and RRPSGD, for --batches theorem, corollary or (default) both.

    With --ranks R --dimension P: bytes sent, memory and seconds of one step on 1 … R ranks, for the first of --batches.
    """
    if ranks:
        need(not theory, "--ranks and --theory are two questions", remedy="ask one at a time")
        plan_ranks(dimension, _sizes(n, batches)[0], ranks=ranks, rates=rates, as_json=as_json)
        return
    if theory:
        constants = {"n": n, "epsilon": epsilon, "delta": delta, "dimension": dimension}
        constants |= {"lipschitz": lipschitz, "smoothness": smoothness, "gap": gap}
        plan_rates(constants, batches=batches, beta=beta, plot=plot, as_json=as_json)
        return
    need(0 < epochs < math.inf, "epochs must be positive", epochs=epochs)
    accountants = ALL if accountants == "all" else accountants
    choices = [
        Candidate(
            n=n, batch=b, steps=max(1, round(epochs * n / b)), sampling=s, accountant=name.strip(), adjacency=adjacency
        )
        for b in _sizes(n, batches)
        for s in provable_schemes(adjacency)
        for name in accountants.split(",")
    ]
    if not batches:
        choices += _chosen(n, epsilon, delta, adjacency, accountants)
    rows = [
        calibrated_row(c, epsilon, delta)
        for c in track(choices, "calibrating", console=err, transient=True, disable=as_json)
    ]
    chosen = selection_cost(choices[0], rows[0], delta, tries=tries) if tries else None
    title = f"ε = {epsilon:g}, δ = {delta:g} ({adjacency.value}), {epochs:g} passes over n = {n}"
    if plot is not None:
        draw_noise(rows, plot, title)
    if as_json:
        print_json({"rows": [asdict(row) for row in rows], "selection": chosen})
        return
    out.print(noise_table(rows, title))
    out.print("noise: std ÷ sensitivity of one release.")
    out.print("effective: noise·n/(batch·√steps), what the whole run feels; less is better.")
    if not batches:
        out.print("Last row: what train chooses for two classes, with its own number of steps.")
    out.print(_default(n, epsilon, delta, adjacency))
    given = f"--epsilon {epsilon:g} --delta {delta:g} --method sgd"
    choice = f"--set training.batch=B --set training.epochs={epochs:g}"
    next_step("leave the choice to train, or train with one of these", f"dpsrm train … {given} {choice}")
    if chosen is not None:
        runs, cost = chosen["expected_runs"], chosen["epsilon"]
        out.print(
            f"choosing the best of {runs:.3g} runs (on average) of the first choice: ε = {rounded_up(cost, 4)} (rdp)"
        )


def _chosen(n: int, epsilon: float, delta: float, adjacency: Adjacency, accountants: str) -> list[Candidate]:
    """What `dpsrm train` chooses for two classes, as rows of the table."""
    from dpsrm.core.events import DEFAULT_SAMPLING
    from dpsrm.training.defaults import default_training

    _, t = default_training(n=n, epsilon=epsilon, delta=delta, classes=2, adjacency=adjacency)
    size = {"n": n, "batch": t.batch or n, "steps": t.steps or 1}
    return [
        Candidate(**size, sampling=DEFAULT_SAMPLING, accountant=name.strip(), adjacency=adjacency)
        for name in accountants.split(",")
    ]


def _default(n: int, epsilon: float, delta: float, adjacency: Adjacency) -> str:
    """What `dpsrm train` does when it is left to choose, and why."""
    from dpsrm.training.defaults import default_training
    from dpsrm.training.network_rule import network_training

    kinds = (("two classes", "logistic", 2), ("ten classes", "logistic", 10), ("numbers", "linear", 0))
    told = []
    for words, kind, classes in kinds:
        _, t = default_training(n=n, epsilon=epsilon, delta=delta, classes=classes, adjacency=adjacency, kind=kind)
        told.append(f"  {words}: {t.steps} steps of {t.batch} records, learning rate {t.learning_rate:g}")
    for size in (10_000, 1_000_000):
        _, t = network_training(n=n, parameters=size)
        rate = f"{t.optimizer} at rate {t.learning_rate:g}"
        told.append(f"  network, {size:,} parameters: {t.steps} steps of {t.batch}, {rate}")
    return "\n".join(["", "Left to choose, train takes (why: docs/decisions/defaults.md and networks.md):", *told])


def _sizes(n: int, text: str) -> list[int]:
    """The batch sizes to try."""
    if not text:
        return sorted({max(1, n // k) for k in (512, 128, 32, 8)})
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--batches takes whole numbers separated by commas; got {text!r}") from error
    for size in sizes:
        need(1 <= size <= n, "a batch has between 1 and n records", batch=size, n=n)
    return sizes
