"""Run the trials that are missing: resumable, parallel over cores."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpsrm.core.errors import need_extra
from dpsrm.experiments.lab import Lab
from dpsrm.experiments.problems import Problem, about_problem, load_problem
from dpsrm.experiments.recipes import Recipe
from dpsrm.training import Plan, TrialResult, run_trials

_POINTS = 20
"""Points of a trial's curve."""
_TRIED = ("seed", "noise_multiplier")
"""What is kept of a run made to tune, besides the measure that decides."""


@dataclass(frozen=True)
class Job:
    """Some trials of one recipe on one problem."""

    problem: str
    validation: bool
    recipe: Recipe
    seeds: tuple[int, ...]


def missing(lab: Lab, problem: str, recipes: Sequence[Recipe], seeds: Sequence[int], *, validation: bool) -> list[Job]:
    """The jobs that are not in the results yet, a few trials each."""
    name = f"{problem}-validation" if validation else problem
    jobs, most = [], about_problem(problem).trials_per_job
    for recipe in {recipe.key: recipe for recipe in recipes}.values():
        done = {trial["seed"] for trial in lab.read(name, recipe)}
        todo = [seed for seed in seeds if seed not in done]
        jobs += [Job(problem, validation, recipe, tuple(todo[i : i + most])) for i in range(0, len(todo), most)]
    return jobs


def run_jobs(lab: Lab, jobs: Sequence[Job], *, workers: int) -> Iterator[Job]:
    """Run jobs on `workers` processes, the slow ones first, keeping each result as it comes; yields those done."""
    need_extra("joblib", extra="experiments")
    import joblib

    parallel = joblib.Parallel(n_jobs=workers, return_as="generator_unordered")
    for job, trials in parallel(joblib.delayed(_work)(job, lab.data) for job in sorted(jobs, key=_haste)):
        lab.add(f"{job.problem}-validation" if job.validation else job.problem, job.recipe, trials)
        yield job


@lru_cache(maxsize=1)
def _problem(name: str, folder: Path, validation: bool) -> Problem:
    """A problem, read once per process; one at a time, because features of images take gigabytes."""
    problem = load_problem(name, folder)
    return problem.validation() if validation else problem


def _work(job: Job, folder: Path) -> tuple[Job, list[dict[str, Any]]]:
    """The trials of one job, on one thread."""
    torch.set_num_threads(1)
    problem = _problem(job.problem, folder, job.validation)
    about = about_problem(job.problem)
    trials = run_recipe(problem, job.recipe, job.seeds, points=0 if job.validation else about.points)
    if job.validation:
        trials = [{name: trial[name] for name in (*_TRIED, about.criterion)} for trial in trials]
    return job, [_averaged(trial, problem, job.recipe) for trial in trials] if about.averaged else trials


def _averaged(trial: dict[str, Any], problem: Problem, recipe: Recipe) -> dict[str, Any]:
    """A trial with the mean of its curve (the trapezoid rule from θ⁰ on) instead of the curve."""
    start = problem.start(recipe.model, trial["seed"])
    theta_P = torch.nn.utils.parameters_to_vector(start.parameters())
    curve = [[0.0, *problem.progress(recipe.model, theta_P)], *trial.pop("curve")]
    shares, norms = [point[0] for point in curve], [point[-1] for point in curve]
    mean = float(np.trapezoid(norms, shares)) / shares[-1] if len(curve) > 1 else norms[0]
    return {**trial, "path_norm": mean}


def _haste(job: Job) -> int:
    """The slow methods first, so that none is left over at the end."""
    return {"rrpsgd": 0, "agd": 1, "spider": 2}.get(job.recipe.method, 3)


def run_recipe(
    problem: Problem, recipe: Recipe, seeds: Sequence[int], *, points: int = _POINTS
) -> list[dict[str, Any]]:
    """One trial per seed: final measures, cost, and a curve of about `points` points.

    A trial that diverged has measures that are not numbers.
    """
    return [_run_one(problem, recipe, seed, points=points) for seed in seeds]


def _run_one(problem: Problem, recipe: Recipe, seed: int, *, points: int) -> dict[str, Any]:
    """One trial from its own start."""
    settings, n = recipe.build(seed, regulariser=problem.regulariser), len(problem.train)
    steps = settings.training.schedule(n, fixed=settings.method.batch_for(n)).steps
    every = max(1, steps // max(points, 1))
    snapshots = range(every, steps + 1, every) if points else ()
    module = problem.start(recipe.model, seed)
    start = time.process_time()
    (result,) = run_trials(module, problem.loss_of(recipe.model), problem.rows, [settings], snapshots=snapshots)
    return _told(problem, recipe.model, result, seconds=time.process_time() - start)


def _told(problem: Problem, model: str, result: TrialResult, *, seconds: float) -> dict[str, Any]:
    """What is kept of a trial."""
    plan = result.plan
    curve = [_point(problem, model, t / plan.schedule.steps, theta) for t, theta in result.iterates.items()]
    return {
        "seed": result.settings.seed,
        **problem.measures(model, result.theta),
        "seconds": seconds,
        **_cost(plan, None if plan.privacy is None else result.epsilon),
        **problem.facts,
        "curve": curve,
    }


def _point(problem: Problem, model: str, share: float, theta_P: Tensor) -> list[float]:
    """A point of a curve: how far, and the problem's two numbers for figures; six digits are enough for them."""
    return [float(f"{value:.6g}") for value in (share, *problem.progress(model, theta_P))]


def _cost(plan: Plan, proved: float | None) -> dict[str, float | int | None]:
    """What a run looked at, and what it spent."""
    drawn = sum(stage.batch * stage.count for stage in plan.method.stages(plan.schedule))
    first = plan.schedule.first_batch
    return {
        "epsilon_proved": proved,
        "noise_multiplier": plan.noise_multiplier,
        "passes": drawn / plan.n,
        "steps": plan.schedule.steps,
        "gradients": first + (drawn - first) * plan.method.gradients_per_example,
    }
