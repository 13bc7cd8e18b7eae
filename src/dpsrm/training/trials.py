"""Many research runs of a linear model (seeds × settings): planned once, each run in compiled blocks of steps.

Shapes: T steps, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsrm.core.book import MemoryBook
from dpsrm.core.errors import LedgerError, need
from dpsrm.core.events import Spending
from dpsrm.core.randomness import Streams
from dpsrm.data import Records, RecordSource, SparseRecords, as_records, csr_tensor
from dpsrm.gradients import LinearEngine, Objective, PerExampleLoss
from dpsrm.mechanisms import Airlock
from dpsrm.methods import RateSchedule, output_shares
from dpsrm.sampling import draw
from dpsrm.training.config import Settings
from dpsrm.training.plan import Plan, make_plan, noise_for
from dpsrm.training.prepare import resolve
from dpsrm.training.recipe import Recipe, read_recipe

_NUMBERS = 2**20
"""Noise held at once, in numbers: 8 MB; and at most `_STEPS` steps."""
_STEPS = 64
_SPARSE = 0.25
"""Dense records with fewer non-zeros than this share are read row by row without their zeros."""

Array = npt.NDArray[Any]


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
    loss: PerExampleLoss,
    data: Any,
    settings: Sequence[Settings],
    *,
    snapshots: Sequence[int] = (),
) -> list[TrialResult]:
    """Run every trial of `settings` from the module's parameters; the module is left as it is.

    Each trial is what `train` does with the same settings and the linear engine, to rounding: the same draws, noise and
    charges from the same streams, in the same order. Plans, step tables and ε are computed once for equal settings.

    Args:
        module: one nn.Linear, where every trial starts.
        loss: `binary_loss`, `multiclass_loss` or `squared_loss`.
        data: as in `train`; dense records that are mostly zero are compressed first.
        settings: one per trial, each with a seed; method, schedule, budget may differ.
        snapshots: steps t at which to keep θ^t (post-processing, free).

    Returns:
        The results in the order of `settings`.

    Guarantee: none: seeded runs are not private. But every release is charged through the airlock, with the budget
    checked by the plan's accountant, and what was charged is checked to be what the plan predicted.

    Edge cases: methods that decide as they go (agd, spider, srm with `relative`), theory mode, and optimizers other
    than the constant step are refused: use `train`. A trial that diverges has a θ that is not finite.

    >>> from dpsrm.gradients import binary_loss
    >>> from dpsrm.training import Training
    >>> data = torch.eye(4), torch.tensor([0, 1, 0, 1])
    >>> trials = [Settings(privacy=None, training=Training(batch=2, steps=3), seed=seed) for seed in range(2)]
    >>> [result.theta.shape for result in run_trials(nn.Linear(4, 1), binary_loss, data, trials)]
    [torch.Size([5]), torch.Size([5])]
    """
    bench = _Bench(Objective.of(module, loss), as_records(data))
    return [bench.run(one, snapshots) for one in settings]


class _Bench:
    """What all trials share: the records as the kernel reads them, plans, recipes, and ε already computed."""

    def __init__(self, objective: Objective, records: RecordSource) -> None:
        """Read all records once."""
        from dpsrm.gradients import linear_kernels

        self.kernels = linear_kernels
        self.objective = objective
        self.start_P = objective.layout.read(objective.module)
        self.n = len(records)
        self.engine = LinearEngine(objective)
        self.rows = self.engine.rows(*_all(records))
        self.plan = lru_cache(maxsize=None)(partial(make_plan, noise=lru_cache(maxsize=None)(noise_for)))
        self.recipe = lru_cache(maxsize=None)(read_recipe)
        self.epsilon_of = lru_cache(maxsize=None)(lambda plan, spending: plan.epsilon_of(spending))

    def run(self, settings: Settings, snapshots: Sequence[int]) -> TrialResult:
        """One trial."""
        _check(settings)
        streams = Streams.choose(settings.seed)
        method, schedule, _ = resolve(settings, self.objective, self.start_P, streams=streams, n=self.n)
        plan = self.plan(method, schedule, n=self.n, privacy=settings.privacy)
        name = settings.training.output or plan.method.output
        shares = output_shares(name, steps=schedule.steps, stream=streams.output)
        trial = _Trial(self, plan, settings, streams, shares)
        kept_P, iterates = trial.walk([t for t in snapshots if 0 <= t <= schedule.steps])
        if trial.book.spending != plan.spending:
            raise LedgerError("the charges made differ from those the plan predicted: this is a defect in dpsrm")
        theta_P = torch.from_numpy(kept_P).to(self.start_P.dtype)
        spending = trial.book.spending
        return TrialResult(settings=settings, plan=plan, theta=theta_P, spending=spending, iterates=iterates)


class _Trial:
    """One trial under way."""

    def __init__(self, bench: _Bench, plan: Plan, settings: Settings, streams: Streams, shares_T: Array) -> None:
        """Tables of its steps, and an airlock of its own."""
        self.bench, self.plan, self.streams = bench, plan, streams
        self.recipe: Recipe = bench.recipe(plan.method, plan.schedule)
        self.book = MemoryBook(plan.header(private_randomness=streams.private))
        self.airlock = Airlock(
            self.book,
            planned=plan.foreseen,
            epsilon_of=lambda spending: float(bench.epsilon_of(plan, spending)),
            noise=streams.noise,
        )
        self.strength = settings.training.regulariser
        self.first_share = float(shares_T[0])
        rates_T = _rates(settings, plan.schedule.steps)
        self.moves = np.column_stack([self.recipe.weights, rates_T, shares_T[1:]])

    def walk(self, snapshots: Sequence[int]) -> tuple[Array, dict[int, Tensor]]:
        """All steps: the output θ, and the iterates asked for."""
        start_P = self.bench.start_P.numpy()
        state = start_P.copy(), start_P.copy(), np.zeros(len(start_P)), self.first_share * start_P.astype(np.float64)
        iterates = {0: torch.from_numpy(start_P.copy())} if 0 in snapshots else {}
        for first, last in self._blocks(len(start_P), snapshots):
            self._steps(slice(first, last), state)
            if last in snapshots:
                iterates[last] = torch.from_numpy(state[0].copy())
        return state[3], iterates

    def _blocks(self, size: int, snapshots: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Steps in a row over batches of one size, few enough for memory, ending where a snapshot is asked for."""
        longest = max(1, min(_STEPS, _NUMBERS // size))
        batches, steps = self.recipe.counts[:, 2], self.plan.schedule.steps
        changes = {int(t) + 1 for t in np.flatnonzero(np.diff(batches))}
        ends = sorted({0, steps, *snapshots} | changes)
        for first, last in pairwise(ends):
            for start in range(first, last, longest):
                yield start, min(start + longest, last)

    def _steps(self, cut: slice, state: tuple[Array, Array, Array, Array]) -> None:
        """Pay for some steps, draw their records and noise, and take them."""
        recipe, size = self.recipe, len(state[0])
        sampling = self.plan.sampling(int(recipe.counts[cut.start, 2]))
        batches: list[Array] = []

        made = self.airlock.released

        def begin(t: int) -> None:
            self.streams.seek(made + t)
            batches.append(draw(sampling, self.streams.sampling))

        noise_TP = self.airlock.noise_block(
            recipe.bounds[cut].tolist(),
            size,
            sampling=sampling,
            noise_multiplier=self.plan.noise_multiplier,
            begin=begin,
        )
        starts = np.concatenate([[0], np.cumsum([len(batch) for batch in batches])]).astype(np.int64)
        tables = recipe.parts[cut], recipe.coefficients[cut], recipe.points[cut], recipe.counts[cut], self.moves[cut]
        drawn = starts, np.concatenate(batches), noise_TP
        bench, extra = self.bench, (self.bench.engine.margin, self.strength)
        bench.kernels.walk_block(bench.rows, bench.engine.model, state, tables, drawn, extra)


def _rates(settings: Settings, steps: int) -> Array:
    """The learning rate of each step."""
    training = settings.training
    if training.decay == "constant" and training.warmup == 0:
        return np.full(steps, training.learning_rate)
    schedule: Callable[[int], float] = RateSchedule(decay=training.decay, warmup=training.warmup, steps=steps)
    return training.learning_rate * np.array([schedule(time) for time in range(steps)])


def _check(settings: Settings) -> None:
    """Refuse what the compiled loop does not do."""
    need(settings.seed is not None, "trials are research and need a seed", remedy="use train for a private run")
    need(settings.theory is None, "trials do not run theory mode", remedy="use train")
    optimizer = settings.training.optimizer
    need(optimizer == "constant", "trials take constant (scheduled) steps", optimizer=optimizer, remedy="use train")


def _all(records: RecordSource) -> tuple[Tensor, Tensor]:
    """All inputs and targets, without their zeros if there are many."""
    if isinstance(records, Records) and records.inputs.ndim == 2:
        filled = float(torch.count_nonzero(records.inputs)) / max(records.inputs.numel(), 1)
        if filled >= _SPARSE:
            return records.inputs, records.targets
        records = SparseRecords.of(records)
    if isinstance(records, SparseRecords):
        return csr_tensor(records.matrix), records.targets
    return records.take(np.arange(len(records)))
