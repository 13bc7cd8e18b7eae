"""What exists only left of the airlock: a bounded sum over private records that nobody may read but a mechanism."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dpsrm.core.errors import need
from dpsrm.core.events import Adjacency

V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """Exact, private facts about one clipped sum, for the operator's eyes only (`RUN/private/`)."""

    loss: float = math.nan
    clipped: tuple[float, ...] = ()
    nonfinite: int = 0


@dataclass(frozen=True)
class Coordinates:
    """The numbers `begin` … `end` − 1 of a vector of `of` numbers.

    >>> Coordinates(2, 5, of=8).size, Coordinates(2, 5, of=8).whole, Coordinates(0, 8, of=8).whole
    (3, False, True)
    """

    begin: int
    end: int
    of: int

    @property
    def size(self) -> int:
        """How many they are."""
        return self.end - self.begin

    @property
    def whole(self) -> bool:
        """Whether these are all."""
        return self.size == self.of


@dataclass(frozen=True, kw_only=True)
class ClippedSum(Generic[V]):
    """A sum of `rows` per-example contributions, each of Euclidean norm at most `bound`.

    Attributes:
        additions: how many numbers were added to one coordinate at most, where that must be counted.
        part: which coordinates `secret` holds, if not all: `bound` is that of the whole vector.

    Guarantee: replacing one record moves `secret` by at most 2·bound, adding or removing one by at most bound.
    Only `dpsrm.mechanisms` reads `secret` (a test of the source checks it).

    >>> ClippedSum(secret=[3.0], bound=1.5, rows=2).sensitivity(Adjacency.REPLACE_ONE)
    3.0
    """

    secret: V = field(repr=False)
    bound: float
    rows: int
    diagnostics: Diagnostics = field(default_factory=Diagnostics, repr=False)
    additions: int = 0
    part: Coordinates | None = None

    def __post_init__(self) -> None:
        """Refuse a bound that is no bound."""
        need(self.bound >= 0, "the bound of a clipped sum cannot be negative", bound=self.bound)

    def coordinates(self, size: int) -> Coordinates:
        """Which coordinates `secret` holds, being of `size` numbers: all, unless `part` says otherwise."""
        return Coordinates(0, size, of=size) if self.part is None else self.part

    def sensitivity(self, adjacency: Adjacency) -> float:
        """How far `secret` moves at most between adjacent datasets."""
        if adjacency is Adjacency.REPLACE_ONE:
            return 2 * self.bound
        if adjacency is Adjacency.ADD_REMOVE:
            return self.bound
        raise AssertionError(f"unknown adjacency {adjacency!r}")


@dataclass(frozen=True, kw_only=True)
class ClippedScores:
    """One secret sum per candidate over `rows` records, each record adding between 0 and `bound` to each.

    Guarantee: between adjacent datasets the sums move by amounts d_j with max d_j − min d_j ≤ spread.
    Only `dpsrm.mechanisms` reads `secret`.

    >>> ClippedScores(secret=(3.0, 2.5), bound=1.5, rows=2).spread(Adjacency.REPLACE_ONE)
    3.0
    """

    secret: tuple[float, ...] = field(repr=False)
    bound: float
    rows: int

    def spread(self, adjacency: Adjacency) -> float:
        """How far two sums move apart at most: 2·bound if a record is replaced, bound if one is added or removed."""
        if adjacency is Adjacency.REPLACE_ONE:
            return 2 * self.bound
        if adjacency is Adjacency.ADD_REMOVE:
            return self.bound
        raise AssertionError(f"unknown adjacency {adjacency!r}")


LARGE = 2**16
"""Above so many coordinates, one normal each and a release rounded to a grid, instead of four normals each.

The noise of a large release is made in blocks of so many coordinates, each from numbers of its own, so that it does not
depend on how many processes make it.
"""
