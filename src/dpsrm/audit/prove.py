"""Prove, by running the production step on neighbours with the same randomness, that what is claimed holds."""

from __future__ import annotations

import copy
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dpsrm.audit.attempt import Attempt, Told
from dpsrm.audit.layers import mixing_layer
from dpsrm.audit.rehearsal import RehearsedCase
from dpsrm.core.errors import need
from dpsrm.core.events import Adjacency
from dpsrm.core.isolation import Isolation
from dpsrm.data import as_records
from dpsrm.gradients import ModelLosses, Objective, PerExampleLoss, Way, as_losses
from dpsrm.training import Settings


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was tried and what held.

    Attributes:
        findings: what does not hold, in words; empty if all held.
        tried: how many neighbours of each kind were run.
        releases: how many releases were compared.
        moved: the largest movement of a sum, in claimed sensitivities.
    """

    findings: tuple[str, ...]
    tried: dict[str, int]
    releases: int
    moved: float
    adjacency: Adjacency
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return not self.findings

    def __str__(self) -> str:
        """One line: what was tried, and what held."""
        what = f"{sum(self.tried.values())} neighbours ({self.adjacency.value}), {self.releases} releases"
        if self.findings:
            return f"NOT PROVED: {self.findings[0]} [tried {what}; {self.seconds:.1f} s]"
        return (
            f"held: sums moved by at most {self.moved:.4f} of the claimed sensitivity, noise and draws as charged, "
            f"nothing else published changed [tried {what}; {self.seconds:.1f} s]"
        )


def prove(
    model: nn.Module,
    losses: PerExampleLoss | ModelLosses,
    data: Any,
    settings: Settings,
    *,
    steps: int = 4,
    rounds: int = 2,
    progress: Told | None = None,
) -> Proof:
    """Run the production step on neighbouring datasets and compare what passes the airlock.

    Args:
        model, losses, data, settings: as `train` takes them. The model is not changed. The settings' seed is replaced
            by research seeds: every run's ledger says that it is not private, and all of them are thrown away.
        steps: updates in each run; the noise is that of the whole plan.
        rounds: how many records are exchanged, each in runs with a seed of their own.
        progress: told how many runs are done, of how many.

    Returns:
        The `Proof`; `str` of it is one line.

    Guarantee: none by itself: it tries neighbours, and what it has not tried may fail.
    """
    need(settings.privacy is not None, "there is nothing to prove without privacy", remedy="give settings.privacy")
    assert settings.privacy is not None
    start = time.monotonic()
    mixed = tuple(_mixing(model, losses, data, settings))
    if mixed:
        adjacency, seconds = settings.privacy.adjacency, time.monotonic() - start
        return Proof(findings=mixed, tried={}, releases=0, moved=0.0, adjacency=adjacency, seconds=seconds)
    with tempfile.TemporaryDirectory() as made, quiet():
        attempt = Attempt(_short(model, losses, data, settings, steps), Path(made), progress)
        attempt.run(rounds)
    return Proof(
        findings=tuple(attempt.findings),
        tried=dict(attempt.tried),
        releases=attempt.releases,
        moved=attempt.moved,
        adjacency=attempt.case.adjacency,
        seconds=time.monotonic() - start,
    )


def _mixing(model: nn.Module, losses: PerExampleLoss | ModelLosses, data: Any, settings: Settings) -> Iterator[str]:
    """Under isolation "checked": which layer mixes examples, on a batch of the records."""
    if settings.privacy is None or settings.privacy.isolation is not Isolation.CHECKED:
        return
    records = as_records(data)
    objective = Objective.of(copy.deepcopy(model), as_losses(losses), way=Way.BATCH)
    name = mixing_layer(objective, records.take(np.arange(min(16, len(records)))))
    if name is not None:
        yield (
            f"{name} treats the examples of a batch together: exchanging one example changes what it gives for "
            'others, so no clip bounds what a record can do; replace that layer, or use isolation = "alone"'
        )


def _short(
    model: nn.Module, losses: PerExampleLoss | ModelLosses, data: Any, settings: Settings, steps: int
) -> RehearsedCase:
    """The case with few steps, the noise of the whole plan, and a budget with no room for more."""
    quick = replace(settings.performance, checkpoint_seconds=0, checkpoint_steps=0)
    whole = RehearsedCase.of(model, losses, data, replace(settings, seed=0, budget=None, performance=quick))
    plan, privacy = whole.plan, settings.privacy
    assert privacy is not None
    training = replace(whole.settings.training, steps=min(steps, plan.schedule.steps), epochs=None)
    if plan.method.adaptive:
        return RehearsedCase.of(model, losses, data, replace(whole.settings, method=plan.method, training=training))
    fixed = replace(privacy, noise_multiplier=plan.noise_multiplier)
    short = RehearsedCase.of(model, losses, data, replace(whole.settings, training=training, privacy=fixed))
    assert short.plan.guarantee is not None
    spent = replace(fixed, epsilon=short.plan.guarantee.epsilon * (1 + 1e-12))
    return RehearsedCase.of(model, losses, data, replace(short.settings, privacy=spent))


@contextmanager
def quiet() -> Iterator[None]:
    """No advice to the operator about runs that are thrown away."""
    log = logging.getLogger("dpsrm")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
