"""Tuning with the same care for everyone: random search on a part of the training set, equally many tries each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from dpsrm.experiments.recipes import SPACES, Recipe, Space
from dpsrm.experiments.runner import Lab

TRIES = 24
SEEDS = (0,)
"""Tries are many and cheap, so each is run once: the search itself averages."""


def tries(space: Space, *, epsilon: float | None, sampling: str, count: int = TRIES) -> list[Recipe]:
    """`count` random choices from a space; the same for the same space and budget."""
    stream = np.random.Generator(
        np.random.PCG64([len(space.label), *space.label.encode(), round(1000 * (epsilon or 0))])
    )
    return [space.draw(stream, epsilon=epsilon, sampling=sampling) for _ in range(count)]


def all_tries(epsilons: Sequence[float], samplings: Sequence[str], *, count: int = TRIES) -> list[Recipe]:
    """Everything the search runs: private spaces at every budget and sampling, the others once."""
    recipes = []
    for space in SPACES:
        if space.private:
            for epsilon in epsilons:
                for sampling in samplings:
                    recipes += tries(space, epsilon=epsilon, sampling=sampling, count=count)
        else:
            recipes += tries(space, epsilon=None, sampling="wor", count=count)
    return recipes


def best(lab: Lab, problem: str, recipes: Sequence[Recipe]) -> list[Recipe]:
    """The best try of each (label, ε, sampling) by its objective on the held-out part of the training set."""
    found: dict[tuple[str, float | None, str], tuple[float, Recipe]] = {}
    for recipe in recipes:
        trials = lab.read(f"{problem}-validation", recipe)
        if not trials:
            continue
        score = float(np.mean([trial["test_objective"] for trial in trials]))
        key = recipe.label, recipe.epsilon, recipe.sampling
        if np.isfinite(score) and (key not in found or score < found[key][0]):
            found[key] = score, recipe
    return [recipe for _, recipe in found.values()]


def write_tuned(path: Path, recipes: Sequence[Recipe]) -> None:
    """Keep tuned recipes as JSON, so that the table can be run again without the search."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(recipe) for recipe in recipes], indent=1) + "\n")


def read_tuned(path: Path) -> list[Recipe]:
    """The tuned recipes of an earlier search; none if there was none."""
    if not path.exists():
        return []
    return [Recipe(**facts) for facts in json.loads(path.read_text())]
