"""What does not tuning cost? The defaults, those of before, and the best of a grid, on public tables.

    dpsrm bench defaults --data-dir DATA --out results/defaults.jsonl --plot docs/images/defaults.svg

The oracle is the best grid point by test log-loss, which nobody has in practice: grid points are two step sizes and
five lengths, as multiples of n·μ/8 steps. All runs are seeded trials of linear models at δ = 1e-5.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpsrm.accounting.guarantee import gaussian_mu
from dpsrm.bench.default_tables import Split, load_split
from dpsrm.core.errors import need_extra
from dpsrm.methods import Method, Sgd, Srm
from dpsrm.training import Performance, Privacy, Settings, Training, classification_metrics, loss_for, run_trials
from dpsrm.training.defaults import LEAST_STEPS, MOST_STEPS, RULES, default_batch, default_training
from dpsrm.training.settings import Model

DELTA = 1e-5
EPSILONS = (0.2, 1.0, 3.0)
RATES = (8.0, 2.0)
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0)
JOINT = Srm(joint_norm=0.8, gamma=0.7)

Row = dict[str, Any]


def run(names: Sequence[str], folder: Path | None, out: Path, *, seeds: int = 2) -> list[Row]:
    """Try every choice on every table; rows are written to `out` as they come."""
    rows = []
    with out.open("w") as file:
        for name in names:
            split = load_split(name, folder)
            for epsilon in EPSILONS:
                for row in _rows(split, epsilon, seeds):
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    rows.append(row)
    return rows


def _rows(split: Split, epsilon: float, seeds: int) -> Iterator[Row]:
    """All choices on one table at one ε."""
    for label, method, training in _choices(split, epsilon):
        for seed in range(seeds):
            facts = {"table": split.name, "n": len(split.train), "features": split.features, "classes": split.classes}
            yield {**facts, "epsilon": epsilon, "choice": label, **_trial(split, epsilon, method, training, seed=seed)}
    yield {
        "table": split.name,
        "epsilon": epsilon,
        "choice": "majority",
        "seed": 0,
        "log_loss": round(_majority(split), 5),
        "error": round(1 - float(_shares(split.test.targets, split.classes).max()), 5),
    }


def _choices(split: Split, epsilon: float) -> Iterator[tuple[str, Method, Training]]:
    """(name, method, training): before, rule, the rule by DP-SRM or with the last iterate, and the grid."""
    n = len(split.train)
    yield "before", Srm(), Training()
    method, training = default_training(n=n, epsilon=epsilon, delta=DELTA, classes=split.classes)
    yield "rule", method, training
    yield "rule, srm joint", JOINT, training
    yield "rule, last", method, Training(**{**vars(training), "output": "last"})
    for rate in RATES:
        for factor in FACTORS:
            whole = factor * n * gaussian_mu(epsilon, DELTA) / 8
            steps = min(MOST_STEPS, max(LEAST_STEPS, round(whole)))
            eta = rate * min(1.0, whole / LEAST_STEPS)
            grid = Training(batch=default_batch(n, split.classes), steps=steps, learning_rate=eta)
            yield f"{rate:g} x {factor:g}", Sgd(), grid


def _trial(split: Split, epsilon: float, method: Method, training: Training, *, seed: int) -> Row:
    """One seeded run and what it is worth on the held-out records."""
    module = Model().build(features=split.features, classes=split.classes, stream=np.random.default_rng(0))
    settings = Settings(
        privacy=Privacy(epsilon=epsilon, delta=DELTA),
        method=method,
        training=training,
        performance=Performance(threads=1),
        seed=seed,
    )
    start = time.process_time()
    (result,) = run_trials(module, loss_for(split.classes), split.train, [settings])
    seconds = time.process_time() - start
    nn.utils.vector_to_parameters(result.theta.float(), module.parameters())
    with torch.no_grad():
        found = classification_metrics(module(split.test.inputs), split.test.targets)
    return {
        "method": method.name,
        "batch": result.plan.schedule.batch,
        "steps": result.plan.schedule.steps,
        "rate": round(training.learning_rate, 4),
        "seed": seed,
        "log_loss": round(found["log_loss"], 5),
        "error": round(found["error"], 5),
        "seconds": round(seconds, 2),
    }


def _shares(targets: torch.Tensor, classes: int) -> torch.Tensor:
    """How frequent each class is."""
    return torch.bincount(targets.long(), minlength=classes).double() / len(targets)


def _majority(split: Split) -> float:
    """Log-loss of the training records' class frequencies: what a model without features reaches."""
    p, q = (_shares(t, split.classes) for t in (split.train.targets, split.test.targets))
    return float(-(q * p.log()).sum())


def summary(rows: Sequence[Row]) -> list[Row]:
    """A line per table and ε: mean log-losses of before, rule and oracle, and the rule's share of the oracle's gain."""
    means: dict[tuple[str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        means[row["table"], row["epsilon"]][row["choice"]].append(row["log_loss"])
    return [_line(table, epsilon, found) for (table, epsilon), found in means.items()]


def _line(table: str, epsilon: float, found: dict[str, list[float]]) -> Row:
    """One line of the summary."""
    mean = {choice: sum(values) / len(values) for choice, values in found.items()}
    grid = {choice: value for choice, value in mean.items() if " x " in choice and math.isfinite(value)}
    best = min(grid, key=lambda choice: grid[choice])
    oracle = min(grid[best], mean["rule"])
    gain = mean["majority"] - oracle
    shown = {name: round(mean[name], 4) for name in ("majority", "before", "rule", "rule, srm joint", "rule, last")}
    share = round((mean["majority"] - mean["rule"]) / gain, 3) if gain > 0 else None
    return {"table": table, "epsilon": epsilon, **shown, "oracle": round(oracle, 4), "best": best, "share": share}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Log-loss over the oracle's against the length of the run, a panel per ε; dots are the grid, crosses the rule."""
    need_extra("matplotlib", extra="cli")
    from matplotlib.figure import Figure

    lines = summary(rows)
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, epsilon in zip(figure.subplots(1, len(EPSILONS), sharey=True), EPSILONS, strict=True):
        for line in (line for line in lines if line["epsilon"] == epsilon):
            here = [r for r in rows if r["table"] == line["table"] and r["epsilon"] == epsilon]
            ratios = [_mean(here, f"{RATES[0]:g} x {factor:g}") / line["oracle"] for factor in FACTORS]
            axes.plot(FACTORS, ratios, "o-", label=line["table"], markersize=3)
            flow = min(RULES["logistic"].most, math.sqrt(here[0]["classes"]) / 2)
            axes.plot([flow], [line["rule"] / line["oracle"]], "kx")
        axes.set(xscale="log", yscale="log", title=f"ε = {epsilon:g}", xlabel="flow time ÷ (n·μ)")
        axes.set_xticks(FACTORS, ["⅛", "¼", "½", "1", "2"])
        axes.set_yticks([1, 1.1, 1.2, 1.5, 2], ["1", "1.1", "1.2", "1.5", "2"])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("log-loss ÷ best of the grid")
    figure.axes[0].legend(fontsize=7)
    figure.savefig(path)


def _mean(rows: Sequence[Row], choice: str) -> float:
    """Mean log-loss of a choice."""
    values = [row["log_loss"] for row in rows if row["choice"] == choice]
    return float(sum(values) / len(values))
