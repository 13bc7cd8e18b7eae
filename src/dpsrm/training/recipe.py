"""A method's steps as numbers, read off its own walk, so that a compiled loop can take them.

Shapes: T steps, K points, M parts (the most of any step).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpsrm.core.errors import InputError, need
from dpsrm.gradients import ClipRule, Excess, Query
from dpsrm.methods import Ask, ConstantStep, DirectionWalk, Method, Schedule

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything a step of a direction walk needs but θ, the records and the noise; all of it public.

    Attributes:
        parts: (T, M, 3): clip, weight, 1 for AUTO-S.
        coefficients: (T, M, K).
        points: (T, K, 2): each point as multiples of θ^t and θ^{t−1}.
        counts: (T, 3): K, M and the batch of each step.
        weights: (T, 2): keep and gain.
        bounds: (T): the bound of each sum.
    """

    parts: Array
    coefficients: Array
    points: Array
    counts: Array
    weights: Array
    bounds: Array


def read_recipe(method: Method, schedule: Schedule) -> Recipe:
    """Ask the method's walk all its questions beforehand.

    With θ^t = (1, 0) and θ^{t−1} = (0, 1) a point that is a combination of them is its own coefficients; with both at
    0 a clip that depends on their distance shows that it does.

    Edge cases: methods whose questions depend on what was released (adaptive ones, clips relative to the last step's
    length) have no recipe and raise `InputError`.
    """
    asks, standing = (_asked(method, schedule, scale) for scale in (1.0, 0.0))
    for (one, _), (other, _) in zip(asks, standing, strict=True):
        same = one.batch == other.batch and one.query.parts == other.query.parts
        need(same, "the method's clips depend on its releases", method=method.name, remedy="use train")
    T = len(asks)
    K = max(len(ask.query.points) for ask, _ in asks)
    M = max(len(ask.query.parts) for ask, _ in asks)
    recipe = Recipe(
        parts=np.ones((T, M, 3)),
        coefficients=np.zeros((T, M, K)),
        points=np.zeros((T, K, 2)),
        counts=np.array([(len(a.query.points), len(a.query.parts), a.batch) for a, _ in asks], dtype=np.int64),
        weights=np.array([weights for _, weights in asks]),
        bounds=np.array([ask.query.bound for ask, _ in asks]),
    )
    for t, (ask, _) in enumerate(asks):
        _write(recipe, t, ask.query)
    return recipe


def _asked(method: Method, schedule: Schedule, scale: float) -> list[tuple[Ask, tuple[float, float]]]:
    """Every step's question and weights, with θ^t and θ^{t−1} `scale` times the unit vectors."""
    here, before = scale * torch.eye(2, dtype=torch.float64)
    walk = method.begin(here, schedule=schedule, stepper=ConstantStep(1.0))
    if method.adaptive or not isinstance(walk, DirectionWalk):
        raise InputError(f"{method.name} decides as it goes and cannot be run as a block; use train")
    questions = []
    for time in range(schedule.steps):
        walk.time, walk.theta, walk.previous = time, here, before
        ask = walk.ask()
        plain = isinstance(ask, Ask) and ask.rho is None and ask.query.excess is Excess.CLIP
        if not plain or not isinstance(ask, Ask):
            raise InputError(f"{method.name} asks for more than noisy clipped means; use train")
        questions.append((ask, walk.weights()))
    return questions


def _write(recipe: Recipe, t: int, query: Query) -> None:
    """Step t's question into the arrays."""
    for m, part in enumerate(query.parts):
        recipe.parts[t, m] = part.clip, part.weight, float(part.rule is ClipRule.AUTO)
        recipe.coefficients[t, m, : len(part.coefficients)] = part.coefficients
    for k, point in enumerate(query.points):
        recipe.points[t, k] = point.numpy()
