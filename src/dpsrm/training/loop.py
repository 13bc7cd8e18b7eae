"""The one loop: ask, draw, clip and sum, release, tell; then check that the ledger says what the plan predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpsrm.core.errors import BudgetExceeded, LedgerError
from dpsrm.core.ledger import Ledger
from dpsrm.core.randomness import Streams
from dpsrm.core.secret import Diagnostics
from dpsrm.data import RecordSource
from dpsrm.gradients import Engine, Objective, clipped_losses
from dpsrm.mechanisms import Airlock, zcdp_multiplier
from dpsrm.methods import Ask, Choice, Output, Walk
from dpsrm.sampling import draw
from dpsrm.training.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a watcher sees after each step; `private` is for the operator's eyes only.

    `charged` counts the releases charged so far; `epsilon` is what they cost, computed when asked.
    """

    step: int
    steps: int
    direction_norm: float
    charged: int
    private: Diagnostics
    spent: Callable[[], float] = field(repr=False, compare=False)

    @property
    def epsilon(self) -> float:
        """ε of what was charged; to be asked for during the step."""
        return self.spent()


Watcher = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The pieces one loop runs on."""

    walk: Walk
    objective: Objective
    engine: Engine
    records: RecordSource
    streams: Streams
    ledger: Ledger
    output: Output


@dataclass(frozen=True, kw_only=True)
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
    airlock = Airlock(parts.ledger, planned=plan.foreseen, epsilon_of=plan.epsilon_of, noise=parts.streams.noise)
    walk, steps, private = parts.walk, plan.schedule.steps, Diagnostics()
    parts.output.observe(0, walk.theta)
    while walk.time < steps:
        before = walk.time
        try:
            answer = _answer(walk.ask(), plan, parts, airlock)
        except BudgetExceeded:
            if plan.method.adaptive:
                break
            raise
        walk.tell(answer.value, std=answer.std)
        private = answer.private or private
        if walk.time == before:
            continue
        parts.output.observe(walk.time, walk.theta)
        norm = float(torch.linalg.vector_norm(walk.direction))
        facts = Progress(
            step=walk.time,
            steps=steps,
            direction_norm=norm,
            charged=parts.ledger.spending.releases,
            private=private,
            spent=lambda: airlock.epsilon,
        )
        watch(facts)
    if not plan.method.adaptive and parts.ledger.spending != plan.spending:
        raise LedgerError("the ledger written differs from the ledger the plan predicted: this is a defect in dpsrm")
    return parts.output.result().to(walk.theta.dtype), airlock.released


def _answer(ask: Ask | Choice, plan: Plan, parts: Parts, airlock: Airlock) -> Answer:
    """Draw the records, compute the secret, and let its noisy form out."""
    sampling = plan.sampling(ask.batch)
    inputs, targets = parts.records.take(draw(sampling, parts.streams.sampling))
    if isinstance(ask, Choice):
        scores = clipped_losses(parts.objective, ask.points, inputs, targets, clip=ask.clip, offsets=ask.offsets)
        index = airlock.select(scores, sampling=sampling, rho=ask.rho, selection=ask.selection)
        return Answer(value=torch.tensor(index), std=0.0, private=None)
    if isinstance(ask, Ask):
        total = parts.engine(ask.query, inputs, targets)
        if ask.rho is None:
            s = plan.noise_multiplier
            value = airlock.release(total, sampling=sampling, noise_multiplier=s)
        else:
            s = zcdp_multiplier(ask.rho)
            value = airlock.release_zcdp(total, sampling=sampling, rho=ask.rho)
        std = airlock.noise_std(total, sampling=sampling, noise_multiplier=s)
        return Answer(value=value, std=std, private=total.diagnostics)
    raise AssertionError(ask)
