"""What a step over persons costs: CPU time ÷ that of a record-level step over as many rows, interleaved."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from dpsrm.core.events import Scheme
from dpsrm.core.secret import Streams
from dpsrm.gradients import binary_loss, multiclass_loss
from dpsrm.methods import Method, Sgd, Srm
from dpsrm.runs.book import MemoryBook
from dpsrm.training import Privacy, Settings, Training
from dpsrm.training.prepare import prepare
from dpsrm.training.step import Step

PERSONS, FEATURES, BATCH = 4000, 100, 256
CASES = [(kind, method, k) for kind in ("linear", "mlp") for method in (Sgd(), Srm()) for k in (4, 8)]


def run(rounds: int = 15) -> list[dict[str, Any]]:
    """A linear model and a network, DP-SGD and DP-SRM, 256 persons of exactly k rows against 256·k records."""
    return [_case(kind, method, k, rounds) for kind, method, k in CASES]


def _case(kind: str, method: Method, k: int, rounds: int) -> dict[str, Any]:
    """One comparison."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(PERSONS), k)
    data = rng.normal(size=(len(ids), FEATURES)).astype(np.float32) / 10, rng.integers(0, 2, len(ids))
    steps = [_step(kind, method, data, unit, k) for unit in (ids, None)]
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):  # the first round is thrown away: it compiles
        for step, taken in zip(steps, times, strict=True):
            start = time.process_time()
            for _ in range(20 if kind == "linear" else 4):
                step()
            taken.append(time.process_time() - start)
    persons, records = (statistics.median(taken[1:]) for taken in times)
    return {"model": kind, "method": method.name, "k": k, "ratio": round(persons / records, 2)}


def _step(kind: str, method: Method, data: Any, unit: Any, k: int) -> Step:
    """A run that could begin, over persons or over as many records."""
    module: nn.Module = nn.Linear(FEATURES, 1)
    if kind == "mlp":
        module = nn.Sequential(nn.Linear(FEATURES, 128), nn.Tanh(), nn.Linear(128, 2))
    promise = Privacy(epsilon=1e6, delta=1e-5, noise_multiplier=1.0, accountant="rdp", sampling=Scheme.WOR)
    size = BATCH * (k if unit is None else 1)
    settings = Settings(
        privacy=promise if unit is None else replace(promise, rows_per_unit=k),
        method=method,
        training=Training(batch=size, steps=100_000, learning_rate=1e-3, output="last"),
        seed=1,
    )
    loss = binary_loss if kind == "linear" else multiclass_loss
    prepared = prepare(module, loss, data, settings, Streams.choose(1), unit=unit)
    return Step(prepared, MemoryBook(prepared.plan.header(private_randomness=False)))
