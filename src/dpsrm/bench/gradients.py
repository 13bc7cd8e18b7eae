"""How fast are clipped sums, at DP-SRM's two points and at one? Ours, `torch.func`, Opacus, plain passes, interleaved.

    dpsrm bench gradients --model cnn4 --batch 512
    dpsrm bench gradients --model bert                                     pip install 'dpsrm[hf]'
    dpsrm bench gradients --model all --plot docs/images/gradients.svg     every model, and their picture

Models are made with random weights (bench/models.py). Times are processor seconds of one thread. In every round each
variant runs once; a ratio is the median over rounds of the two times' quotient, so that neither a neighbour on the
machine nor a slow minute favours one of them.
Peak memory is measured in a process per variant: the highest resident size while it runs, minus the resident size
just before, when the model, its two parameter vectors, the batch and our compiled passes (60 MB) already exist.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dpsrm.bench.interleaved import interleaved, quiet
from dpsrm.bench.memory import peak
from dpsrm.bench.models import MODELS
from dpsrm.bench.two_points import CHANNELS_LAST, GHOST, VARIANTS, variant
from dpsrm.core.errors import need_extra
from dpsrm.gradients.torch_state import heap_kept

_SLOW = ("opacus", GHOST, "functional")


def run(model: str, batch: int | None = None, repeats: int = 15, *, memory: bool = True) -> dict[str, Any]:
    """Measure all variants on `model`; see the module's first lines for how.

    Returns ratios at two points and, under "one_point", at one: for instance `ratio_to_two_plain_passes` = time of ours
    ÷ of two plain passes. A variant that cannot run the model has None instead, and `failures` says why.
    """
    batch = batch or MODELS[model].batch
    torch.set_num_threads(1)
    heap_kept()  # as around every step of a training; all variants have it
    two, one = (_measured(model, batch, repeats, points=points, memory=memory) for points in (2, 1))
    return {
        "model": model,
        "batch": batch,
        "repeats": repeats,
        "ratio_to_two_plain_passes": two["time"].get("ours"),
        "ratio_to_two_channels_last_passes": two["to_channels_last"],
        "speedup_over_opacus": two["over_opacus"],
        "speedup_over_functional": two["over_functional"],
        "peak_memory_ratio": two["memory"].get("ours"),
        "one_point": {
            "ratio_to_plain_pass": one["time"].get("ours"),
            "ratio_to_channels_last_pass": one["to_channels_last"],
            "speedup_over_opacus": one["over_opacus"],
            "speedup_over_opacus_ghost": one["over_ghost"],
            "peak_memory_ratio": one["memory"].get("ours"),
        },
        "time_ratios": two["time"],
        "memory_ratios": two["memory"],
        "one_point_time_ratios": one["time"],
        "one_point_memory_ratios": one["memory"],
        "failures": {**{f"{name}, one point": why for name, why in one["failures"].items()}, **two["failures"]},
    }


def _names(model: str, points: int) -> list[str]:
    """The variants that are measured on a model."""
    entry = MODELS[model]
    extra = [CHANNELS_LAST] if entry.convolves else []
    if points == 1:
        return ["ours", "plain", *extra, "opacus", GHOST]
    return ["ours", "plain", *extra, "opacus", *(["functional"] if entry.functional else [])]


def _measured(model: str, batch: int, repeats: int, *, points: int, memory: bool) -> dict[str, Any]:
    """Times and peaks of all variants at so many points, as ratios."""
    steps, failures = _ready(model, batch, points)
    seconds = interleaved(steps, repeats, slow=_SLOW)
    peaks = {name: [peak(name, model, batch, points=points)] for name in steps} if memory else {}
    return {
        "time": {name: _ratio(seconds, name, "plain") for name in steps},
        "memory": {name: _ratio(peaks, name, "plain") for name in peaks},
        "to_channels_last": _ratio(seconds, "ours", CHANNELS_LAST),
        "over_opacus": _ratio(seconds, "opacus", "ours"),
        "over_ghost": _ratio(seconds, GHOST, "ours"),
        "over_functional": _ratio(seconds, "functional", "ours"),
        "failures": failures,
    }


def _ready(model: str, batch: int, points: int) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """The variants that run, and why the others do not."""
    steps: dict[str, Callable[[], Any]] = {}
    failures: dict[str, str] = {}
    for name in _names(model, points):
        try:
            step = variant(name, model, batch, points=points)
            quiet(step)
            steps[name] = step
        except Exception as error:
            failures[name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return steps, failures


def _ratio(values: dict[str, list[float]], over: str, under: str) -> float | None:
    """The median of the quotients of the rounds in which both were measured."""
    if over not in values or under not in values:
        return None
    return round(statistics.median(a / b for a, b in zip(values[over], values[under], strict=False)), 3)


def plot_ratios(results: list[dict[str, Any]], path: Path) -> None:
    """Bars of time and memory relative to two plain passes, one group per model."""
    need_extra("matplotlib", extra="cli")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    titles = {"time_ratios": "time", "memory_ratios": "peak memory"}
    titles = {key: title for key, title in titles.items() if any(result[key] for result in results)}
    panels = figure.subplots(1, len(titles), squeeze=False)[0]
    for panel, (key, title) in zip(panels, titles.items(), strict=True):
        for at, name in enumerate(VARIANTS):
            heights = [result[key].get(name, 0) for result in results]
            bars = panel.bar([i + 0.2 * (at - 1.5) for i in range(len(results))], heights, 0.2, label=name)
            panel.bar_label(bars, fmt="%.3g", fontsize=6)
        panel.set(yscale="log", title=f"{title} ÷ two plain passes'")
        panel.set_xticks(range(len(results)), [f"{r['model']}\nb={r['batch']}" for r in results])
        panel.axhline(1, color="grey", linewidth=0.5)
    panels[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
