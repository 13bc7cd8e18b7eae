"""How many processes make one training: one alone, or the ranks of a process group; the step asks only this."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from torch import Tensor, nn

from dpsrm.core.secret import ClippedSum, Streams
from dpsrm.gradients.query import Query, need_safe
from dpsrm.mechanisms.merge import Summed, merged
from dpsrm.methods import Walk
from dpsrm.runs.book import PositionedBook
from dpsrm.runs.ledger import Header


class Strategy(Protocol):
    """One process of a training: which shares of a batch are its own, and how it hears of the others'.

    A batch is cut into as many shares as the run began with ranks, and their sums are added in their order: so a run
    that goes on with another number of ranks computes the very same sums, and may use the very same noise.

    Attributes:
        leader: whether this process writes the ledger and all other files.
        ranks: how many processes there are.
    """

    leader: bool
    ranks: int

    def shares(self, of: int) -> range:
        """Which of `of` shares are this process's."""

    def total(self, summed: Summed, query: Query, *, shares: int, release: int) -> ClippedSum[Tensor]:
        """The sum over all shares, or the coordinates of it that this process releases."""

    def whole(self, released: Tensor, *, of: int) -> Tensor:
        """What all processes released."""

    def index(self, released: int) -> int:
        """The choice that the leader released."""

    def book(self, book: PositionedBook | None, header: Header) -> PositionedBook:
        """Where this process charges: the leader's ledger, or the leader's word that it was charged there."""

    def streams(self, own: Streams | None) -> Streams:
        """The leader's random streams."""

    def tell(self, content: bytes | None) -> bytes:
        """What the leader says."""

    @abstractmethod
    def align(self, module: nn.Module) -> None:
        """Give the module the leader's parameters and buffers."""

    @abstractmethod
    def need_alike(self, module: nn.Module) -> None:
        """Refuse to go on unless the module looks the same to all processes."""

    @abstractmethod
    def need_same(self, **what: str) -> None:
        """Refuse to go on unless all processes say the same."""

    def gathered(self, digest: str) -> list[str]:
        """Everybody's digest."""

    def any(self, wish: bool) -> bool:
        """Whether one of the processes wishes it."""

    def together(self) -> AbstractContextManager[None]:
        """A block that all processes leave, or none."""

    def own(self, vector_P: Tensor) -> Tensor:
        """The coordinates that this process remembers: all, unless memory is shared."""
        return vector_P

    def walk(self, walk: Walk) -> Walk:
        """A walk over what this process remembers, as the step needs it."""
        return walk

    def kept(self, walk: Walk) -> Tensor:
        """What this process remembers of θ."""
        return walk.theta

    def whole_state(self, state: Any) -> Any:
        """What all processes remember, as one would."""
        return state

    def own_state(self, state: Any) -> Any:
        """What this process remembers of a whole state."""
        return state

    def due(self, wish: bool) -> bool:
        """Whether a checkpoint is due: if this process wishes it, unless all must take part."""
        return wish


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
