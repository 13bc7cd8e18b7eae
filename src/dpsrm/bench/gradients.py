"""How fast is the two-point DP-SRM estimator? Ours, `torch.func`, Opacus' hooks, and two plain passes, interleaved.

    dpsrm bench gradients --model cnn4 --batch 512
    dpsrm bench gradients --model all --plot docs/images/gradients.svg     every model, and their picture

Times are processor seconds of one thread. In every round each variant runs once; a ratio is the median over rounds of
the two times' quotient, so that neither a neighbour on the machine nor a slow minute favours one of them.
Peak memory is measured in a process per variant: the highest resident size while it runs, minus the resident size
just before, when the model, its two parameter vectors and the batch already exist.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dpsrm.bench.interleaved import interleaved, quiet
from dpsrm.bench.memory import peak
from dpsrm.bench.two_points import CHANNELS_LAST, VARIANTS, variant
from dpsrm.core.extras import need_extra

BATCHES = {"cnn4": 512, "cnn5": 128, "mlp": 256, "transformer": 32}


def run(model: str, batch: int | None = None, repeats: int = 15, *, memory: bool = True) -> dict[str, Any]:
    """Measure all variants on `model`; see the module's first lines for how.

    Returns ratios, for instance `ratio_to_two_plain_passes` = time of ours ÷ of two plain passes. A variant
    that cannot run the model has None instead, and `failures` says why.
    """
    batch = batch or BATCHES[model]
    torch.set_num_threads(1)
    steps: dict[str, Callable[[], Any]] = {}
    failures: dict[str, str] = {}
    for name in (*VARIANTS, *([CHANNELS_LAST] if model.startswith("cnn") else [])):
        try:
            steps[name] = variant(name, model, batch)
            quiet(steps[name])
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"[:300]
            steps.pop(name, None)
    seconds = interleaved(steps, repeats, slow=("opacus", "functional"))
    peaks = {name: [peak(name, model, batch)] for name in steps} if memory else {}
    return {
        "model": model,
        "batch": batch,
        "repeats": repeats,
        "ratio_to_two_plain_passes": _ratio(seconds, "ours", "plain"),
        "ratio_to_two_channels_last_passes": _ratio(seconds, "ours", CHANNELS_LAST),
        "speedup_over_opacus": _ratio(seconds, "opacus", "ours"),
        "speedup_over_functional": _ratio(seconds, "functional", "ours"),
        "peak_memory_ratio": _ratio(peaks, "ours", "plain"),
        "time_ratios": {name: _ratio(seconds, name, "plain") for name in steps},
        "memory_ratios": {name: _ratio(peaks, name, "plain") for name in peaks},
        "failures": failures,
    }


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
    panels = figure.subplots(1, 2)
    titles = {"time_ratios": "time", "memory_ratios": "peak memory"}
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
