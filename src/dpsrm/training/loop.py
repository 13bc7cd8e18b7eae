"""The one loop: ask, draw, clip and sum, release, tell; then check that the ledger says what the plan predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpsrm.core.errors import BudgetExceeded, Diverged, LedgerError
from dpsrm.core.events import Spending
from dpsrm.core.randomness import Streams
from dpsrm.core.secret import Diagnostics
from dpsrm.data import RecordSource
from dpsrm.gradients import Engine, Objective, engine
from dpsrm.mechanisms import Airlock, zcdp_multiplier
from dpsrm.methods import Ask, Choice, Output, Walk
from dpsrm.runs.book import Book
from dpsrm.sampling import draw
from dpsrm.training.plan import Plan
from dpsrm.training.prepare import Prepared
from dpsrm.training.summing import Summer, summer


@dataclass(kw_only=True)
class Progress:
    """What a watcher sees after each step; `private` is for the operator's eyes only.

    `spending` is what is charged so far; `epsilon` is what it costs, computed when asked.
    """

    step: int
    steps: int
    theta: Tensor
    direction: Tensor
    spending: Spending
    private: Diagnostics
    spent: Callable[[], float] = field(repr=False, compare=False)

    @property
    def direction_norm(self) -> float:
        """‖v‖."""
        return float(torch.linalg.vector_norm(self.direction))

    @property
    def charged(self) -> int:
        """How many releases are charged."""
        return self.spending.releases

    @property
    def epsilon(self) -> float:
        """ε of what was charged; to be asked for during the step."""
        return self.spent()


Watcher = Callable[[Progress], None]
Keeper = Callable[[Callable[[], Spending]], None]
"""Called after every release with a function that tells what was released so far; writes a checkpoint when due."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The pieces one loop runs on."""

    walk: Walk
    objective: Objective
    engine: Engine
    records: RecordSource
    streams: Streams
    ledger: Book
    output: Output
    threads: int
    keep: Keeper = lambda _: None
    made: Spending | None = None
    """Releases made before this loop began, when a run is resumed; `walk` and `output` stand where they left off."""

    @classmethod
    def of(
        cls,
        prepared: Prepared,
        ledger: Book,
        *,
        threads: int,
        keep: Keeper = lambda _: None,
        made: Spending | None = None,
    ) -> Parts:
        """The pieces of a prepared run: the same for a run in its folder and for a research trial in memory."""
        performance = prepared.settings.performance
        return cls(
            walk=prepared.walk,
            objective=prepared.objective,
            engine=engine(performance.engine, prepared.objective, max_physical_batch=performance.max_physical_batch),
            records=prepared.records,
            streams=prepared.streams,
            ledger=ledger,
            output=prepared.output,
            threads=threads,
            keep=keep,
            made=made,
        )


@dataclass(kw_only=True)
class Answer:
    """A released value, the public standard deviation of its noise, and what the operator may know about it."""

    value: Tensor
    std: float
    private: Diagnostics | None


def run_loop(plan: Plan, parts: Parts, *, watch: Watcher) -> tuple[Tensor, int]:
    """Run all of the plan's steps; returns the θ to hand out and how many releases were made.

    Guarantee: every release passed the airlock; at the end, what was charged is what the plan predicted. An adaptive
    method, whose releases no plan predicts, ends before the first release that the budget does not allow.
    """
    with _threads(parts.threads), torch.random.fork_rng(devices=[]):
        return _run(plan, parts, watch)


def _run(plan: Plan, parts: Parts, watch: Watcher) -> tuple[Tensor, int]:
    """The loop itself."""
    noise = parts.streams.noise
    airlock = Airlock(parts.ledger, planned=plan.foreseen, epsilon_of=plan.epsilon_of, noise=noise, made=parts.made)
    sums = summer(parts.engine, parts.objective, parts.records, parts.streams)
    walk, steps, private = parts.walk, plan.schedule.steps, Diagnostics()
    if airlock.released == 0:
        parts.output.observe(0, walk.theta)
    while walk.time < steps:
        before = walk.time
        try:
            answer = _answer(walk.ask(), plan, parts, sums, airlock)
        except BudgetExceeded:
            if plan.method.adaptive:
                break
            raise
        walk.tell(answer.value, std=answer.std)
        private = answer.private or private
        if walk.time > before:
            _need_finite(walk)
            parts.output.observe(walk.time, walk.theta)
            watch(
                Progress(
                    step=walk.time,
                    steps=steps,
                    theta=walk.theta,
                    direction=walk.direction,
                    spending=parts.ledger.spending,
                    private=private,
                    spent=lambda: airlock.epsilon,
                )
            )
        parts.keep(lambda: airlock.made)
    if not plan.method.adaptive and parts.ledger.spending != plan.spending:
        raise LedgerError("the ledger written differs from the ledger the plan predicted: this is a defect in dpsrm")
    return parts.output.result().to(walk.theta.dtype), airlock.released


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Use `count` torch threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _need_finite(walk: Walk) -> None:
    """Refuse to go on from a θ that is no longer a number. Post-processing: it costs no privacy."""
    if not math.isfinite(float(torch.dot(walk.theta, walk.theta))):
        raise Diverged(
            f"training diverged: after step {walk.time} the parameters are no longer finite; what was released stays "
            "charged; start again with a smaller learning rate or smaller clips"
        )


def _answer(ask: Ask | Choice, plan: Plan, parts: Parts, sums: Summer, airlock: Airlock) -> Answer:
    """Draw the records, compute the secret, and let its noisy form out; all randomness is that of this release."""
    sampling, release = plan.sampling(ask.batch), airlock.released
    parts.streams.seek(release)
    indices = draw(sampling, parts.streams.sampling)
    if isinstance(ask, Choice):
        scores = sums.scores(ask, indices, release=release)
        index = airlock.select(scores, sampling=sampling, rho=ask.rho, selection=ask.selection)
        return Answer(value=torch.tensor(index), std=0.0, private=None)
    if isinstance(ask, Ask):
        total = sums.total(ask.query, indices, release=release)
        if ask.rho is None:
            s = plan.noise_multiplier
            value = airlock.release(total, sampling=sampling, noise_multiplier=s)
        else:
            s = zcdp_multiplier(ask.rho)
            value = airlock.release_zcdp(total, sampling=sampling, rho=ask.rho)
        std = airlock.noise_std(total, sampling=sampling, noise_multiplier=s)
        return Answer(value=value, std=std, private=total.diagnostics)
    raise AssertionError(ask)
