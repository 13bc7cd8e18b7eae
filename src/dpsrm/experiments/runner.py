"""Run trials: cached by what decides their outcome, resumable, parallel over cores."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import joblib
import torch
from torch import Tensor

from dpsrm.experiments.problems import Problem, load_problem, measures
from dpsrm.experiments.recipes import Recipe
from dpsrm.training import Plan, Progress, loss_for, run_trials, train

_POINTS = 20
"""Points of a trial's curve."""


@dataclass(frozen=True)
class Job:
    """Some trials of one recipe on one problem."""

    problem: str
    validation: bool
    recipe: Recipe
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Lab:
    """Where data is and results go."""

    data: Path
    results: Path

    def file(self, problem: str, recipe: Recipe) -> Path:
        """The file of a recipe's trials."""
        return self.results / problem / f"{recipe.key}.json"

    def read(self, problem: str, recipe: Recipe) -> list[dict[str, Any]]:
        """The trials done so far, in the order of their seeds."""
        path = self.file(problem, recipe)
        if not path.exists():
            return []
        trials: list[dict[str, Any]] = json.loads(path.read_text())["trials"]
        return trials

    def add(self, problem: str, recipe: Recipe, trials: Iterable[dict[str, Any]]) -> None:
        """Keep further trials; the file is replaced in one move."""
        known = {trial["seed"]: trial for trial in self.read(problem, recipe)}
        known.update({trial["seed"]: trial for trial in trials})
        body = {"recipe": asdict(recipe), "trials": [known[seed] for seed in sorted(known)]}
        path = self.file(problem, recipe)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(body, separators=(",", ":")))
        part.replace(path)


def missing(lab: Lab, problem: str, recipes: Sequence[Recipe], seeds: Sequence[int], *, validation: bool) -> list[Job]:
    """The jobs that are not in the results yet, a few trials each."""
    name = f"{problem}-validation" if validation else problem
    jobs = []
    for recipe in recipes:
        done = {trial["seed"] for trial in lab.read(name, recipe)}
        todo = [seed for seed in seeds if seed not in done]
        jobs += [Job(problem, validation, recipe, tuple(todo[i : i + 10])) for i in range(0, len(todo), 10)]
    return jobs


def run_jobs(lab: Lab, jobs: Sequence[Job], *, workers: int) -> Iterator[Job]:
    """Run jobs on `workers` processes, keeping each result as it comes; yields the jobs as they finish."""
    parallel = joblib.Parallel(n_jobs=workers, return_as="generator_unordered")
    for job, trials in parallel(joblib.delayed(_work)(job, lab.data) for job in jobs):
        lab.add(f"{job.problem}-validation" if job.validation else job.problem, job.recipe, trials)
        yield job


@lru_cache(maxsize=2)
def _problem(name: str, folder: Path, validation: bool) -> Problem:
    """A problem, read once per process."""
    problem = load_problem(name, folder)
    return problem.validation() if validation else problem


def _work(job: Job, folder: Path) -> tuple[Job, list[dict[str, Any]]]:
    """The trials of one job, on one thread."""
    torch.set_num_threads(1)
    problem = _problem(job.problem, folder, job.validation)
    if _compiled(job.recipe):
        return job, run_together(problem, job.recipe, job.seeds)
    return job, [run_alone(problem, job.recipe, seed) for seed in job.seeds]


def _compiled(recipe: Recipe) -> bool:
    """Whether the compiled trials can run it: no choices as it goes, constant steps."""
    decides = recipe.method in ("agd", "spider") or recipe.settings.get("relative") is not None
    return not decides and recipe.training.get("optimizer", "constant") == "constant"


def _start(problem: Problem) -> torch.nn.Linear:
    """Logistic regression at θ = 0."""
    module = torch.nn.Linear(problem.features, 1)
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    return module


def run_together(problem: Problem, recipe: Recipe, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Trials in compiled blocks; the processor time is shared equally among them."""
    settings = [recipe.build(seed) for seed in seeds]
    fixed = settings[0].method.batch_for(len(problem.train))
    steps = settings[0].training.schedule(len(problem.train), fixed=fixed).steps
    every = max(1, steps // _POINTS)
    start = time.process_time()
    found = run_trials(_start(problem), loss_for(2), problem.train, settings, snapshots=range(every, steps + 1, every))
    seconds = (time.process_time() - start) / len(seeds)
    trials = []
    for seed, result in zip(seeds, found, strict=True):
        curve = [_point(problem, t / result.plan.schedule.steps, theta) for t, theta in result.iterates.items()]
        proved = None if result.plan.privacy is None else result.epsilon
        cost = _cost(result.plan, proved)
        trials.append({"seed": seed, **measures(problem, result.theta), "seconds": seconds, **cost, "curve": curve})
    return trials


def run_alone(problem: Problem, recipe: Recipe, seed: int) -> dict[str, Any]:
    """One trial through `train`, ledger and all: final measures, cost, and its curve."""
    module = _start(problem)
    curve: list[list[float]] = []
    evaluating = 0.0

    def watch(progress: Progress) -> None:
        nonlocal evaluating
        if progress.step % max(1, progress.steps // _POINTS) == 0:
            begin = time.process_time()
            curve.append(_point(problem, progress.step / progress.steps, progress.theta))
            evaluating += time.process_time() - begin

    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = train(module, loss_for(2), problem.train, recipe.build(seed), out=Path(folder) / "run", watch=watch)
    seconds = time.process_time() - start - evaluating
    theta_P = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    cost = _cost(run.plan, None if run.guarantee is None else run.guarantee.epsilon)
    return {"seed": seed, **measures(problem, theta_P), "seconds": seconds, **cost, "curve": curve}


def _point(problem: Problem, share: float, theta_P: Tensor) -> list[float]:
    """A point of a curve: how far, objective, gradient norm; six digits are enough for a figure."""
    now = measures(problem, theta_P)
    return [float(f"{value:.6g}") for value in (share, now["train_objective"], now["gradient_norm"])]


def _cost(plan: Plan, proved: float | None) -> dict[str, float | int | None]:
    """What a run looked at, and what it spent."""
    drawn = sum(stage.batch * stage.count for stage in plan.method.stages(plan.schedule))
    first = plan.schedule.first_batch
    return {
        "epsilon_proved": proved,
        "noise_multiplier": plan.noise_multiplier,
        "passes": drawn / plan.n,
        "gradients": first + (drawn - first) * plan.method.gradients_per_example,
    }
