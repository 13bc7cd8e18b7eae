"""Labels that no loss takes, modules that remember records, budgets that teach nothing: found before any charge.

What is told goes to the log, that is to the operator's stderr: it changes nothing in the run and is not published.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dpsrm.core.errors import need
from dpsrm.data import MappedRecords, Records, RecordSource, SparseRecords, UnitRecords, Units
from dpsrm.gradients import AUTO, LinearEngine, Objective, Way, binary_loss, multiclass_loss
from dpsrm.gradients.batch import on_device
from dpsrm.gradients.below import RULE, foreign_rules, refuse_subclasses
from dpsrm.gradients.torch_state import generators_kept
from dpsrm.training.config import Settings
from dpsrm.training.settings import Performance, Privacy

_log = logging.getLogger(__name__)

LEAST = 100.0
"""The public n·ε below which a run is told to expect nothing. Measured with the default settings on an easy table (one
column of three decides; error 16 % at best, 39 % for the most common class): logistic models had errors of 32 to 53 %
at n·ε = 30, 23 to 44 % at 100, 16 to 32 % at 300; networks learn later."""

UNSCALED, LARGE = 100.0, 10.0
"""The norm of a record that a linear model, and the mean square of features that a network, cannot use any more."""

_SEEN = "(this line was read from the records: it is for your eyes, not for publication)"


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


def tell_expectations(objective: Objective, records: RecordSource, privacy: Privacy | None) -> None:
    """Tell the operator, by log lines, when little can be expected of a run; the run is the same without them.

    The first three look at public numbers: δ ≥ 1/n, one record, and n·ε < `LEAST`. The others look at the records of a
    classifier and say so: one class only, and features of a linear model that are far longer than any clip.
    """
    n = len(records)
    if privacy is not None:
        _tell_budget(n, privacy)
    records = rows_of(records)
    if not isinstance(records, (Records, SparseRecords)):
        return
    classifier = objective.loss in (binary_loss, multiclass_loss)
    if classifier and len(records) > 1 and bool((records.targets == records.targets[0]).all()):
        _log.warning(
            "all records have the class %d: expect a model that always says so; %s", int(records.targets[0]), _SEEN
        )
    _tell_scale(records, linear=isinstance(objective.module, nn.Linear))


def _tell_scale(records: Records | SparseRecords, *, linear: bool) -> None:
    """Tell of features far from any scale."""
    if isinstance(records, SparseRecords):
        norms, features = np.sqrt(records.matrix.power(2).sum(axis=1)), records.matrix.shape[1]
    else:
        rows = records.inputs.flatten(1)
        norms, features = rows.norm(dim=1).numpy(force=True) if rows.is_floating_point() else np.zeros(1), rows.shape[1]
    if (norm := float(norms.max())) > (UNSCALED if linear else LARGE * features**0.5):
        _log.warning(
            "the longest record has norm %.3g; a %s learns best from %s about 1: expect a poor one%s; "
            "divide the features by their public ranges, or each record by its norm; %s",
            norm,
            *(("linear model", "norms", "") if linear else ("network", "numbers", " unless it scales them itself")),
            _SEEN,
        )


def _tell_budget(n: int, privacy: Privacy) -> None:
    """What n records, ε and δ let expect: public numbers."""
    if privacy.delta >= 1 / n:
        _log.warning(
            "delta = %g is not below 1/n = %.3g: publishing one of the %d records as it is keeps such a promise, too; "
            "choose a delta well below 1/n, for instance %.0e",
            privacy.delta,
            1 / n,
            n,
            0.1 / n,
        )
    if n == 1:
        _log.warning("there is one record, and the promise is to hide it: expect a model that has learned nothing")
    elif n * privacy.epsilon < LEAST:
        _log.warning(
            "n times epsilon is %.3g, below %g: expect about what always saying the most common class (or the "
            "middle of a range) gives, or worse; use more records or a larger epsilon",
            n * privacy.epsilon,
            LEAST,
        )


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
    written = objective.discarded(theta_P, first)
    if written:
        _log.warning(
            "what the module writes into %s is discarded: every record starts from the module as it was given",
            ", ".join(written),
        )
