"""White box: one research run through the production step, and every canary's scores from what was released.

Shapes: m canaries, T releases.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import nn

from dpsrm.audit.canaries import CanaryData, CanaryModel, canary_data, canary_losses
from dpsrm.audit.rehearsal import Attendance
from dpsrm.core.events import Adjacency, Scheme
from dpsrm.core.secret import Streams
from dpsrm.data import as_records
from dpsrm.gradients import PerExampleLoss
from dpsrm.mechanisms.watched import Passage, WatchedAirlock
from dpsrm.methods import Method
from dpsrm.runs.book import MemoryBook
from dpsrm.training import Performance, Plan, Privacy, Settings, Step, Training
from dpsrm.training.prepare import prepare

Array = npt.NDArray[np.float64]
_LARGEST = 30_000
"""The largest batch: more could not be added up within the margin of the engine's rounding."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is audited: a method at a claimed ε, with which sampling, over how many canaries and releases.

    `inner`: a model beside the canaries, its loss, and the inputs and targets of the other records.
    """

    method: Method
    epsilon: float
    delta: float = 1e-5
    sampling: Scheme = Scheme.POISSON
    canaries: int = 200_000
    steps: int = 8
    seed: int = 0
    inner: tuple[nn.Module, PerExampleLoss, object, object] | None = None

    @property
    def others(self) -> int:
        """Records that are no canaries: they push the clock, so many that noise never pushes it back."""
        return max(4000, self.canaries // 20)

    @property
    def limited(self) -> Target:
        """The same with no more canaries than a batch can have, for methods that draw all records."""
        full = (self.method.batch_for(10**6) or 0) > 1
        return replace(self, canaries=min(self.canaries, _LARGEST - 6000)) if full else self

    def settings(self, n: int) -> Settings:
        """The run's settings: a plan that spends ε in `steps` releases."""
        fixed = self.method.batch_for(n) is not None
        return Settings(
            privacy=Privacy(epsilon=self.epsilon, delta=self.delta, sampling=self.sampling),
            method=self.method,
            training=Training(batch=None if fixed else min(n // 2, _LARGEST), steps=self.steps, learning_rate=0.1),
            performance=Performance(checkpoint_seconds=0, threads=1),
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One audited run: each canary's released numbers in units of the claimed noise, and who was drawn.

    Attributes:
        values_Tm: b·release/std in the canary's own coordinate.
        signal_T: what a canary that is drawn is claimed to add at most, in the same units.
        drawn_Tm: who was drawn.
        rate_T: the claimed share of records drawn.
    """

    plan: Plan
    signs_m: npt.NDArray[np.int64]
    values_Tm: Array
    signal_T: Array
    drawn_Tm: npt.NDArray[np.bool_]
    rate_T: Array
    seconds: float

    def scores(self) -> Array:
        """Each canary's log-likelihood ratio of + against −, whoever was drawn being unknown: the best attack there is.

        A drawn canary adds ±signal to standard normal noise; one that is not drawn adds nothing.
        """
        total = np.zeros(len(self.signs_m))
        for x_m, a, q in zip(self.values_Tm, self.signal_T, self.rate_T, strict=True):
            plus, minus = (np.logaddexp(np.log1p(-q) if q < 1 else -np.inf, np.log(q) + w) for w in _both(x_m, a))
            total += plus - minus
        return total


def _both(x_m: Array, a: float) -> tuple[Array, Array]:
    """log of the density of x around ±a over that around 0."""
    return a * x_m - a * a / 2, -a * x_m - a * a / 2


def observe(target: Target, *, progress: Callable[[int, int], object] | None = None) -> Observed:
    """Run `target` once, with a research seed, and keep what an attacker who sees every release sees."""
    start, target = time.monotonic(), target.limited
    inner, loss, inputs, targets = target.inner if target.inner is not None else (None, None, None, None)
    data = canary_data(target.canaries, target.others, seed=target.seed, inputs=inputs, targets=targets)  # type: ignore[arg-type]
    records = as_records(data.records)
    settings = target.settings(len(records))
    module = CanaryModel(target.canaries, inner)
    prepared = prepare(module, canary_losses(loss), records, settings, Streams.seeded(target.seed))
    step = Step(prepared, MemoryBook(prepared.plan.header(private_randomness=False)))
    door, there = WatchedAirlock(step.airlock), Attendance(step.sums)
    step.airlock, step.sums = door, there
    with step.running():
        while not step.done:
            step()
            if progress is not None:
                progress(len(door.passages), prepared.plan.spending.releases)
    begin = _first_coordinate(module)
    sums = [(p, a) for p, a in zip(door.passages, there.seen, strict=False) if not p.choice]
    return Observed(
        plan=prepared.plan,
        signs_m=data.signs_m,
        values_Tm=np.stack([_values(p, begin, data) for p, _ in sums]),
        signal_T=np.array([_signal(p, prepared.plan.spending.adjacency) for p, _ in sums]),
        drawn_Tm=np.stack([_drawn(a.indices, data.canaries) for _, a in sums]),
        rate_T=np.array([p.sampling.rate for p, _ in sums]),
        seconds=time.monotonic() - start,
    )


def _first_coordinate(module: CanaryModel) -> int:
    """Where the canaries' coordinates begin in the flat vector."""
    place = 0
    for name, parameter in module.named_parameters():
        if name == "own.weight":
            return place
        place += parameter.numel() if parameter.requires_grad else 0
    raise AssertionError


def _values(passage: Passage, begin: int, data: CanaryData) -> Array:
    """The released numbers in the canaries' coordinates, over the claimed noise."""
    mine = passage.released[begin : begin + data.canaries].double().numpy()
    found: Array = mine * (passage.sampling.batch / passage.std)
    return found


def _signal(passage: Passage, adjacency: Adjacency) -> float:
    """What a record is claimed to add at most, over the noise."""
    return passage.claimed / (2 if adjacency is Adjacency.REPLACE_ONE else 1) / passage.std


def _drawn(indices: npt.NDArray[np.int64], canaries: int) -> npt.NDArray[np.bool_]:
    """Which canaries were drawn."""
    found = np.zeros(canaries, dtype=bool)
    found[indices[indices < canaries]] = True
    return found
