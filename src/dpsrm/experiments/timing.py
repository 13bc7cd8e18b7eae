"""What a run of each row costs in processor time, all rows of a table measured side by side.

Trials come from different machines and busy hours, where the same step may take twice as long. Times that stand beside
each other must come from one interleaved run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import torch

from dpsrm.core.secret import Streams
from dpsrm.core.tracking import Track, silent
from dpsrm.experiments.lab import Cost
from dpsrm.experiments.problems import Problem
from dpsrm.experiments.recipes import Recipe
from dpsrm.runs.book import MemoryBook
from dpsrm.training import Step
from dpsrm.training.prepare import prepare

_WARM = 2
"""Steps before the first one that counts: a method's first release looks at one point only."""


def measure(problem: Problem, recipes: Sequence[Recipe], *, rounds: int, track: Track = silent) -> dict[str, Cost]:
    """The cost of every recipe, by its key: the median of `rounds` steps, in each round one of every recipe.

    The order of recipes changes from round to round.
    """
    torch.set_num_threads(1)
    by_key = {recipe.key: recipe for recipe in recipes}
    begun = {key: _begin(problem, recipe) for key, recipe in by_key.items()}
    runs = {key: step for key, (_, step) in begun.items()}
    seen: dict[str, list[float]] = {key: [] for key in runs}
    order = np.random.Generator(np.random.PCG64(0))
    for number in track(range(_WARM + rounds), _WARM + rounds, "seconds of a step, side by side"):
        for key in order.permutation(list(runs)):
            if runs[key].done:  # a short run is begun again
                _, runs[key] = _begin(problem, by_key[key])
            took = _seconds(runs[key])
            if number >= _WARM:
                seen[key].append(took)
    return {key: Cost(planning=planning, step=median(seen[key])) for key, (planning, _) in begun.items()}


def _begin(problem: Problem, recipe: Recipe) -> tuple[float, Step]:
    """A run of the recipe before its first step, and what it took to plan it."""
    settings = recipe.build(0, regulariser=problem.regulariser)
    start, streams = time.process_time(), Streams.choose(0)
    module, loss = problem.start(recipe.model, 0), problem.loss_of(recipe.model)
    prepared = prepare(module, loss, problem.rows, settings, streams)
    book = MemoryBook(prepared.plan.header(private_randomness=streams.private))
    return time.process_time() - start, Step(prepared, book)


def _seconds(step: Step) -> float:
    """Processor seconds of the next step."""
    with step.running():
        start = time.process_time()
        step()
        return time.process_time() - start
