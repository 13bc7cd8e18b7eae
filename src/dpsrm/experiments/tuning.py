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

from dpsrm.accounting import searched_guarantee
from dpsrm.experiments.recipes import DELTA, Recipe
from dpsrm.experiments.runner import Lab
from dpsrm.experiments.spaces import SPACES, Point, Space

RANDOM, NEIGHBOURS, ROUNDS, PARENTS, FINALISTS, REPEATS = 60, 30, 3, 5, 5, 5
RUNS = RANDOM + ROUNDS * NEIGHBOURS + FINALISTS * (REPEATS - 1)
"""Runs of one search: 60 random ones, thrice 30 neighbours of the best five, and four more of each of the best five."""

Run = Callable[[Sequence[Recipe], Sequence[int], str], None]
"""Runs recipes with some seeds on the validation problem, unless their results are there; told a title."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The outcome of a search.

    `epsilon_with_tuning` is what all runs of the search and the final one cost together, at δ = 0.0017, if the held-out
    records were public; None without privacy.
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
    (best,) = search.best(lab, search.tries(lab, ROUNDS), 1, repeats=REPEATS)
    cost = None if search.epsilon is None else searched_guarantee(search.epsilon, DELTA, runs=RUNS + 1)[0]
    return Tuned(
        recipe=search.recipe(best),
        runs=RUNS,
        validation_objective=search.score(lab, best, repeats=REPEATS),
        epsilon_with_tuning=cost,
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
