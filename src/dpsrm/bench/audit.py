"""How powerful audits are, how often they raise a false alarm, and what a black-box attacker sees of a small CNN.

    dpsrm bench audit --data-dir DATA --out docs/audit-results.json

Figures and conclusion: docs/audit.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpsrm.audit import Target, audit, audit_figure, black_box_figure, svg
from dpsrm.audit.audit import SURE
from dpsrm.audit.black_box import black_box
from dpsrm.audit.bounds import per_step
from dpsrm.audit.repeated import repeated_black_box
from dpsrm.core.files import write_atomically
from dpsrm.data.images import read_idx_pair, scaled
from dpsrm.gradients import binary_loss
from dpsrm.methods import Srm
from dpsrm.training import Privacy, Settings, Training

AUDITS, SMALL = 20, 100


def run(folder: Path, out: Path, *, runs: int = 1000) -> dict[str, Any]:
    """All studies; each result is written as it comes, and those in `out` already are not made again."""
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    studies: dict[str, Callable[[], dict[str, Any]]] = {
        "repeated": lambda: _audits(AUDITS, Target(method=Srm(), epsilon=4.0, steps=32), out),
        "false_alarms": lambda: _audits(SMALL, Target(method=Srm(), epsilon=4.0, canaries=3000, steps=4), None),
        "black_box_many_runs": lambda: _many_runs(_even_or_odd(folder), runs, out),
        "black_box_one_run": lambda: _one_run(_even_or_odd(folder)),
    }
    for name, study in studies.items():
        if name not in found:
            found[name] = study()
            write_atomically(out, (json.dumps(found, indent=1) + "\n").encode())
    return found


def _audits(count: int, target: Target, out: Path | None) -> dict[str, Any]:
    """The same audit with other seeds, both bounds of each run."""
    start, found = time.process_time(), []
    for seed in range(count):
        result = audit(replace(target, seed=seed))
        found.append((result, per_step(result.observed), per_step(result.observed, confidence=SURE)))
        if out is not None and seed == 0:
            _save(audit_figure(result), out.with_name("audit-one-run.svg"))
    one, many = [r.bound.epsilon for r, _, _ in found], [bound.epsilon for _, bound, _ in found]
    return {
        "audits": count,
        "claimed_epsilon": target.epsilon,
        "canaries": target.canaries,
        "steps": target.steps,
        "one_run": [round(each, 3) for each in one],
        "per_step": [round(each, 3) for each in many],
        "one_run_above_the_claim": sum(each > target.epsilon for each in one),
        "per_step_above_the_claim": sum(each > target.epsilon for each in many),
        "violated": sum(r.violated or sure.epsilon > target.epsilon for r, _, sure in found),
        "processor_seconds_each": round((time.process_time() - start) / count, 2),
    }


def _even_or_odd(folder: Path) -> tuple[Tensor, Tensor]:
    """MNIST: is the digit odd?"""
    place = folder / "mnist"
    pixels, digits = read_idx_pair(place / "train-images-idx3-ubyte", place / "train-labels-idx1-ubyte")
    images = scaled(pixels, centre=0.1307, spread=0.3081).reshape(-1, 1, 28, 28).float()
    return images, (digits % 2).long()


def _network() -> nn.Module:
    """A small CNN with one logit."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(1, 8, 8, stride=4),
            nn.Tanh(),
            nn.Conv2d(8, 16, 3, stride=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(64, 1),
        )


def _settings(n: int, *, steps: int) -> Settings:
    """DP-SRM over all records at ε = 10."""
    return Settings(
        privacy=Privacy(epsilon=10.0, delta=1e-5),
        method=Srm(max_grad_norm=0.1, max_diff_norm=0.05),
        training=Training(batch=n, steps=steps, learning_rate=0.5, output="last"),
        seed=3,
    )


def _many_runs(data: tuple[Tensor, Tensor], runs: int, out: Path) -> dict[str, Any]:
    """One mislabelled or rightly labelled record, many runs."""
    start, (inputs, targets) = time.process_time(), data
    found = repeated_black_box(_network(), binary_loss, (inputs[:50], targets[:50]), _settings(50, steps=2), runs=runs)
    figure = black_box_figure(found, f"black box, {runs} runs, ε = 10: at least {found.epsilon:.2f}")
    _save(figure, out.with_name("audit-black-box.svg"))
    return {
        "claimed_epsilon": 10.0,
        "runs": runs,
        "lower_bound": round(found.epsilon, 4),
        "processor_seconds": round(time.process_time() - start, 1),
    }


def _one_run(data: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """A thousand canaries in one run."""
    start, (inputs, targets) = time.process_time(), data
    settings = _settings(2000, steps=8)
    results = {}
    for kind in ("mislabelled", "out-of-distribution"):
        some = inputs[:2000], targets[:2000]
        found = black_box(_network(), binary_loss, some, settings, canaries=1000, kind=kind)
        results[kind] = {
            "lower_bound": round(found.bound.epsilon, 4),
            "auc": round(found.auc, 4),
            "true_positives_at_0.01": round(found.true_positives(0.01), 4),
        }
    return {"claimed_epsilon": 10.0, **results, "processor_seconds": round(time.process_time() - start, 1)}


def _save(figure: Any, path: Path) -> None:
    """Write a figure as SVG."""
    write_atomically(path, svg(figure).encode())
