"""What exists only left of the airlock: bounded sums over private records, and the random streams of a run.

Nobody may read a sum but a mechanism. The streams come from one secret key: separate ChaCha20 streams for sampling,
noise, initialisation and output. Those for sampling and noise have a position: the number of the release they are
drawn for. It is ChaCha20's 64-bit nonce, so release i has numbers of its own, always the same ones, however much other
releases draw.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from randomgen import ChaCha

from dpsrm.core.errors import need
from dpsrm.core.events import Adjacency


class Streams:
    """The randomness of one run, as independent generators derived from one 256-bit key.

    `Streams.secure()` draws the key from the operating system: the only choice under which the guarantee holds,
    because whoever knows the key can subtract the noise. `Streams.seeded(seed)` is for research: reproducible,
    not private.

    Guarantee: the streams' keys are SHA-256(key ‖ name), so no stream repeats another's numbers; after `seek(i)`
    `sampling` and `noise` give the numbers of release i alone (2^68 bytes of them), so none repeats another release's.

    >>> Streams.seeded(7).noise.standard_normal() == Streams.seeded(7).noise.standard_normal()
    True
    >>> Streams.secure().private, Streams.seeded(7).private
    (True, False)
    """

    def __init__(self, key: bytes, *, private: bool) -> None:
        """Derive the streams from `key` (32 bytes)."""
        need(len(key) == 32, "a stream key has 32 bytes", length=len(key))
        self.private = private
        self._key = key
        self.sampling = _generator(key, "sampling")
        self.noise = _generator(key, "noise")
        self.initialisation = _generator(key, "initialisation")
        self.output = _generator(key, "output")
        self._positions = [_Position(self.sampling), _Position(self.noise)]

    def public_seed(self, release: int) -> int:
        """A seed for the public randomness of release number `release` (dropout)."""
        return int.from_bytes(_derived(self._key, f"public {release}")[:8], "little") >> 1

    def record_seed(self, release: int) -> int:
        """A seed for the random numbers of the user's code that reads records for release number `release` (crops)."""
        return int.from_bytes(_derived(self._key, f"records {release}")[:8], "little")

    def row_seed(self, release: int) -> int:
        """A seed for which rows of a person count in release number `release`, where they have more than may."""
        return int.from_bytes(_derived(self._key, f"rows {release}")[:8], "little")

    def seek(self, release: int) -> None:
        """Stand at the beginning of release number `release`.

        Edge cases: seeking a release again gives its numbers again. That is harmless for exactly the same release (the
        same records and θ) and for nothing else: what was released twice with one noise can be subtracted.
        """
        for position in self._positions:
            position.set(release)

    def tag(self, pieces: Iterable[bytes | memoryview]) -> str:
        """A keyed digest (HMAC-SHA-256): tells whoever has the key whether the pieces are the same, others nothing."""
        mac = hmac.new(_derived(self._key, "tag"), digestmod="sha256")
        for piece in pieces:
            mac.update(len(piece).to_bytes(8, "little"))
            mac.update(piece)
        return mac.hexdigest()

    def surrender_key(self) -> bytes:
        """The key itself, for the one file that keeps it until the run ends (a test allows one caller)."""
        return self._key

    def __repr__(self) -> str:
        """Nothing secret."""
        return f"Streams(private={self.private})"

    @classmethod
    def secure(cls) -> Streams:
        """Streams keyed by the operating system's entropy."""
        return cls(secrets.token_bytes(32), private=True)

    @classmethod
    def seeded(cls, seed: int) -> Streams:
        """Reproducible streams for research; a run that uses them is not private and says so."""
        need(isinstance(seed, int) and seed >= 0, "a seed is a whole number, 0 or more", seed=seed)
        return cls(hashlib.sha256(f"dpsrm research seed {seed}".encode()).digest(), private=False)

    @classmethod
    def choose(cls, seed: int | None) -> Streams:
        """`secure()` without a seed, `seeded(seed)` with one."""
        return cls.secure() if seed is None else cls.seeded(seed)


BLOCK = 2**32
"""32-bit words of a stream that a block of noise has for itself: far more than its numbers need."""


def block_states(stream: np.random.Generator, first: int, last: int) -> Iterator[None]:
    """Let `stream` stand at the beginning of its blocks number `first` … `last` − 1, one after the other.

    Block 0 begins where the stream stands, block k about k·2³² words on, so each block has numbers of its own. At the
    end the stream stands at block `last`.
    """
    bits: Any = stream.bit_generator
    start = bits.state
    for block in range(first, last + 1):
        if isinstance(bits, ChaCha):
            bits.state = _moved(start, block)
        else:
            bits.state = start
            bits.advance(block * BLOCK)
        if block < last:
            yield


def _moved(state: dict[str, Any], blocks: int) -> dict[str, Any]:
    """A ChaCha state so many blocks on; its counter counts words, and 16 of them are made at once."""
    if blocks == 0:
        return state
    words, nonce = state["state"]["ctr"]
    counter = np.array([(int(words) + 15) // 16 * 16 + blocks * BLOCK, nonce], dtype=np.uint64)
    return {**state, "state": {**state["state"], "ctr": counter}}


class _Position:
    """Moves a generator to the first block of a nonce; 7 µs, a tenth of making a generator."""

    def __init__(self, generator: np.random.Generator) -> None:
        """Remember the generator's state at nonce 0, of which only the nonce will change."""
        self._bits: Any = generator.bit_generator
        self._state = self._bits.state
        self._counter = np.zeros(2, dtype=np.uint64)
        self._state["state"]["ctr"] = self._counter

    def set(self, nonce: int) -> None:
        """Block 0 of `nonce`. ChaCha has no buffer but its block, which is made afresh at block 0."""
        self._counter[1] = nonce
        self._bits.state = self._state


def _generator(key: bytes, name: str) -> np.random.Generator:
    """A NumPy generator over ChaCha20 keyed by SHA-256(key ‖ name)."""
    return np.random.Generator(ChaCha(key=int.from_bytes(_derived(key, name), "little"), rounds=20))


def _derived(key: bytes, name: str) -> bytes:
    """SHA-256(key ‖ name): 32 bytes that say nothing about the key."""
    return hashlib.sha256(key + name.encode()).digest()


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
