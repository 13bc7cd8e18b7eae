"""How fast is the two-point DP-SRM estimator? Ours, `torch.func`, Opacus' hooks, and two plain passes, interleaved.

    dpsrm bench gradients --model cnn4 --batch 512
    dpsrm bench gradients --model all --plot docs/images/gradients.svg     every model, and their picture

Times are processor seconds of one thread. In every round each variant runs once; a ratio is the median over rounds of
the two times' quotient, so that neither a neighbour on the machine nor a slow minute favours one of them.
Peak memory is measured in a process per variant: the highest resident size while it runs, minus the resident size
just before, when the model, its two parameter vectors and the batch already exist.
"""

from __future__ import annotations

import copy
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpsrm.bench.models import build, losses
from dpsrm.gradients import FunctionalEngine, Objective, Part, Query
from dpsrm.gradients.ghost import GhostEngine

VARIANTS = ("ours", "plain", "opacus", "functional")
CHANNELS_LAST = "plain, channels last"
"""A second yardstick for convolutions: plain passes in the order of memory in which they are fastest."""
BATCHES = {"cnn4": 512, "cnn5": 128, "mlp": 256, "transformer": 32}
_CLIPS = (0.05, 1.0)
_GAMMA = 0.1


def variant(name: str, model: str, batch: int) -> Callable[[], Any]:
    """One step of the estimator by the named means, ready to be called again and again."""
    module, inputs, targets = build(model, batch)
    objective = Objective.of(module, losses)
    if name == CHANNELS_LAST:
        cast(Any, module).to(memory_format=torch.channels_last)  # in place; torch's types know nothing of it
        inputs = inputs.to(memory_format=torch.channels_last)
    theta_P = objective.layout.read(module)
    before_P = theta_P + 1e-3 * torch.randn_like(theta_P)
    if name in ("plain", CHANNELS_LAST):
        return _plain(module, objective, before_P, inputs, targets)
    if name == "opacus":
        return _opacus(module, objective, before_P, inputs, targets)
    parts = (
        Part(coefficients=(1.0, -1.0), clip=_CLIPS[0], weight=1 - _GAMMA, name="difference"),
        Part(coefficients=(1.0, 0.0), clip=_CLIPS[1], weight=_GAMMA),
    )
    query = Query(points=(theta_P, before_P), parts=parts)
    engine = {"ours": GhostEngine, "functional": FunctionalEngine}[name](objective)
    return lambda: engine(query, (inputs, targets))


def _pair(module: nn.Module, objective: Objective, before_P: Tensor) -> tuple[nn.Module, nn.Module]:
    """The module, and a copy with the earlier parameters."""
    earlier = copy.deepcopy(module)
    objective.layout.write(earlier, before_P)
    return module, earlier


def _plain(
    module: nn.Module, objective: Objective, before_P: Tensor, inputs: Tensor, targets: Tensor
) -> Callable[[], None]:
    """Forward and backward through the mean loss at both points: what non-private training would do."""
    pair = _pair(module, objective, before_P)

    def step() -> None:
        for one in pair:
            one.zero_grad()
            torch.autograd.backward(losses(one(inputs), targets).mean())

    return step


def _opacus(
    module: nn.Module, objective: Objective, before_P: Tensor, inputs: Tensor, targets: Tensor
) -> Callable[[], Tensor]:
    """Per-example gradients at both points by Opacus' hooks, clipped part by part and summed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.validators import ModuleValidator

        pair = [GradSampleModule(ModuleValidator.fix(m)) for m in _pair(module, objective, before_P)]

    def step() -> Tensor:
        rows = []
        for one in pair:
            one.zero_grad()
            torch.autograd.backward(losses(one(inputs), targets).sum())
            rows.append([p.grad_sample for p in one.parameters()])
        differences = [now - before for now, before in zip(*rows, strict=True)]
        total: Tensor = (1 - _GAMMA) * _clipped(differences, _CLIPS[0]) + _GAMMA * _clipped(rows[0], _CLIPS[1])
        return total

    return step


def _clipped(rows: list[Tensor], clip: float) -> Tensor:
    """The clipped sum of per-example gradients given parameter by parameter, as Opacus' optimizer does it."""
    norm_B = torch.stack([g.flatten(1).norm(2, dim=-1) for g in rows], dim=1).norm(2, dim=1)
    factor_B = (clip / (norm_B + 1e-6)).clamp(max=1.0)
    return torch.cat([torch.einsum("i,i...->...", factor_B, g).flatten() for g in rows])


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
            _quiet(steps[name])
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"[:300]
            steps.pop(name, None)
    seconds = _times(steps, repeats)
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


def _quiet(step: Callable[[], Any]) -> None:
    """Run once without warnings: torch.func warns about its own speed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step()


def _times(steps: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds per round; in each round every variant runs once, slow ones only in the first seven rounds."""
    seen: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(repeats):
        for name, step in steps.items():
            if round_ >= 7 and name in ("opacus", "functional"):
                continue
            start = time.process_time()
            _quiet(step)
            seen[name].append(time.process_time() - start)
    return seen


def _ratio(values: dict[str, list[float]], over: str, under: str) -> float | None:
    """The median of the quotients of the rounds in which both were measured."""
    if over not in values or under not in values:
        return None
    return round(statistics.median(a / b for a, b in zip(values[over], values[under], strict=False)), 3)


def peak(name: str, model: str, batch: int) -> float:
    """Peak memory of one variant in bytes, in a process of its own."""
    command = [sys.executable, "-m", "dpsrm.bench.gradients", name, model, str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _peak_here(name: str, model: str, batch: int) -> int:
    """Peak memory of one variant in this process, above what the model and the batch need."""
    torch.set_num_threads(1)
    step = variant(name, model, batch)
    Path("/proc/self/clear_refs").write_text("5")
    start = _resident("VmRSS")
    for _ in range(3):
        _quiet(step)
    return _resident("VmHWM") - start


def _resident(field: str) -> int:
    """A size of this process in bytes, as Linux counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def plot_ratios(results: list[dict[str, Any]], path: Path) -> None:
    """Bars of time and memory relative to two plain passes, one group per model."""
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


if __name__ == "__main__":  # one variant's peak memory, for `peak`
    sys.stdout.write(str(_peak_here(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
