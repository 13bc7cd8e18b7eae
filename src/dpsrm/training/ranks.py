"""Which strategy this process trains by: the one place where it is chosen."""

from __future__ import annotations

import torch
from torch import nn

from dpsrm.core.errors import need
from dpsrm.gradients.module_state import is_sharded, parameters_of
from dpsrm.methods import Spider
from dpsrm.training.config import Settings
from dpsrm.training.lending import Lending
from dpsrm.training.settings import OWN
from dpsrm.training.strategy import OneProcess, Strategy


def lend(module: nn.Module) -> Lending | None:
    """The ranks' way to each other's shards of a module that `fully_shard` has sharded."""
    if not any(map(is_sharded, parameters_of(module).values())):
        return None
    grouped = torch.distributed.is_initialized()
    need(grouped, "the shards of a module lie on the ranks of a process group", remedy="init_process_group first")
    return Lending(module)


def strategy(lending: Lending | None = None, *, sharded: int = 0) -> Strategy:
    """The strategy of this process: data parallel inside a process group of several ranks, else one process.

    Args:
        lending: the shards of the module that is trained, if it has any.
        sharded: share the memory of so many trainable numbers.
    """
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not grouped or (torch.distributed.get_world_size() == 1 and lending is None):
        return OneProcess()
    from dpsrm.training.data_parallel import DataParallel
    from dpsrm.training.sharded import Sharded

    return Sharded(sharded, lending) if sharded else DataParallel(lending)


def strategy_for(settings: Settings, size: int, lending: Lending | None = None) -> Strategy:
    """The strategy that settings ask for, of a model with `size` trainable numbers."""
    if settings.performance.sharded:
        _need_elementwise(settings)
    return strategy(lending, sharded=size if settings.performance.sharded else 0)


def _need_elementwise(settings: Settings) -> None:
    """Refuse to share the memory of methods that measure lengths on the way."""
    method = settings.method
    lengths = method.adaptive or isinstance(method, Spider) or getattr(method, "relative", None) is not None
    need(
        not lengths and settings.theory is None and settings.training.optimizer != OWN,
        "sharded training is for methods and optimizers that treat every coordinate by itself",
        method=method.name,
        optimizer=settings.training.optimizer,
        remedy="leave performance.sharded out: ranks then remember everything each",
    )
