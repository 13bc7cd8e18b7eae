"""Sharded: as data parallel, but what is remembered from step to step lies on the rank that releases its coordinates.

Direction, optimizer state, the output's average, sums and noise exist once, in parts. θ is put together for the passes,
and the module is whole on every rank: it must fit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from dpsrm.mechanisms.merge import spread, whole
from dpsrm.methods import Ask, Choice, Walk
from dpsrm.training.data_parallel import DataParallel
from dpsrm.training.lending import Lending

_POINTS = 3
"""Whole vectors that are remembered: what one query asks of, at most."""


class Sharded(DataParallel):
    """One rank among several that share what there is to remember."""

    def __init__(self, size: int, lending: Lending | None = None) -> None:
        """Join the process group; the model has `size` trainable numbers."""
        super().__init__(lending)
        self._part = spread(size, self.ranks)[self._wire.rank]

    def own(self, vector_P: Tensor) -> Tensor:
        """This rank's coordinates."""
        return vector_P[self._part.begin : self._part.end].clone()

    def walk(self, walk: Walk) -> Walk:
        """A walk over this rank's coordinates, which asks of whole vectors."""
        return ShardedWalk(walk, self)

    def kept(self, walk: Walk) -> Tensor:
        """This rank's coordinates of θ."""
        assert isinstance(walk, ShardedWalk)
        return walk.inner.theta

    def whole(self, released: Tensor, *, of: int) -> Tensor:
        """What this rank released: the others need not know."""
        return released

    def due(self, wish: bool) -> bool:
        """A checkpoint is put together by all ranks."""
        return self.any(wish)

    def put_together(self, own: Tensor) -> Tensor:
        """The whole vector of every rank's coordinates."""
        return whole(self._wire, own, of=self._part.of)

    def whole_state(self, state: Any) -> Any:
        """A state with whole vectors, for a checkpoint that any number of ranks can go on from."""
        return _mapped(lambda own: self.put_together(own), state, size=self._part.size)

    def own_state(self, state: Any) -> Any:
        """A state with this rank's coordinates of every whole vector."""
        return _mapped(self.own, state, size=self._part.of)


class ShardedWalk:
    """A walk over some coordinates. Its methods are those whose steps treat every coordinate by itself."""

    def __init__(self, inner: Walk, ranks: Sharded) -> None:
        """Walk on from where `inner` stands."""
        self.inner, self._ranks = inner, ranks
        self._asked: Ask | None = None
        self._seen: list[tuple[Tensor, Tensor]] = []

    @property
    def theta(self) -> Tensor:
        """θ, whole."""
        return self._whole(self.inner.theta)

    @property
    def direction(self) -> Tensor:
        """This rank's coordinates of v."""
        return self.inner.direction

    @property
    def time(self) -> int:
        """How many updates were made."""
        return self.inner.time

    def ask(self) -> Ask:
        """What to release next, of whole vectors."""
        if self._asked is None:
            ask: Ask | Choice = self.inner.ask()
            assert isinstance(ask, Ask)
            points = tuple([self._whole(point) for point in ask.query.points])
            self._asked = replace(ask, query=replace(ask.query, points=points))
        return self._asked

    def tell(self, released: Tensor, *, std: float = 0.0) -> None:
        """Take this rank's coordinates of the answer."""
        self._asked = None
        self.inner.tell(released, std=std)

    def state_dict(self) -> dict[str, Any]:
        """The walk's numbers, whole."""
        found: dict[str, Any] = self._ranks.whole_state(self.inner.state_dict())
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self._asked, self._seen = None, []
        self.inner.load_state_dict(self._ranks.own_state(state))

    def _whole(self, own: Tensor) -> Tensor:
        """The whole vector, put together once as long as it is asked for."""
        known = next((vector for part, vector in self._seen if part is own), None)
        if known is None:
            known = self._ranks.put_together(own)
            self._seen = [*self._seen[1 - _POINTS :], (own, known)]
        return known


def _mapped(change: Any, state: Any, *, size: int) -> Any:
    """A tree in which every vector of `size` numbers is changed."""
    if isinstance(state, dict):
        return {name: _mapped(change, value, size=size) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_mapped(change, value, size=size) for value in state)
    return change(state) if isinstance(state, Tensor) and state.shape == (size,) else state
