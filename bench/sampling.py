"""Poisson sampling against sampling without replacement, under the same replace-one guarantee.

    python bench/sampling.py DATA      DATA: where ../shared/data/prepare laid out a9a

Prints, for the demo's data and for a9a, the noise multiplier and the test log-loss and 0/1 error (mean ± standard error
of 10 seeds). Figures and conclusion: docs/decisions/poisson.md.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from dpsrm.data import Loaded, load, load_like, load_rand_health
from dpsrm.methods import Srm
from dpsrm.training import Model, Privacy, Settings, Training, classification_metrics, loss_for, train

SEEDS = 10


def measure(name: str, pair: tuple[Loaded, Loaded], privacy: dict[str, float], method: Srm, training: Training) -> None:
    """One line per sampling."""
    records, test = pair
    for sampling in ("poisson", "wor"):
        losses, errors, noise = [], [], 0.0
        for seed in range(SEEDS):
            module = Model().build(features=records.n_features, classes=2, stream=np.random.default_rng(0))
            settings = Settings(
                privacy=Privacy(**privacy, sampling=sampling), method=method, training=training, seed=seed
            )
            with tempfile.TemporaryDirectory() as folder:
                run = train(module, loss_for(2), records.records, settings, out=Path(folder) / "run")
            noise = run.plan.noise_multiplier
            with torch.no_grad():
                metrics = classification_metrics(module(test.records.inputs), test.records.targets)
            losses.append(metrics["log_loss"])
            errors.append(metrics["error"])
        loss, error = (f"{np.mean(x):.4f} ± {np.std(x) / SEEDS**0.5:.4f}" for x in (losses, errors))
        print(f"{name}, b = {training.batch}, {sampling}: s = {noise:.3f}, log-loss {loss}, error {error}", flush=True)


def main(data: Path) -> None:
    """The four settings of the decision note."""
    demo = load_rand_health()[:2]
    a9a = load(data / "a9a" / "a9a", features=123)
    both = a9a, load_like(data / "a9a" / "a9a.t", a9a)
    for batch, rate in ((500, 2.0), (100, 1.0)):
        training = Training(batch=batch, epochs=10, learning_rate=rate)
        measure("demo", demo, {"epsilon": 1.0, "delta": 1e-5}, Srm(max_grad_norm=1.0, max_diff_norm=0.5), training)
    for batch, rate in ((500, 1.0), (100, 0.5)):
        training = Training(batch=batch, epochs=4, learning_rate=rate)
        measure("a9a", both, {"epsilon": 0.5, "delta": 1e-5}, Srm(max_grad_norm=2.0, max_diff_norm=1.0), training)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
