"""Tuning: the same number of runs for everyone, never the test set, and a price that is charged in full."""

import math
from collections import Counter

import numpy as np
import pytest

from dpsrm.accounting import runs_to_gamma, searched_guarantee
from dpsrm.core.errors import InputError
from dpsrm.experiments.lab import Lab
from dpsrm.experiments.spaces import SPACES
from dpsrm.experiments.tuning import LONG, Search, read_tuned, tune, write_tuned

SPACE = next(space for space in SPACES if space.label == "DP-GD")


def quality(recipe):
    """A made-up objective with its minimum inside the space: C1 = 2, 100 steps, rate 1."""
    values = recipe.settings["max_grad_norm"] / 2, recipe.training["steps"] / 100, recipe.training["learning_rate"]
    return 0.3 + 0.01 * sum(math.log2(value) ** 2 for value in values)


class Bench:
    """Stands in for the runner: keeps made-up results and counts the runs asked for."""

    def __init__(self, folder):
        self.lab, self.runs = Lab(folder, folder), Counter()

    def __call__(self, recipes, seeds, title):
        for recipe in {recipe.key: recipe for recipe in recipes}.values():
            known = {trial["seed"] for trial in self.lab.read("a9a-validation", recipe)}
            new = [seed for seed in seeds if seed not in known]
            self.runs[recipe.label, recipe.epsilon] += len(new)
            noise, rough = 400.0 / recipe.epsilon, np.random.default_rng(int(recipe.key, 16))
            roughness = 0.01 * np.abs(rough.standard_normal(5))
            trials = [(seed, quality(recipe) + (roughness[seed] if quality(recipe) > 0.3 else 0)) for seed in new]
            facts = [{"seed": seed, "test_objective": value, "noise_multiplier": noise} for seed, value in trials]
            self.lab.add("a9a-validation", recipe, facts)


def test_every_space_makes_recipes_that_can_be_built():
    stream = np.random.default_rng(0)
    for space in SPACES:
        point = space.draw(stream)
        for _ in range(20):
            recipe = space.recipe(point, epsilon=0.5, sampling="wor")
            assert recipe.build(0).method.name == space.method
            assert (recipe.epsilon is None) == (not space.private)
            moved = space.neighbour(point, stream)
            changes = [abs(moved[name] - point[name]) for name in point]
            assert sorted(changes)[-3:] in ([0, 0, 1], [0, 1, 1])
            point = moved


def test_the_search_finds_the_optimum_and_can_be_interrupted(tmp_path):
    first = Bench(tmp_path)
    (low, high) = tune(first.lab, "a9a", (0.2, 0.5), first, spaces=[SPACE])
    for tuned, epsilon in ((low, 0.2), (high, 0.5)):
        assert tuned.recipe.epsilon == epsilon
        assert tuned.validation_objective == pytest.approx(0.3)
        assert tuned.epsilon_with_tuning == searched_guarantee(epsilon, 1e-5, runs=LONG.runs + 1)[0] > 10 * epsilon
    assert max(first.runs.values()) <= LONG.runs == 170
    again = Bench(tmp_path)
    assert tune(again.lab, "a9a", (0.2, 0.5), again, spaces=[SPACE]) == [low, high]
    assert sum(again.runs.values()) == 0
    write_tuned(tmp_path / "tuned.json", [low, high])
    assert read_tuned(tmp_path / "tuned.json") == [low, high]


def test_only_the_held_out_part_decides(tmp_path):
    """Results on the test set, however good, are not looked at; a try that diverged is the worst."""
    bench = Bench(tmp_path)
    search = Search(problem="a9a", space=SPACE, epsilon=0.5)
    points = search.tries(bench.lab, 0)
    bench([search.recipe(point) for point in points], (0,), "")
    (best,) = search.best(bench.lab, points, 1)
    other = next(point for point in points if search.recipe(point).key != search.recipe(best).key)
    bench.lab.add("a9a", search.recipe(other), [{"seed": 0, "test_objective": 0.0}])
    assert search.best(bench.lab, points, 1) == [best]
    bench.lab.add("a9a-validation", search.recipe(best), [{"seed": 1, "test_objective": None}])
    assert search.score(bench.lab, best, repeats=2) == math.inf
    assert search.score(bench.lab, best, repeats=3) == math.inf


def test_a_search_is_charged_for_all_its_runs():
    """Against the closed form of Kairouz, Oh & Viswanath 2015, Theorem 3.3, for k pure ε-DP runs."""
    k, each = 12, 0.1
    for i in (1, 3, 5):
        terms = (math.comb(k, j) * (math.exp((k - j) * each) - math.exp((k - 2 * i + j) * each)) for j in range(i))
        delta = sum(terms) / (1 + math.exp(each)) ** k
        found, total = searched_guarantee(each, delta, runs=k)
        assert (k - 2 * i) * each <= found <= (k - 2 * i) * each + 0.01
        assert total == pytest.approx(1 - (1 - delta) ** (k + 1))
    with pytest.raises(InputError, match="tries"):
        runs_to_gamma(1, eta=0.0)
