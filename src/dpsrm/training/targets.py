"""Labels that the loss cannot take, found before anything is charged."""

from __future__ import annotations

import numpy as np
import torch

from dpsrm.core.errors import need
from dpsrm.data import Records, RecordSource
from dpsrm.gradients import Objective
from dpsrm.training.models import binary_loss, multiclass_loss


def need_targets(objective: Objective, records: RecordSource) -> None:
    """Refuse records without features, and labels outside the classes of a classification loss of this package.

    Edge cases: other losses know what they take; a dataset read from disk is checked when it is drawn.
    """
    if not isinstance(records, Records):
        return
    shape = tuple(records.inputs.shape)
    need(0 not in shape[1:], "records must have at least one feature", inputs=shape)
    if objective.loss not in (binary_loss, multiclass_loss):
        return
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        outputs = objective.module(records.take(np.arange(1))[0])
    classes = 2 if objective.loss is binary_loss else outputs.shape[-1]
    targets = records.targets
    wrong = torch.nonzero((targets < 0) | (targets >= classes if classes > 2 else targets > 1))
    if len(wrong) == 0:
        return
    row = int(wrong[0, 0])
    need(
        False,
        f"labels must lie in 0 … {classes - 1}: the module has {classes} classes",
        row=row,
        label=targets[row].tolist(),
        remedy="give the module an output per class, or correct the label",
    )
