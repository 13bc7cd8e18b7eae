"""What `make_private` was given, checked, and as the library works with it: records, method, sizes, losses, stepper."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from dpsrm.core.errors import need, need_numbers
from dpsrm.core.events import Adjacency, Scheme
from dpsrm.core.isolation import Isolation
from dpsrm.data import RecordSource, as_records
from dpsrm.gradients import STANDARD_LOSSES, Layout, ModelLosses, PerExampleLoss
from dpsrm.gradients.module_state import is_sharded
from dpsrm.methods import CorrectedAdam, Method, OptimizerStep, Stepper, method_class
from dpsrm.training.loader import records_of
from dpsrm.training.network_rule import network_batch, network_rate

_INSTEAD = {
    "device": "leave device out: all follows the model's parameters, model.to(…)",
    "module": "the module is called model",
    "criterion": "the loss is called losses, with one number per example",
    "target_epsilon": "the promise is called epsilon",
    "target_delta": "the promise is called delta",
    "clip": "the clip is called max_grad_norm",
    "poisson_sampling": "batches are drawn by sampling, poisson unless you say otherwise",
}
"""What arguments of other libraries are called here."""


def given_records(data_loader: DataLoader[Any] | None, data: Any) -> RecordSource:
    """The records of a loader, or of arrays."""
    need((data_loader is None) != (data is None), "give data_loader, or data and batch_size")
    known = data_loader is None or isinstance(data_loader, DataLoader)
    need(known, "data_loader is a DataLoader of torch", type=type(data_loader).__name__, remedy="give records as data=")
    return as_records(data) if data_loader is None else records_of(data_loader)


def given_method(method: str | Method, max_grad_norm: float, max_diff_norm: float, options: dict[str, Any]) -> Method:
    """The method with its clips and its own settings."""
    need_numbers(max_grad_norm=max_grad_norm, max_diff_norm=max_diff_norm)
    if isinstance(method, Method):
        need(not options, "a method that is given whole takes no further settings", given=sorted(options))
        chosen = method
    else:
        kind = method_class(method)
        known: list[str] = [each.name for each in fields(kind)] if is_dataclass(kind) else []
        clips = {"max_grad_norm": max_grad_norm, "max_diff_norm": max_diff_norm}
        given = {**{name: value for name, value in clips.items() if name in known}, **options}
        unknown = sorted(set(given) - set(known))
        remedy = "; ".join(_INSTEAD[name] for name in unknown if name in _INSTEAD)
        need(not unknown, f"further settings are those of {method}: {', '.join(known)}", unknown=unknown, remedy=remedy)
        chosen = kind(**given)
    need(not chosen.adaptive, f"{chosen.name} chooses its own step sizes and uses no optimizer", remedy="use train")
    return chosen


def given_sizes(method: Method, n: int, batch_size: int | None) -> tuple[int | None, int]:
    """The batch to ask for (None: the method insists on one), and how many make a pass."""
    fixed = method.batch_for(n)
    size = network_batch(n) if batch_size is None else batch_size
    need_numbers(batch_size=size)
    b = fixed if fixed is not None else int(size)
    need(fixed is not None or b == size, "batch_size must be a whole number", batch_size=size)
    need(1 <= b <= n, "batch_size must lie between 1 and the number of records", batch_size=b, n=n)
    return (None if fixed is not None else b), max(1, round(n / b))


_KNOWN = {
    "adjacency": [each.value for each in Adjacency],
    "sampling": [each.value for each in Scheme],
    "isolation": [each.value for each in Isolation],
}


def need_known(**given: str) -> None:
    """Refuse names that mean nothing."""
    for name, value in given.items():
        need(value in _KNOWN[name], f"{name} must be one of {', '.join(_KNOWN[name])}", got=value)


def given_stepper(
    optimizer: torch.optim.Optimizer | None, model: nn.Module, steps: int
) -> tuple[Stepper, dict[str, Any]]:
    """The user's optimizer, or the library's choice of one, and what config.toml says of it."""
    if optimizer is None:
        rate = network_rate(steps, Layout.of(model).size)
        return CorrectedAdam(rate), {"name": "dp-adam", "lr": rate}
    remedy = "give the optimizer itself, without what is wrapped around it"
    known = isinstance(optimizer, torch.optim.Optimizer) and hasattr(optimizer, "_optimizer_step_pre_hooks")
    need(known, "an optimizer is one of torch.optim's kind", got=type(optimizer).__name__, remedy=remedy)
    need(
        not any(p.requires_grad and is_sharded(p) for p in model.parameters()),
        "an optimizer of one's own moves whole parameters",
        remedy="leave the trained ones whole: fully_shard(…, ignored_params=…); or leave optimizer out",
    )
    values = {name: value for name, value in optimizer.defaults.items() if isinstance(value, (bool, int, float, str))}
    return OptimizerStep.own(optimizer, model, Layout.of(model)), {"name": type(optimizer).__name__, **values}


def given_losses(losses: PerExampleLoss | ModelLosses) -> PerExampleLoss | ModelLosses:
    """A function is one of (model, batch); a loss of torch, or of ours, is one of (outputs, targets)."""
    need(callable(losses) or isinstance(losses, ModelLosses), "losses is a function of (model, batch)", losses=losses)
    named = losses.func if isinstance(losses, partial) else losses
    of_torch = isinstance(named, nn.Module) or getattr(named, "__module__", None) == F.__name__
    if of_torch or isinstance(losses, ModelLosses) or named in STANDARD_LOSSES:
        return losses
    return ModelLosses(losses)
