"""From settings, module and data to everything a loop needs; nothing is written and nothing released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.core.events import event_to_json
from dpsrm.core.isolation import Isolation
from dpsrm.core.randomness import Streams
from dpsrm.data import RecordSource, as_records
from dpsrm.gradients import Objective, PerExampleLoss, Way
from dpsrm.methods import (
    Method,
    NonconvexPenalty,
    Output,
    RateSchedule,
    Schedule,
    Scheduled,
    Stepper,
    Walk,
    make_output,
    penalised,
)
from dpsrm.training.config import Settings, plain, settings_to_dict
from dpsrm.training.plan import Plan, make_plan
from dpsrm.training.settings import OPTIMIZERS, Privacy
from dpsrm.training.targets import need_isolated, need_targets


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run that could begin."""

    settings: Settings
    records: RecordSource
    objective: Objective
    streams: Streams
    plan: Plan
    walk: Walk
    output: Output

    def facts(self) -> dict[str, Any]:
        """Settings and plan as JSON, to be compared when the run is resumed."""
        plan = self.plan
        return {
            "settings": settings_to_dict(self.settings),
            "plan": {
                "n": plan.n,
                "schedule": asdict(plan.schedule),
                "method": plain(plan.method),
                "noise_multiplier": plan.noise_multiplier,
                "spending": [[event_to_json(charge.event), charge.count] for charge in plan.spending.charges],
            },
        }


def prepare(
    module: nn.Module,
    loss: PerExampleLoss,
    data: Any,
    settings: Settings,
    streams: Streams,
    *,
    planner: Callable[..., Plan] = make_plan,
) -> Prepared:
    """Check everything that can be checked, calibrate the noise, and predict the ledger (by `planner`)."""
    records, objective = as_records(data), Objective.of(module, loss, way=_way(settings))
    need_targets(objective, records)
    need_isolated(objective, records, performance=settings.performance)
    start_P = objective.layout.read(module)
    method, schedule, stepper = resolve(settings, objective, start_P, streams=streams, n=len(records))
    plan = planner(method, schedule, n=len(records), privacy=_promise(settings, schedule, n=len(records)))
    output = _output(settings, plan, streams)
    walk = plan.method.begin(start_P, schedule=schedule, stepper=stepper)
    return Prepared(
        settings=settings,
        records=records,
        objective=objective,
        streams=streams,
        plan=plan,
        walk=walk,
        output=output,
    )


def _way(settings: Settings) -> Way:
    """How module and loss are run on a batch."""
    isolation = Isolation.ALONE if settings.privacy is None else settings.privacy.isolation
    if isolation is Isolation.CHECKED:
        return Way.BATCH
    if isolation is Isolation.ALONE:
        return Way.LOOP if settings.performance.engine == "loop" else Way.VMAP
    raise AssertionError(isolation)


def resolve(
    settings: Settings, objective: Objective, start_P: Tensor, *, streams: Streams, n: int
) -> tuple[Method, Schedule, Stepper]:
    """The method, schedule and step rule that the settings stand for."""
    training, method = settings.training, settings.method
    schedule = training.schedule(n, fixed=method.batch_for(n))
    drawn = method.rounds(schedule.steps, streams.output)
    if drawn != schedule.steps:
        schedule = replace(schedule, steps=drawn, most=schedule.steps)
    stepper = OPTIMIZERS[training.optimizer](training.learning_rate, objective.layout, start_P)
    if training.decay != "constant" or training.warmup > 0:
        need(settings.theory is None, "theory mode has its own step sizes", decay=training.decay)
        rate = RateSchedule(decay=training.decay, warmup=training.warmup, steps=schedule.steps)
        stepper = Scheduled(stepper, rate)
    if settings.theory is not None:
        dimension, promise = objective.layout.size, settings.privacy
        budget = None if promise is None else (promise.epsilon, promise.delta)
        method, schedule, stepper = settings.theory.resolve(training.schedule(n), budget, n=n, dimension=dimension)
    if training.regulariser > 0:
        stepper = penalised(stepper, NonconvexPenalty(training.regulariser), like_P=start_P)
    return method, schedule, stepper


def _promise(settings: Settings, schedule: Schedule, *, n: int) -> Privacy | None:
    """The privacy settings, with the paper's noise fixed in them where theory mode asks for it."""
    if settings.privacy is None or settings.theory is None:
        return settings.privacy
    noise = settings.theory.fixed_noise(schedule, (settings.privacy.epsilon, settings.privacy.delta), n=n)
    return settings.privacy if noise is None else replace(settings.privacy, noise_multiplier=noise)


def _output(settings: Settings, plan: Plan, streams: Streams) -> Output:
    """Which θ to hand out: as the settings say, or the method's own choice."""
    name = settings.training.output or plan.method.output
    counted = name in ("random", "tail")
    need(
        not (counted and plan.method.adaptive),
        "how many updates an adaptive method makes is not known beforehand",
        output=name,
        remedy='use output = "last" or "ema"',
    )
    return make_output(name, steps=plan.schedule.steps, stream=streams.output)
