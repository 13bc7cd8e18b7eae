"""Which strategy this process trains by: the one place where it is chosen."""

from __future__ import annotations

import torch

from dpsrm.core.errors import need
from dpsrm.methods import Spider
from dpsrm.training.config import Settings
from dpsrm.training.settings import OWN
from dpsrm.training.strategy import OneProcess, Strategy


def strategy(*, sharded: int = 0) -> Strategy:
    """The strategy of this process: data parallel inside a process group of several ranks, else one process.

    Args:
        sharded: share the memory of so many trainable numbers.
    """
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not grouped or torch.distributed.get_world_size() == 1:
        return OneProcess()
    from dpsrm.training.data_parallel import DataParallel
    from dpsrm.training.sharded import Sharded

    return Sharded(sharded) if sharded else DataParallel()


def strategy_for(settings: Settings, size: int) -> Strategy:
    """The strategy that settings ask for, of a model with `size` trainable numbers."""
    if settings.performance.sharded:
        _need_elementwise(settings)
    return strategy(sharded=size if settings.performance.sharded else 0)


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
