"""From settings, module and data to everything a loop needs; nothing is written and nothing released.

Labels that no loss takes, and modules that mix or remember records, are found here, before any charge.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsrm.core.errors import ResumeError, need
from dpsrm.core.events import Adjacency, event_to_json
from dpsrm.core.isolation import Isolation
from dpsrm.core.secret import Streams
from dpsrm.data import (
    DatasetRecords,
    ImageFolder,
    MappedRecords,
    Picked,
    Records,
    RecordSource,
    SparseRecords,
    UnitRecords,
    Units,
    as_records,
)
from dpsrm.data.repeats import need_each_once
from dpsrm.gradients import (
    AUTO,
    Layout,
    LinearEngine,
    ModelLosses,
    Objective,
    PerExampleLoss,
    Way,
    as_losses,
    binary_loss,
    multiclass_loss,
)
from dpsrm.gradients.batch import on_device
from dpsrm.gradients.below import foreign_rules, refuse_subclasses
from dpsrm.gradients.seen_functions import RULE
from dpsrm.gradients.shards import Shards
from dpsrm.gradients.torch_state import generators_kept
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
from dpsrm.sampling import pick_rows
from dpsrm.sampling.draw import Indices
from dpsrm.training.config import Settings, plain, settings_to_dict
from dpsrm.training.defaults import chosen_for_module
from dpsrm.training.lending import Lending
from dpsrm.training.plan import Plan, make_plan
from dpsrm.training.ranks import strategy_for
from dpsrm.training.settings import OPTIMIZERS, OWN, Performance, Privacy
from dpsrm.training.strategy import Strategy

_log = logging.getLogger(__name__)


def rows_of(records: RecordSource) -> RecordSource:
    """The records row by row, also where several belong to one unit."""
    return records.records if isinstance(records, UnitRecords) else records


def by_unit(records: RecordSource, settings: Settings, unit: Any) -> tuple[RecordSource, Settings]:
    """The records grouped by unit, if settings or arguments say so, and settings that name the unit."""
    promise = settings.privacy
    if unit is None:
        told = promise is not None and (promise.unit is not None or promise.rows_per_unit is not None)
        remedy = "give unit=, one id per record; on the command line --unit COLUMN"
        need(not told, "settings that protect a unit need to know whose each record is", remedy=remedy)
        return records, settings
    if promise is None:
        need(False, "a unit is protected by private training only", remedy="leave unit out")
        raise AssertionError
    named = replace(promise, unit=promise.unit or "id")
    return UnitRecords(records, Units.of(unit), named.rows_per_unit or 1), replace(settings, privacy=named)


def need_targets(objective: Objective, records: RecordSource) -> None:
    """Refuse records without features, and labels outside the classes of a classification loss of this package.

    Edge cases: other losses know what they take; a dataset read from disk is checked when it is drawn.
    """
    records = rows_of(records)
    if isinstance(records, SparseRecords):
        need(
            LinearEngine.applies(objective),
            "sparse inputs are for one nn.Linear under a loss of this package",
            module=type(objective.module).__name__,
            remedy="use dpsrm.binary_loss, multiclass_loss or squared_loss; or give dense inputs: X.toarray()",
        )
    elif isinstance(records, Records):
        shape = tuple(records.inputs.shape)
        need(0 not in shape[1:], "records must have at least one feature", inputs=shape)
    elif not (isinstance(records, MappedRecords) and isinstance(records.tree, (tuple, list))):
        return
    if objective.loss not in (binary_loss, multiclass_loss):
        return
    classes = 2 if objective.loss is binary_loss else _outputs(objective, records)
    first, largest = 0, max(classes, 2) - 1
    for labels in _label_blocks(records):
        if labels.min() < 0 or labels.max() > largest:
            at = int(np.argmax(((labels < 0) | (labels > largest)).reshape(len(labels), -1).any(1)))
            rule = f"labels must lie in 0 … {classes - 1}: the module has {classes} classes"
            remedy = "give the module an output per class, or correct the label"
            need(False, rule, row=first + at, label=labels[at].tolist(), remedy=remedy)
        first += len(labels)


def _label_blocks(records: Records | SparseRecords | MappedRecords) -> Iterator[npt.NDArray[Any]]:
    """All labels, those on disk a block at a time."""
    if isinstance(records, MappedRecords):
        yield from records.column(1)
    else:
        yield records.targets.cpu().numpy()


def _outputs(objective: Objective, records: Records | SparseRecords | MappedRecords) -> int:
    """How many numbers the module gives for a record."""
    if isinstance(objective.module, nn.Linear):
        return objective.module.out_features
    theta_P = objective.theta()
    batch = on_device(records.take(np.array([0])), theta_P.device)
    with torch.no_grad(), generators_kept(), objective.explained(theta_P, batch):
        outputs = objective.ready(copy=True).outputs(objective.layout.split(theta_P), batch[0])
    return int(outputs.shape[-1])


def need_isolated(objective: Objective, records: RecordSource, *, performance: Performance) -> None:
    """Refuse module and loss that cannot be run on each record alone, or that remember records outside of themselves.

    Says, once, which buffers or frozen parameters they write: those writes are discarded.

    Edge cases: the closed form of a linear model runs neither. An operator of `torch.library` with a vmap rule of its
    own is given all examples: while one is defined outside of torch, vmap is refused, whoever calls it.
    """
    if performance.engine in (AUTO, "linear") and LinearEngine.applies(objective):
        return
    rules = foreign_rules() if objective.way is Way.VMAP else []
    need(not rules, RULE.format(", ".join(rules)))
    if objective.way is Way.VMAP:
        refuse_subclasses(objective.module, objective.loss)
    theta_P = objective.theta()
    first, last = (on_device(records.take(np.array([at])), theta_P.device) for at in (0, len(records) - 1))
    objective.refuse_memory(theta_P, first, last)
    objective.need_gradient(theta_P, first)
    written = objective.discarded(theta_P, first)
    if written:
        _log.warning(
            "what the module writes into %s is discarded: every record starts from the module as it was given",
            ", ".join(written),
        )


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
    strategy: Strategy

    @property
    def steady(self) -> bool:
        """Whether a neighbouring dataset leaves all other examples of a batch in their places, and rounding with them.

        Adding or removing a record does not; nor does replacing one by a record of another shape, which a collate
        function of the user's may make, or replacing an image by one of another class or name, since a folder is
        ordered by these. A unit with other rows, more or fewer, takes the same space.
        """
        records = rows_of(self.records)
        shaped = not isinstance(records, DatasetRecords) or records.collate is None
        placed = not isinstance(records, ImageFolder)
        return shaped and placed and self.plan.spending.adjacency is Adjacency.REPLACE_ONE

    @property
    def threads(self) -> int:
        """How many torch threads a run that begins now uses."""
        return self.settings.performance.threads_for(self.objective.layout.size)

    def pick(self, indices: Indices, release: int) -> Indices | Picked:
        """Of units, the rows that count in this release; of records, they themselves."""
        if not isinstance(self.records, UnitRecords):
            return indices
        seed, grouping = self.streams.row_seed(release), self.records.units.grouping
        return Picked(*pick_rows(grouping, indices, most=self.records.most, seed=seed))

    def restore(self, walk: dict[str, Any], output: dict[str, Any]) -> None:
        """Put walk and output where a checkpoint says they stood."""
        try:
            self.walk.load_state_dict(walk)
            self.output.load_state_dict(self.strategy.own_state(output))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ResumeError(f"the checkpoint is of another method or step rule: {error}") from error

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
    loss: PerExampleLoss | ModelLosses,
    data: Any,
    settings: Settings,
    streams: Streams,
    *,
    planner: Callable[..., Plan] = make_plan,
    stepper: Stepper | None = None,
    unit: Any = None,
    lending: Lending | None = None,
) -> Prepared:
    """Check everything that can be checked, calibrate the noise, and predict the ledger (by `planner`).

    Args:
        stepper: the step rule instead of the one that the settings name: somebody's own optimizer.
        unit: whose each record is, if not records but units are protected: one id per record.
        lending: the ranks' way to each other's shards, if the module is sharded.
    """
    records, settings = by_unit(as_records(data), settings, unit)
    shards = None if lending is None else Shards(lending.blocks, lending.fetch)
    objective = Objective.of(module, as_losses(loss), way=_way(settings), shards=shards)
    need_targets(objective, records)
    if isinstance(rows := rows_of(records), DatasetRecords):
        rows.refuse_memory()
    if isinstance(rows, (DatasetRecords, ImageFolder)) and settings.privacy is not None:
        units = records.units if isinstance(records, UnitRecords) else None
        need_each_once(rows.dataset if isinstance(rows, DatasetRecords) else rows, units)
    need_isolated(objective, records, performance=settings.performance)
    settings = chosen_for_module(settings, len(records), objective.layout.size)
    ranks = strategy_for(settings, objective.layout.size, lending)
    start_P = ranks.own(objective.theta())
    method, schedule, stepper = resolve(settings, objective, start_P, streams=streams, n=len(records), own=stepper)
    plan = planner(method, schedule, n=len(records), privacy=_promise(settings, schedule, n=len(records)))
    output = _output(settings, plan, streams)
    walk = ranks.walk(plan.method.begin(start_P, schedule=schedule, stepper=stepper))
    return Prepared(
        settings=settings,
        records=records,
        objective=objective,
        streams=streams,
        plan=plan,
        walk=walk,
        output=output,
        strategy=ranks,
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
    settings: Settings,
    objective: Objective,
    start_P: Tensor,
    *,
    streams: Streams,
    n: int,
    own: Stepper | None = None,
) -> tuple[Method, Schedule, Stepper]:
    """The method, schedule and step rule that the settings stand for."""
    training, method = settings.training, settings.method
    schedule = training.schedule(n, fixed=method.batch_for(n))
    drawn = method.rounds(schedule.steps, streams.output)
    if drawn != schedule.steps:
        schedule = replace(schedule, steps=drawn, most=schedule.steps)
    need(
        (training.optimizer == OWN) == (own is not None),
        "an optimizer of one's own steps in one's own loop",
        optimizer=training.optimizer,
        remedy="use make_private (with resume=True to go on with a run)",
    )
    layout = Layout(("all",), (start_P.shape,)) if settings.performance.sharded else objective.layout
    stepper = own or OPTIMIZERS[training.optimizer](training.learning_rate, layout, start_P)
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
    need(
        not (name in ("random", "tail") and plan.method.adaptive),
        "how many updates an adaptive method makes is not known beforehand",
        output=name,
        remedy='use output = "last" or "ema"',
    )
    return make_output(name, steps=plan.schedule.steps, stream=streams.output)
