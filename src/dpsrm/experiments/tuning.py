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
from dpsrm.experiments.lab import Lab
from dpsrm.experiments.problems import ABOUT
from dpsrm.experiments.recipes import DELTA, Recipe
from dpsrm.experiments.spaces import SPACES, Point, Space


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How hard to search: random tries, rounds of neighbours of the best `parents`, `repeats` runs of each finalist.

    A search that is not `fresh` may try a point again, which costs nothing and is counted all the same.
    """

    random: int = 60
    neighbours: int = 30
    rounds: int = 3
    parents: int = 5
    finalists: int = 5
    repeats: int = 5
    fresh: bool = False

    @property
    def runs(self) -> int:
        """Runs of one search."""
        return self.random + self.rounds * self.neighbours + self.finalists * (self.repeats - 1)


LONG = Effort()
"""60 random tries, thrice 30 neighbours of the best five, and four more of each of the best five: 170 runs."""
SHORT = Effort(random=1, neighbours=2, rounds=2, parents=1, finalists=1, repeats=1, fresh=True)
"""One good guess, and twice two neighbours of the best: 5 runs, for images."""

Run = Callable[[Sequence[Recipe], Sequence[int], str], None]
"""Runs recipes with some seeds on the validation problem, unless their results are there; told a title."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The outcome of a search.

    `validation_objective` is the mean of the problem's criterion on the held-out records. `epsilon_with_tuning` is what
    all runs of the search and the final one cost together (170 and one: at δ = 0.0017), if the held-out records were
    public; None without privacy.
    """

    recipe: Recipe
    runs: int
    validation_objective: float
    epsilon_with_tuning: float | None


@dataclass(frozen=True, kw_only=True)
class Search:
    """One row at one ε, under one sampling; `rank` is ε's place among the problem's budgets."""

    problem: str
    space: Space
    epsilon: float | None
    effort: Effort = LONG
    rank: int = 0

    def recipe(self, point: Point) -> Recipe:
        """The recipe at a point."""
        return self.space.recipe(point, epsilon=self.epsilon, sampling=ABOUT[self.problem].tuned_under)

    def tries(self, lab: Lab, rounds: int) -> list[Point]:
        """The points of the first round and of `rounds` rounds of neighbours, of which all but the last are run."""
        stream, guess = self._stream(0), self.space.begin(self.rank)
        points = [] if guess is None else [guess]
        points += [self.space.draw(stream) for _ in range(self.effort.random - len(points))]
        for number in range(1, rounds + 1):
            stream, parents = self._stream(number), self.best(lab, points, self.effort.parents)
            for i in range(self.effort.neighbours):
                points.append(self._neighbour(parents[i % len(parents)], points, stream))
        return points

    def _neighbour(self, parent: Point, points: Sequence[Point], stream: np.random.Generator) -> Point:
        """A neighbour; in a fresh search one not tried yet, unless a hundred draws find none."""
        found = self.space.neighbour(parent, stream)
        for _ in range(100):
            if not self.effort.fresh or found not in points:
                break
            found = self.space.neighbour(parent, stream)
        return found

    def best(self, lab: Lab, points: Sequence[Point], count: int, *, repeats: int = 1) -> list[Point]:
        """The best different points by their first `repeats` runs, so that later runs do not change the search."""
        different = {self.recipe(point).key: point for point in points}
        return sorted(different.values(), key=lambda point: self.score(lab, point, repeats=repeats))[:count]

    def score(self, lab: Lab, point: Point, *, repeats: int = 1) -> float:
        """The mean criterion on the held-out records; infinite where it diverged or was not run as often."""
        trials = lab.read(f"{self.problem}-validation", self.recipe(point))
        values = [trial[ABOUT[self.problem].criterion] for trial in trials if trial["seed"] < repeats]
        return float(np.mean(values)) if len(values) == repeats and None not in values else np.inf

    def _stream(self, number: int) -> np.random.Generator:
        """Randomness of its own for each round, the same every time."""
        words = f"{self.space.label} {self.epsilon} {number}".encode()
        return np.random.Generator(np.random.PCG64(list(words)))


def tune(
    lab: Lab,
    problem: str,
    epsilons: Sequence[float],
    run: Run,
    *,
    spaces: Sequence[Space] = SPACES,
    effort: Effort = LONG,
) -> list[Tuned]:
    """Search every space at every ε (non-private ones once)."""
    ranks = {epsilon: rank for rank, epsilon in enumerate(ABOUT[problem].epsilons)}
    searches = [
        Search(problem=problem, space=space, epsilon=epsilon, effort=effort, rank=ranks.get(epsilon or 0.0, 0))
        for space in spaces
        for epsilon in (epsilons if space.private else (None,))
    ]
    for rounds in range(effort.rounds + 1):
        run([s.recipe(p) for s in searches for p in s.tries(lab, rounds)], (0,), f"{problem}: tries, round {rounds}")
    finalists = [s.recipe(p) for s in searches for p in s.best(lab, s.tries(lab, effort.rounds), effort.finalists)]
    run(finalists, range(effort.repeats), f"{problem}: the best again")
    return [_outcome(lab, search) for search in searches]


def _outcome(lab: Lab, search: Search) -> Tuned:
    """The finalist with the best mean, and what the search cost."""
    effort = search.effort
    (best,) = search.best(lab, search.tries(lab, effort.rounds), 1, repeats=effort.repeats)
    cost = None if search.epsilon is None else searched_guarantee(search.epsilon, DELTA, runs=effort.runs + 1)[0]
    return Tuned(
        recipe=search.recipe(best),
        runs=effort.runs,
        validation_objective=search.score(lab, best, repeats=effort.repeats),
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
