"""How fast are linear models? One DP-SRM run by the general and by the linear engine, and many trials, interleaved.

    dpsrm bench linear --data a9a --data-dir DATA

Four passes at b = 100 over a9a are 1302 steps. Times are medians of processor time over rounds in which every variant
runs once, so that a slow minute of the machine hits them all. A run is all of `train`: plan, loop, ledger, certificate.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpsrm.bench.interleaved import interleaved
from dpsrm.core.events import DEFAULT_SAMPLING, Scheme
from dpsrm.data import Records, load
from dpsrm.gradients import binary_loss
from dpsrm.methods import Srm
from dpsrm.training import Model, Performance, Privacy, Settings, Training, run_trials, train
from dpsrm.training.trials import forget_plans


def run(
    data_dir: str | Path,
    *,
    name: str = "a9a",
    features: int = 123,
    trials: int = 30,
    rounds: int = 5,
    sampling: Scheme = DEFAULT_SAMPLING,
) -> dict[str, Any]:
    """Measure; `data_dir` holds the LIBSVM file `name`.

    Returns `speedup_over_functional` (one run by the general engine ÷ by the linear engine), `trials_ratio` (all trials
    together ÷ one run by the linear engine), `trials_speedup_over_functional` (as many general runs ÷ all trials
    together), and the median seconds they come from.
    """
    records = load(Path(data_dir) / name, features=features).records
    if not isinstance(records, Records):
        raise AssertionError(type(records))
    variants: dict[str, Callable[[], object]] = {
        "functional": lambda: _one(records, settings("functional", 1, sampling)),
        "linear": lambda: _one(records, settings("linear", 1, sampling)),
        "trials": lambda: _together(records, [settings("linear", seed, sampling) for seed in range(trials)]),
    }
    for variant in variants.values():
        variant()
    torch.set_num_threads(1)
    seconds = {name: statistics.median(times) for name, times in interleaved(variants, rounds).items()}
    return {
        "data": name,
        "sampling": sampling.value,
        "steps": settings("linear", 1, sampling).training.schedule(len(records)).steps,
        "trials": trials,
        "rounds": rounds,
        "speedup_over_functional": round(seconds["functional"] / seconds["linear"], 2),
        "trials_ratio": round(seconds["trials"] / seconds["linear"], 2),
        "trials_speedup_over_functional": round(trials * seconds["functional"] / seconds["trials"], 1),
        "seconds": {variant: round(value, 3) for variant, value in seconds.items()},
    }


def settings(engine: str, seed: int, sampling: Scheme) -> Settings:
    """The paper's DP-SRM on a9a at ε = 0.5: C1 = 1, C2 = γ = 0.01, b = 100, four passes."""
    return Settings(
        privacy=Privacy(epsilon=0.5, delta=1e-5, sampling=sampling),
        method=Srm(max_grad_norm=1.0, max_diff_norm=0.01, gamma=0.01),
        training=Training(batch=100, epochs=4, learning_rate=0.5, regulariser=1e-3),
        performance=Performance(engine=engine, threads=1),
        seed=seed,
    )


def _model(records: Records) -> nn.Module:
    """Logistic regression from zero."""
    return Model().build(features=records.inputs.shape[1], classes=2, stream=np.random.default_rng(0))


def _one(records: Records, asked: Settings) -> None:
    """One whole run."""
    with tempfile.TemporaryDirectory() as folder:
        train(_model(records), binary_loss, records, asked, out=Path(folder) / "run")


def _together(records: Records, asked: list[Settings]) -> None:
    """All trials, planning included: what earlier rounds remembered is forgotten."""
    forget_plans()
    run_trials(_model(records), binary_loss, records, asked)
