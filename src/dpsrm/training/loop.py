"""The one loop: ask, draw, clip and sum, release, tell; then check that the ledger says what the plan predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dpsrm.core.errors import LedgerError
from dpsrm.core.ledger import Ledger
from dpsrm.core.randomness import Streams
from dpsrm.core.secret import Diagnostics
from dpsrm.data import RecordSource
from dpsrm.gradients import Engine
from dpsrm.mechanisms import Airlock
from dpsrm.methods import Output, Walk
from dpsrm.sampling import draw
from dpsrm.training.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a watcher sees after each step; `private` is for the operator's eyes only."""

    step: int
    steps: int
    direction_norm: float
    epsilon: float
    private: Diagnostics


Watcher = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The pieces one loop runs on."""

    walk: Walk
    engine: Engine
    records: RecordSource
    streams: Streams
    ledger: Ledger
    output: Output


def run_loop(plan: Plan, parts: Parts, *, watch: Watcher) -> tuple[Tensor, int]:
    """Run all of the plan's steps; returns the θ to hand out and how many releases were made.

    Guarantee: every release passed the airlock; at the end, what was charged is what the plan predicted.
    """
    airlock = Airlock(parts.ledger, planned=plan.spending, epsilon_of=plan.epsilon_of, noise=parts.streams.noise)
    walk = parts.walk
    parts.output.observe(0, walk.theta)
    for step in range(1, plan.schedule.steps + 1):
        ask = walk.ask()
        sampling = plan.sampling(ask.batch)
        inputs, targets = parts.records.take(draw(sampling, parts.streams.sampling))
        total = parts.engine(ask.query, inputs, targets)
        walk.tell(airlock.release(total, sampling=sampling, noise_multiplier=plan.noise_multiplier))
        parts.output.observe(step, walk.theta)
        watch(
            Progress(
                step=step,
                steps=plan.schedule.steps,
                direction_norm=float(walk.direction.norm()),
                epsilon=airlock.epsilon,
                private=total.diagnostics,
            )
        )
    if parts.ledger.spending != plan.spending:
        raise LedgerError("the ledger written differs from the ledger the plan predicted: this is a defect in dpsrm")
    return parts.output.result().to(walk.theta.dtype), airlock.released
