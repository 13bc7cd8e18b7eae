"""Labels that the loss cannot take, and modules that remember records: found before anything is charged."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from dpsrm.core.errors import need
from dpsrm.data import Records, RecordSource
from dpsrm.gradients import AUTO, LinearEngine, Objective, Way
from dpsrm.training.models import binary_loss, multiclass_loss
from dpsrm.training.settings import Performance

_log = logging.getLogger(__name__)


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
        run = objective.ready(copy=True)
        outputs = run.outputs(
            objective.layout.split(objective.layout.read(objective.module)), records.inputs[:1].clone()
        )
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


def need_isolated(objective: Objective, records: RecordSource, *, performance: Performance) -> None:
    """Refuse module and loss that cannot be run on each record alone, or that remember records outside of themselves.

    Says, once, which buffers or frozen parameters they write: those writes are discarded.

    Edge cases: the closed form of a linear model runs neither. A `torch.autograd.Function` with a vmap rule of its own
    is given all examples by vmap: while one is defined outside of torch, vmap is refused.
    """
    if performance.engine in (AUTO, "linear") and LinearEngine.applies(objective):
        return
    rules = _foreign_rules(torch.autograd.Function) if objective.way is Way.VMAP else []
    need(
        not rules,
        "a torch.autograd.Function with a vmap rule of its own sees all examples of a batch",
        found=rules,
        remedy='use performance.engine = "loop", or generate_vmap_rule = True instead of that rule',
    )
    theta_P = objective.layout.read(objective.module)
    first, last = (records.take(np.array([at])) for at in (0, len(records) - 1))
    objective.refuse_memory(theta_P, first, last)
    written = objective.discarded(theta_P, first)
    if written:
        _log.warning(
            "what the module writes into %s is discarded: every record starts from the module as it was given",
            ", ".join(written),
        )


def _foreign_rules(root: type[Any]) -> list[str]:
    """The classes under `root`, outside of torch and this package, that bring a vmap rule of their own."""
    found: list[str] = []
    kinds: list[type[Any]] = root.__subclasses__()
    for kind in kinds:
        ours = kind.__module__.partition(".")[0] in ("torch", "dpsrm")
        if "vmap" in vars(kind) and not ours:
            found.append(f"{kind.__module__}.{kind.__qualname__}")
        found += _foreign_rules(kind)
    return sorted(found)
