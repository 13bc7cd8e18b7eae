"""Recipes: one method with its settings, as plain values that can be hashed, stored and run again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from dpsrm.core.events import Adjacency
from dpsrm.methods import Theory, method_class
from dpsrm.training import Privacy, Settings, Training
from dpsrm.training.config import build

DELTA = 1e-5
REPLACE = Adjacency.REPLACE_ONE.value


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
        model: which of the problem's models, where it has several.
        theory: settings of theory mode; none for the practical one.
        adjacency: replace-one, or add-remove to stand beside the literature.
    """

    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float | None = None
    sampling: str = "wor"
    noise_multiplier: float | None = None
    model: str = ""
    theory: Mapping[str, Any] = field(default_factory=dict)
    adjacency: str = REPLACE

    @property
    def key(self) -> str:
        """A hash of everything that decides the outcome; the label does not, nor what is left out."""
        without = {"label", *(name for name in ("model", "theory") if not getattr(self, name))}
        without |= {"adjacency"} if self.adjacency == REPLACE else set()
        facts = {name: value for name, value in asdict(self).items() if name not in without}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]

    def build(self, seed: int, *, regulariser: float = 0.0) -> Settings:
        """The settings of one trial on a problem with this regulariser."""
        privacy = None
        if self.epsilon is not None:
            privacy = Privacy(
                epsilon=self.epsilon,
                delta=DELTA,
                sampling=self.sampling,  # type: ignore[arg-type]
                noise_multiplier=self.noise_multiplier,
                adjacency=Adjacency(self.adjacency),
            )
        return Settings(
            privacy=privacy,
            method=build(method_class(self.method), self.settings, "method"),
            training=build(Training, {"regulariser": regulariser, **self.training}, "training"),
            theory=build(Theory, self.theory, "theory") if self.theory else None,
            seed=seed,
        )


def with_papers_noise(recipe: Recipe, n: int) -> Recipe:
    """The same recipe under the noise of the paper's Theorem 1, its conditions ignored: see `papers_noise`."""
    if recipe.epsilon is None:
        raise AssertionError("a non-private recipe has no noise")
    schedule = recipe.build(0).training.schedule(n)
    noise = papers_noise(schedule.batch / n, schedule.steps, recipe.epsilon)
    return replace(recipe, label=f"{recipe.label}, paper's noise", noise_multiplier=noise)


def at_half_step(recipe: Recipe) -> Recipe:
    """The same recipe at half its learning rate: was a rival slow because its search had ended at too large a step?"""
    training = {**recipe.training, "learning_rate": recipe.training["learning_rate"] / 2}
    return replace(recipe, label=f"{recipe.label}, half step", training=training)


def papers_noise(rate: float, steps: int, epsilon: float, delta: float = DELTA) -> float:
    """The noise multiplier of the paper's Theorem 1 at its best β, whether or not its conditions hold.

    >>> round(papers_noise(50 / 32561, 2605, 0.2), 2)
    5.0
    """
    beta = np.linspace(0.01, 0.99, 981)
    alpha = np.log(1 / delta) / ((1 - beta) * epsilon) + 1
    return float(np.sqrt(np.min(3.5 * rate**2 * steps * alpha / (beta * epsilon))))
