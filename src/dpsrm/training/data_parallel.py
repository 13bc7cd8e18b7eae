"""Data parallel: every rank holds the model and sums its share of each batch; noise is added once, where coordinates
are summed up.

The ranks make the same draw from the same secret stream. Each sums its share, each adds up some coordinates of all
ranks' sums and releases them, and all get all that was released: so θ is the same on every rank, to the bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from dpsrm.core.errors import RankFailed, need
from dpsrm.core.secret import ClippedSum, Streams
from dpsrm.gradients.module_state import is_sharded, parameters_of
from dpsrm.gradients.query import Query, need_safe
from dpsrm.mechanisms.merge import Shares, Summed, merged_over, whole
from dpsrm.mechanisms.wire import Wire
from dpsrm.runs.book import PositionedBook
from dpsrm.runs.folder import pack_key, unpack_key
from dpsrm.runs.ledger import Header
from dpsrm.training.lending import Lending
from dpsrm.training.rank_books import FollowingBook, LeadingBook
from dpsrm.training.strategy import Strategy

MOST_RANKS = 1024
"""The linear engine's margin covers the additions of so many (docs/decisions/ranks.md)."""


class DataParallel(Strategy):
    """One rank among several."""

    def __init__(self, lending: Lending | None = None) -> None:
        """Join the process group that is initialised; `lending` has the shards of a module that is not whole here."""
        self._wire, self._lending = Wire(), lending
        self._unsaid = () if lending is None else (KeyboardInterrupt,)  # in the middle of a round nobody would hear it
        self.ranks, self.leader = self._wire.ranks, self._wire.rank == 0
        need(self.ranks <= MOST_RANKS, f"there may be at most {MOST_RANKS} ranks", ranks=self.ranks)

    def shares(self, of: int) -> range:
        """The shares of this rank: neighbouring ones, so that ranks in order are shares in order."""
        return self._shares(of)[self._wire.rank]

    def _shares(self, of: int) -> list[range]:
        """Every rank's shares."""
        return [range(of * rank // self.ranks, of * (rank + 1) // self.ranks) for rank in range(self.ranks)]

    def total(self, summed: Summed, query: Query, *, shares: int, release: int) -> ClippedSum[Tensor]:
        """This rank's coordinates of the sum over all shares; an error on one rank, a panic too, stops all."""
        state = float(release), query.bound, *(_checksum(point_P) for point_P in query.points)
        cut = Shares(counts=[len(each) for each in self._shares(shares)], clips=len(query.parts), state=state)
        try:
            with self._lent():
                sums = summed()
        except self._unsaid:
            raise
        except BaseException as error:
            with suppress(RankFailed):  # that the others are gone says less than this rank's own error
                merged_over(self._wire, (), cut, like_P=query.points[0], failure=error)
            raise
        return need_safe(merged_over(self._wire, sums, cut, like_P=query.points[0]))

    def whole(self, released: Tensor, *, of: int) -> Tensor:
        """What all ranks released, each its coordinates."""
        return whole(self._wire, released, of=of)

    def index(self, released: int) -> int:
        """The leader's choice."""
        return int(self._wire.gather([float(released)])[0][0])

    def book(self, book: PositionedBook | None, header: Header) -> PositionedBook:
        """The ledger, told of to the others; or the leader's word."""
        return LeadingBook(book, self._wire) if book is not None else FollowingBook(header, self._wire)

    def streams(self, own: Streams | None) -> Streams:
        """The leader's streams: its key goes to all ranks, over the network between them."""
        told = self._wire.tell(None if own is None else pack_key(own))
        return own if own is not None and self.leader else unpack_key(told)

    def tell(self, content: bytes | None) -> bytes:
        """What the leader says."""
        return self._wire.tell(content)

    @torch.no_grad()
    def align(self, module: nn.Module) -> None:
        """Rank 0's parameters and buffers, if the module is the same otherwise; shards are everybody's own."""
        self.need_alike(module)
        for tensor in [*parameters_of(module).values(), *module.buffers()]:
            if not is_sharded(tensor):
                self._wire.same(tensor)

    def need_alike(self, module: nn.Module) -> None:
        """Refuse modules that do not look the same on all ranks, and shards that cannot be put together."""
        state = [*parameters_of(module).items(), *module.named_buffers()]
        shapes = [(name, tuple(tensor.shape), str(tensor.dtype), is_sharded(tensor)) for name, tensor in state]
        self.need_same(module=repr(shapes) + ("" if self._lending is None else self._lending.facts()))
        if self._lending is not None:
            self._lending.need_supported()

    def need_same(self, **what: str) -> None:
        """Refuse on every rank, by name, what is not the same on all."""
        for name, said in what.items():
            everybody = self.gathered(hashlib.sha256(said.encode()).hexdigest())
            other = next((rank for rank, each in enumerate(everybody) if each != everybody[0]), None)
            if other is not None:
                raise RankFailed(
                    f"all ranks must be given the same {name}; rank {other} has another than rank 0; nothing was "
                    "released; give every rank the same data, module and settings"
                )

    def gathered(self, digest: str) -> list[str]:
        """Everybody's digest, 64 hexadecimal digits."""
        everybody = self._wire.gather([float(byte) for byte in bytes.fromhex(digest)])
        return [bytes(int(byte) for byte in each).hex() for each in everybody]

    def any(self, wish: bool) -> bool:
        """Whether one of the ranks wishes it."""
        return any(each[0] for each in self._wire.gather([float(wish)]))

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block that all ranks leave, or none."""
        with self._wire.together(self._unsaid), self._lent():
            yield

    @contextmanager
    def _lent(self) -> Iterator[None]:
        """A block in which shards are lent, if there are any; who panics lends on until all are through."""
        if self._lending is None:
            yield
            return
        panic: BaseException | None = None
        with self._lending.open():
            try:
                yield
            except (Exception, *self._unsaid):
                raise
            except BaseException as error:
                panic = error
        if panic is not None:
            raise panic


def _checksum(point_P: Tensor) -> float:
    """A number that changes with nearly every change of a vector: cheap, and exact in any order."""
    bits = point_P.detach().contiguous().view(torch.int32)
    return float(int(bits.sum(dtype=torch.int64)) % 2**52)
