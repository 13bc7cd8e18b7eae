"""Recipes: one method with its settings, as plain values that can be hashed, stored and run again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from dpsrm.experiments.problems import REGULARISER
from dpsrm.methods import method_class
from dpsrm.training import Privacy, Settings, Training
from dpsrm.training.config import build

DELTA = 1e-5
RECORDS = {"a9a": 32561, "ijcnn1": 49990}
"""Training records of each problem: public."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a row of the table runs.

    Args:
        label: the row's name.
        method: a method's name; `settings` are its own settings.
        training: schedule and step rule.
        epsilon: the budget; None for a non-private baseline.
        sampling: wor (the paper's) or poisson.
        noise_multiplier: fixed instead of calibrated (the paper's own formula).
    """

    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float | None = None
    sampling: str = "wor"
    noise_multiplier: float | None = None

    @property
    def key(self) -> str:
        """A hash of everything that decides the outcome; the label does not."""
        facts = {name: value for name, value in asdict(self).items() if name != "label"}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]

    def build(self, seed: int) -> Settings:
        """The settings of one trial."""
        privacy = None
        if self.epsilon is not None:
            privacy = Privacy(
                epsilon=self.epsilon,
                delta=DELTA,
                sampling=self.sampling,  # type: ignore[arg-type]
                noise_multiplier=self.noise_multiplier,
            )
        return Settings(
            privacy=privacy,
            method=build(method_class(self.method), self.settings, "method"),
            training=build(Training, {"regulariser": REGULARISER, **self.training}, "training"),
            seed=seed,
        )


@dataclass(frozen=True, kw_only=True)
class Space:
    """What tuning may try for one row of the table; each value is a list to choose from."""

    label: str
    method: str
    settings: Mapping[str, list[Any]] = field(default_factory=dict)
    training: Mapping[str, list[Any]] = field(default_factory=dict)
    private: bool = True

    def draw(self, stream: np.random.Generator, *, epsilon: float | None, sampling: str) -> Recipe:
        """One random choice."""
        picked = {
            kind: {name: values[int(stream.integers(len(values)))] for name, values in options.items()}
            for kind, options in (("settings", self.settings), ("training", self.training))
        }
        settings = dict(picked["settings"])
        ratio = settings.pop("diff_ratio", None)
        if ratio is not None:
            settings["max_diff_norm"] = ratio * settings["max_grad_norm"]
        budget = epsilon if self.private else None
        return Recipe(
            label=self.label,
            method=self.method,
            settings=settings,
            training=picked["training"],
            epsilon=budget,
            sampling=sampling,
        )


_CLIPS = [1.0, 1.5, 2.0, 3.0]
_RATES = [0.25, 0.5, 1.0, 2.0, 4.0]
_STOCHASTIC: dict[str, list[Any]] = {
    "batch": [250, 500, 1000, 2000],
    "epochs": [4.0, 8.0, 16.0],
    "learning_rate": _RATES,
}

SPACES: tuple[Space, ...] = (
    Space(
        label="STORM (non-private)",
        method="storm",
        settings={"gamma": [0.05, 0.1, 0.3, 0.5]},
        training=_STOCHASTIC,
        private=False,
    ),
    Space(label="SGD (non-private)", method="sgd", training=_STOCHASTIC, private=False),
    Space(label="DP-SGD", method="sgd", settings={"max_grad_norm": _CLIPS}, training=_STOCHASTIC),
    Space(
        label="DP-SGD momentum",
        method="sgd",
        settings={"max_grad_norm": _CLIPS, "momentum": [0.5, 0.8, 0.9, 0.95]},
        training=_STOCHASTIC,
    ),
    Space(
        label="DP-GD",
        method="gd",
        settings={"max_grad_norm": _CLIPS},
        training={"steps": [20, 50, 100, 200], "learning_rate": _RATES},
    ),
    Space(
        label="DP-AGD",
        method="agd",
        settings={"max_grad_norm": _CLIPS, "max_loss": [1.0, 2.0, 3.0], "candidates": [10, 20]},
        training={"steps": [10, 20, 40], "learning_rate": _RATES},
    ),
    Space(
        label="RRPSGD",
        method="rrpsgd",
        settings={"max_grad_norm": _CLIPS},
        training={"steps": [2500, 5000, 10000], "learning_rate": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]},
    ),
    Space(
        label="DP-SRM, paper's settings",
        method="srm",
        settings={"max_grad_norm": [1.0], "max_diff_norm": [0.01], "gamma": [0.01]},
        training={
            "batch": [50, 100, 200],
            "epochs": [4.0, 5.0],
            "learning_rate": [0.003, 0.01, 0.03, 0.1, 0.2, 0.4],
            "output": ["last"],
        },
    ),
    Space(
        label="DP-SRM",
        method="srm",
        settings={"max_grad_norm": _CLIPS, "diff_ratio": [0.1, 0.25, 0.5, 0.75]},
        training=_STOCHASTIC,
    ),
    Space(
        label="DP-SRM relative",
        method="srm",
        settings={
            "max_grad_norm": _CLIPS,
            "diff_ratio": [0.5, 1.0],
            "gamma": [0.1, 0.3, 0.5],
            "relative": [0.5, 1.0, 2.0],
        },
        training=_STOCHASTIC,
    ),
    Space(
        label="DiSK",
        method="disk",
        settings={"max_grad_norm": _CLIPS, "kappa": [0.3, 0.5, 0.7, 0.9], "lookahead": [0.5, 1.0, -1.0]},
        training=_STOCHASTIC,
    ),
    Space(
        label="SPIDER",
        method="spider",
        settings={"max_grad_norm": _CLIPS, "smoothness": [0.5, 1.0, 2.0], "period": [5, 10, 20]},
        training={**_STOCHASTIC, "first_batch": [4000]},
    ),
)
"""Every row that is tuned, each with the same number of tries."""


def with_papers_noise(recipe: Recipe, n: int) -> Recipe:
    """The same recipe under the noise of the paper's Theorem 1, its conditions ignored: see `papers_noise`."""
    if recipe.epsilon is None:
        raise AssertionError("a non-private recipe has no noise")
    schedule = recipe.build(0).training.schedule(n)
    noise = papers_noise(schedule.batch / n, schedule.steps, recipe.epsilon)
    return replace(recipe, label=f"{recipe.label}, paper's noise", noise_multiplier=noise)


def papers_noise(rate: float, steps: int, epsilon: float, delta: float = DELTA) -> float:
    """The noise multiplier of the paper's Theorem 1 at its best β, whether or not its conditions hold.

    >>> round(papers_noise(50 / 32561, 2605, 0.2), 2)
    5.0
    """
    beta = np.linspace(0.01, 0.99, 981)
    alpha = np.log(1 / delta) / ((1 - beta) * epsilon) + 1
    return float(np.sqrt(np.min(3.5 * rate**2 * steps * alpha / (beta * epsilon))))
