"""Which strategy this process trains by: the one place where it is chosen; and that of a process alone."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.core.secret import ClippedSum, Streams
from dpsrm.gradients.module_state import is_sharded, parameters_of
from dpsrm.gradients.query import Query, need_safe
from dpsrm.mechanisms.merge import Summed, merged
from dpsrm.methods import Spider, Walk
from dpsrm.runs.book import PositionedBook
from dpsrm.runs.ledger import Header
from dpsrm.training.config import Settings
from dpsrm.training.lending import Lending
from dpsrm.training.settings import OWN
from dpsrm.training.strategy import Strategy


class OneProcess(Strategy):
    """A training in one process: nobody to ask."""

    leader, ranks = True, 1

    def shares(self, of: int) -> range:
        """All of them."""
        return range(of)

    def total(self, summed: Summed, query: Query, *, shares: int, release: int) -> ClippedSum[Tensor]:
        """The sum of the shares."""
        sums = summed()
        return sums[0] if shares == 1 else need_safe(merged(sums))

    def whole(self, released: Tensor, *, of: int) -> Tensor:
        """What was released."""
        return released

    def index(self, released: int) -> int:
        """The choice that was released."""
        return released

    def book(self, book: PositionedBook | None, header: Header) -> PositionedBook:
        """The ledger itself."""
        assert book is not None
        return book

    def streams(self, own: Streams | None) -> Streams:
        """This process's own."""
        assert own is not None
        return own

    def tell(self, content: bytes | None) -> bytes:
        """What this process says."""
        assert content is not None
        return content

    def align(self, module: nn.Module) -> None:
        """Nothing to do."""

    def need_alike(self, module: nn.Module) -> None:
        """Nothing to compare."""

    def need_same(self, **what: str) -> None:
        """Nothing to compare."""

    def gathered(self, digest: str) -> list[str]:
        """This process's digest."""
        return [digest]

    def any(self, wish: bool) -> bool:
        """Whether this process wishes it."""
        return wish

    def together(self) -> AbstractContextManager[None]:
        """Nobody else to stop."""
        return nullcontext()

    def own(self, vector_P: Tensor) -> Tensor:
        """All coordinates."""
        return vector_P

    def walk(self, walk: Walk) -> Walk:
        """The walk as it is."""
        return walk

    def kept(self, walk: Walk) -> Tensor:
        """All of θ."""
        return walk.theta

    def whole_state(self, state: Any) -> Any:
        """The state as it is."""
        return state

    def own_state(self, state: Any) -> Any:
        """The state as it is."""
        return state

    def due(self, wish: bool) -> bool:
        """If this process wishes it."""
        return wish


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
