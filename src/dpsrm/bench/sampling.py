"""Poisson sampling against sampling without replacement, under the same replace-one guarantee.

    dpsrm bench sampling --data-dir DATA

For the demo's data and for a9a: the noise multiplier and the test log-loss and 0/1 error (mean and standard error over
seeds). Figures and conclusion: docs/decisions/poisson.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpsrm.core.events import Scheme
from dpsrm.data import Loaded, load, load_like, load_rand_health
from dpsrm.methods import Srm
from dpsrm.training import Model, Privacy, Settings, Training, classification_metrics, loss_for, train


@dataclass(frozen=True, kw_only=True)
class SamplingCase:
    """Data and settings under which the two samplings are compared."""

    name: str
    data: tuple[Loaded, Loaded]
    epsilon: float
    method: Srm
    training: Training

    def settings(self, sampling: Scheme, seed: int) -> Settings:
        """The settings of one run."""
        privacy = Privacy(epsilon=self.epsilon, delta=1e-5, sampling=sampling)
        return Settings(privacy=privacy, method=self.method, training=self.training, seed=seed)


def run(a9a_file: Path, test_file: Path, *, seeds: int = 10) -> dict[str, Any]:
    """All cases by both samplings: one row each."""
    rows = [
        measure(case, sampling, seeds)
        for case in cases(a9a_file, test_file)
        for sampling in (Scheme.POISSON, Scheme.WOR)
    ]
    return {"seeds": seeds, "rows": rows}


def cases(a9a_file: Path, test_file: Path) -> Iterator[SamplingCase]:
    """The four settings of the decision note."""
    demo = load_rand_health()[:2]
    method = Srm(max_grad_norm=1.0, max_diff_norm=0.5)
    for batch, rate in ((500, 2.0), (100, 1.0)):
        training = Training(batch=batch, epochs=10, learning_rate=rate)
        yield SamplingCase(name="demo", data=demo, epsilon=1.0, method=method, training=training)
    a9a = load(a9a_file, features=123)
    both = a9a, load_like(test_file, a9a)
    method = Srm(max_grad_norm=2.0, max_diff_norm=1.0)
    for batch, rate in ((500, 1.0), (100, 0.5)):
        training = Training(batch=batch, epochs=4, learning_rate=rate)
        yield SamplingCase(name="a9a", data=both, epsilon=0.5, method=method, training=training)


def measure(case: SamplingCase, sampling: Scheme, seeds: int) -> dict[str, Any]:
    """Noise, log-loss and error of one case by one sampling."""
    noises, losses, errors = zip(*(_one(case, sampling, seed) for seed in range(seeds)), strict=True)
    return {
        "data": case.name,
        "batch": case.training.batch,
        "sampling": sampling.value,
        "noise_multiplier": noises[0],
        "log_loss": float(np.mean(losses)),
        "log_loss_error": float(np.std(losses) / seeds**0.5),
        "error": float(np.mean(errors)),
        "error_error": float(np.std(errors) / seeds**0.5),
    }


def _one(case: SamplingCase, sampling: Scheme, seed: int) -> tuple[float, float, float]:
    """One run's noise multiplier, and its log-loss and error on the test records."""
    records, test = case.data
    module = Model().build(features=records.n_features, classes=2, stream=np.random.default_rng(0))
    with tempfile.TemporaryDirectory() as folder:
        found = train(module, loss_for(2), records.records, case.settings(sampling, seed), out=Path(folder) / "run")
    with torch.no_grad():
        metrics = classification_metrics(module(test.records.inputs), test.records.targets)
    return found.plan.noise_multiplier, metrics["log_loss"], metrics["error"]
