"""`dpsrm plan --ranks`: bytes sent, memory and seconds of a step on several ranks, from stated rates."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dpsrm.cli.show import out, print_json
from dpsrm.core.errors import need

if TYPE_CHECKING:
    from dpsrm.training.cluster import Rates, StepCost


def plan_ranks(dimension: int | None, batch: int, *, ranks: int, rates: str, as_json: bool) -> None:
    """Print what a step of `batch` records costs each of 1, 2, 4, … up to `ranks` ranks, whole and sharded."""
    from dpsrm.training.cluster import Cluster, Rates, step_cost

    if dimension is None:
        need(False, "--ranks needs --dimension, the number of parameters", remedy="e.g. --dimension 10000000")
        raise AssertionError
    need(ranks >= 1, "--ranks must be 1 or more", ranks=ranks)
    stated = Rates().changed(rates)
    counts = sorted({min(2**k, ranks) for k in range(ranks.bit_length() + 1)})
    found = {
        (count, sharded): step_cost(Cluster(parameters=dimension, batch=batch, ranks=count, sharded=sharded), stated)
        for count in counts
        for sharded in (False, True)
        if count > 1 or not sharded
    }
    if as_json:
        rows = [{"ranks": k[0], "sharded": k[1], **asdict(cost), "step_s": cost.step_s} for k, cost in found.items()]
        print_json({"parameters": dimension, "batch": batch, "rates": asdict(stated), "rows": rows})
        return
    _show(found, stated, title=f"One DP-SRM step: {dimension} parameters, {batch} records (megabytes, seconds)")


def _show(found: dict[tuple[int, bool], StepCost], rates: Rates, *, title: str) -> None:
    """The table, and the rates it was computed from."""
    heads = ("ranks", "θ, v", "sent", "memory", "passes", "noise", "update", "send", "step")
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for (count, sharded), cost in found.items():
        seconds = (cost.passes_s, cost.noise_s, cost.update_s, cost.send_s, cost.step_s)
        sizes = f"{cost.bytes_sent / 1e6:.4g}", f"{cost.memory / 1e6:.4g}"
        table.add_row(str(count), "sharded" if sharded else "whole", *sizes, *(f"{s:.3g}" for s in seconds))
    out.print(table)
    stated = ", ".join(f"{name}={value:g}" for name, value in asdict(rates).items())
    out.print(f"per rank; computed, not measured, from --rates {stated.replace(', ', ',')}", soft_wrap=True)
    out.print("records and activations come on top of the memory; nothing overlaps (docs/scaling.md)", soft_wrap=True)
