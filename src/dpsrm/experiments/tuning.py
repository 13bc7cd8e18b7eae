"""Tuning with the same care for everyone: random tries, then neighbours of the best, then the best again and again.

All on a fifth of the training records that the tries do not train on; the test set is never looked at. Every method
gets equally many runs at every ε. The search follows from the results alone, so it can be interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dpsrm.accounting import runs_to_gamma, tuned_epsilon
from dpsrm.experiments.problems import RECORDS, held_out
from dpsrm.experiments.recipes import DELTA, Recipe
from dpsrm.experiments.runner import Lab
from dpsrm.experiments.spaces import SPACES, Point, Space
from dpsrm.training.plan import Plan, noise_for, predict

RANDOM, NEIGHBOURS, ROUNDS, PARENTS, FINALISTS, REPEATS = 60, 30, 3, 5, 5, 5
RUNS = RANDOM + ROUNDS * NEIGHBOURS + FINALISTS * (REPEATS - 1)
"""Runs of one search: 60 random ones, thrice 30 neighbours of the best five, and four more of each of the best five."""

Run = Callable[[Sequence[Recipe], Sequence[int], str], None]
"""Runs recipes with some seeds on the validation problem, unless their results are there; told a title."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The outcome of a search.

    `epsilon_with_tuning` is what search and final run cost together by Papernot & Steinke 2022, if the number of runs
    had been drawn at random with mean `runs` and the held-out records were public; None without privacy.
    """

    recipe: Recipe
    runs: int
    validation_objective: float
    epsilon_with_tuning: float | None


@dataclass(frozen=True, kw_only=True)
class Search:
    """One row at one ε; under WOR, as in the paper."""

    problem: str
    space: Space
    epsilon: float | None

    def recipe(self, point: Point) -> Recipe:
        """The recipe at a point."""
        return self.space.recipe(point, epsilon=self.epsilon, sampling="wor")

    def tries(self, lab: Lab, rounds: int) -> list[Point]:
        """The points of the random round and of `rounds` rounds of neighbours, of which all but the last are run."""
        stream = self._stream(0)
        points = [self.space.draw(stream) for _ in range(RANDOM)]
        for number in range(1, rounds + 1):
            stream, parents = self._stream(number), self.best(lab, points, PARENTS)
            points += [self.space.neighbour(parents[i % len(parents)], stream) for i in range(NEIGHBOURS)]
        return points

    def best(self, lab: Lab, points: Sequence[Point], count: int, *, repeats: int = 1) -> list[Point]:
        """The best different points by their first `repeats` runs, so that later runs do not change the search."""
        different = {self.recipe(point).key: point for point in points}
        return sorted(different.values(), key=lambda point: self.score(lab, point, repeats=repeats))[:count]

    def score(self, lab: Lab, point: Point, *, repeats: int = 1) -> float:
        """The mean objective on the held-out records; infinite where it diverged or was not run as often."""
        trials = lab.read(f"{self.problem}-validation", self.recipe(point))
        values = [trial["test_objective"] for trial in trials if trial["seed"] < repeats]
        return float(np.mean(values)) if len(values) == repeats and None not in values else np.inf

    def _stream(self, number: int) -> np.random.Generator:
        """Randomness of its own for each round, the same every time."""
        words = f"{self.space.label} {self.epsilon} {number}".encode()
        return np.random.Generator(np.random.PCG64(list(words)))


def tune(
    lab: Lab, problem: str, epsilons: Sequence[float], run: Run, *, spaces: Sequence[Space] = SPACES
) -> list[Tuned]:
    """Search every space at every ε (non-private ones once)."""
    searches = [
        Search(problem=problem, space=space, epsilon=epsilon)
        for space in spaces
        for epsilon in (epsilons if space.private else (None,))
    ]
    for rounds in range(ROUNDS + 1):
        run([s.recipe(p) for s in searches for p in s.tries(lab, rounds)], (0,), f"{problem}: tries, round {rounds}")
    finalists = [s.recipe(p) for s in searches for p in s.best(lab, s.tries(lab, ROUNDS), FINALISTS)]
    run(finalists, range(REPEATS), f"{problem}: the best again")
    return [_outcome(lab, search) for search in searches]


def _outcome(lab: Lab, search: Search) -> Tuned:
    """The finalist with the best mean, and what the search cost."""
    points = search.tries(lab, ROUNDS)
    (best,) = search.best(lab, points, 1, repeats=REPEATS)
    return Tuned(
        recipe=search.recipe(best),
        runs=RUNS,
        validation_objective=search.score(lab, best, repeats=REPEATS),
        epsilon_with_tuning=None if search.epsilon is None else _charged(lab, search, points, best),
    )


def _charged(lab: Lab, search: Search, points: Sequence[Point], best: Point) -> float:
    """ε of all tries and the final run together."""
    n, recipes = held_out(search.problem), {recipe.key: recipe for recipe in map(search.recipe, points)}
    noises = {key: lab.read(f"{search.problem}-validation", recipe)[0] for key, recipe in recipes.items()}
    plans = [
        _plan(recipes[key], n, trial["noise_multiplier"])
        for key, trial in noises.items()
        if trial["noise_multiplier"] is not None
    ]
    different = {plan.spending: plan for plan in plans}
    final = _plan(search.recipe(best), RECORDS[search.problem], None)
    gamma = runs_to_gamma(RUNS, eta=0.0)
    return tuned_epsilon([p.reserved for p in different.values()], final.reserved, DELTA, eta=0.0, gamma=gamma)


def _plan(recipe: Recipe, n: int, noise: float | None) -> Plan:
    """The longest plan of a recipe, with the noise that was used, or calibrated now."""
    settings = recipe.build(0)
    if settings.privacy is None:
        raise AssertionError("a non-private recipe spends nothing")
    schedule = settings.training.schedule(n, fixed=settings.method.batch_for(n))
    s = noise_for(settings.method, schedule, n=n, privacy=settings.privacy) if noise is None else noise
    return Plan(
        n=n,
        schedule=schedule,
        method=settings.method,
        privacy=settings.privacy,
        noise_multiplier=s,
        spending=predict(settings.method.stages(schedule), n=n, privacy=settings.privacy, noise_multiplier=s),
        guarantee=None,
    )


def write_tuned(path: Path, outcomes: Sequence[Tuned]) -> None:
    """Keep outcomes as JSON, so that the table can be run again without the search."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(tuned) for tuned in outcomes], indent=1) + "\n")


def read_tuned(path: Path) -> list[Tuned]:
    """The outcomes of an earlier search; none if there was none."""
    if not path.exists():
        return []
    return [Tuned(**{**facts, "recipe": Recipe(**facts["recipe"])}) for facts in json.loads(path.read_text())]
