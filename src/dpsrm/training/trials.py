"""Many research runs (seeds × settings) through the ordinary loop, charged in memory; equal plans are made once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from dpsrm.core.errors import Diverged, need
from dpsrm.core.events import Spending
from dpsrm.core.secret import Streams
from dpsrm.data import as_records
from dpsrm.gradients import ModelLosses, PerExampleLoss
from dpsrm.methods import Method, Schedule
from dpsrm.runs.book import MemoryBook
from dpsrm.training.config import Settings
from dpsrm.training.plan import Plan, make_plan, noise_for
from dpsrm.training.prepare import Prepared, prepare
from dpsrm.training.settings import Privacy
from dpsrm.training.step import Step


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One trial: its settings and plan, the θ to hand out, what was charged, and θ^t at the steps asked for."""

    settings: Settings
    plan: Plan
    theta: Tensor
    spending: Spending
    iterates: dict[int, Tensor]

    @property
    def epsilon(self) -> float:
        """ε of what was charged; infinite without privacy."""
        return self.plan.epsilon_of(self.spending)


def run_trials(
    module: nn.Module,
    loss: PerExampleLoss | ModelLosses,
    data: Any,
    settings: Sequence[Settings],
    *,
    snapshots: Sequence[int] = (),
    unit: Any = None,
) -> list[TrialResult]:
    """Run every trial of `settings` from the module's parameters; the module is left as it is.

    Each trial is the loop that `train` runs, with the same draws, noise, charges and θ, bit for bit; only its charges
    are kept in memory and no folder is written. Noise calibrations and plans are made once for equal settings, for as
    long as the process lives.

    Args:
        module, loss, data: as in `train`.
        settings: one per trial, each with a seed; everything else may differ.
        unit: as in `train`.
        snapshots: steps t at which to keep θ^t (post-processing, free).

    Returns:
        The results in the order of `settings`.

    Guarantee: none: seeded runs are not private. But every release is charged through the airlock, with the budget
    checked by the plan's accountant, and what was charged is checked to be what the plan predicted.

    Edge cases: a trial that diverges has a θ of NaN and what was charged until then; the others go on. A shared budget
    (`settings.budget`) is refused: nothing of a trial is kept that could say what it spent.

    >>> from dpsrm.gradients import binary_loss
    >>> from dpsrm.training import Training
    >>> data = torch.eye(4), torch.tensor([0, 1, 0, 1])
    >>> trials = [Settings(privacy=None, training=Training(batch=2, steps=3), seed=seed) for seed in range(2)]
    >>> [result.theta.shape for result in run_trials(nn.Linear(4, 1), binary_loss, data, trials)]
    [torch.Size([5]), torch.Size([5])]
    """
    records, results = as_records(data), []
    for one in settings:
        need(one.seed is not None, "trials are research and need a seed", remedy="use train for a private run")
        need(one.budget is None, "trials do not draw on a shared budget", remedy="use train")
        prepared = prepare(module, loss, records, one, Streams.choose(one.seed), planner=_plan, unit=unit)
        results.append(_run(prepared, frozenset(snapshots)))
    return results


@lru_cache(maxsize=256)
def _noise(method: Method, schedule: Schedule, *, n: int, privacy: Privacy) -> float:
    """`noise_for`, remembered: trials that differ in their seeds, or in rounds drawn by seed, share a calibration."""
    return noise_for(method, schedule, n=n, privacy=privacy)


@lru_cache(maxsize=256)
def _plan(method: Method, schedule: Schedule, *, n: int, privacy: Privacy | None) -> Plan:
    """`make_plan`, remembered: a plan is frozen and depends on nothing else."""
    return make_plan(method, schedule, n=n, privacy=privacy, noise=_noise)


def forget_plans() -> None:
    """Make every plan and calibration anew from here on: for timing, which must count them."""
    _noise.cache_clear()
    _plan.cache_clear()


def _run(prepared: Prepared, snapshots: Collection[int]) -> TrialResult:
    """One trial."""
    plan, walk = prepared.plan, prepared.walk
    book = MemoryBook(plan.header(private_randomness=prepared.streams.private))
    iterates = {0: walk.theta.clone()} if 0 in snapshots else {}
    step = Step(prepared, book)
    try:
        with step.running():
            while not step.done:
                now = step()
                if now is not None and now.step in snapshots:
                    iterates[now.step] = now.theta.clone()
        theta_P = step.result()
    except Diverged:
        theta_P = torch.full_like(walk.theta, torch.nan)
    return TrialResult(settings=prepared.settings, plan=plan, theta=theta_P, spending=book.spending, iterates=iterates)
