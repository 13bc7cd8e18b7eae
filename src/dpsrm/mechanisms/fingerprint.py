"""Keyed fingerprints of secrets: the same for the same sum under the same noise, on any number of ranks.

A large sum is known by its blocks, those of its noise, each by itself: so it does not matter which rank holds which.
"""

from __future__ import annotations

import hashlib
import struct
from functools import cached_property

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dpsrm.core.randomness import Streams
from dpsrm.core.secret import ClippedScores, ClippedSum
from dpsrm.mechanisms.noise import LARGE

SIZE = 16
"""Bytes of a fingerprint."""


class Fingerprints:
    """Makes the fingerprints of one run.

    Guarantee: two secrets that differ in a bit, fixed independently of the key, have the same one with probability
    below 2⁻⁶⁰; who lacks the key cannot tell one from random bytes.
    """

    def __init__(self, streams: Streams) -> None:
        """Derive the key."""
        self._key = bytes.fromhex(streams.tag([b"fingerprints of sums"]))

    def of_sum(self, total: ClippedSum[Tensor], *, release: int, std: float, batch: int) -> bytes:
        """What release number `release` is made of: a sum, its noise and its divisor; this process's part of it.

        Parts are put together by `joined`. A part without coordinates is zero.
        """
        part = total.coordinates(total.secret.numel())
        numbers: npt.NDArray[np.float64] = np.ascontiguousarray(total.secret.numpy(force=True))
        said = struct.pack("<qdd", release, std, batch)
        if part.of <= LARGE:
            return self._of(said, numbers.data) if part.size else bytes(SIZE)
        begins, keys = range(0, part.size, LARGE), self._words
        places = (said + struct.pack("<q", part.begin + begin) for begin in begins)
        blocks = (_short(numbers[begin : begin + LARGE], keys) for begin in begins)
        return joined([self._of(place, block) for place, block in zip(places, blocks, strict=True)])

    def of_scores(self, scores: ClippedScores, *, release: int, said: str) -> bytes:
        """What a choice is made of: the scores, and in words what its noise depends on."""
        packed = struct.pack(f"<qd{len(scores.secret)}d", release, scores.bound, *scores.secret)
        return self._of(packed, said.encode())

    def _of(self, said: bytes, content: bytes | memoryview) -> bytes:
        """The keyed digest of both."""
        digest = hashlib.blake2b(said, key=self._key, digest_size=SIZE)
        digest.update(content)
        return digest.digest()

    @cached_property
    def _words(self) -> npt.NDArray[np.uint64]:
        """The keys that make a block short: two words for each of its numbers."""
        drawn = hashlib.shake_256(self._key).digest(2 * 8 * LARGE)
        return np.frombuffer(drawn, dtype="<u8").reshape(2, LARGE)


def joined(parts: list[bytes]) -> bytes:
    """The fingerprint of a whole, of those of its parts in any order: each depends on its place."""
    total = 0
    for part in parts:
        total ^= int.from_bytes(part, "little")
    return total.to_bytes(SIZE, "little")


def _short(block: npt.NDArray[np.float64], keys: npt.NDArray[np.uint64]) -> bytes:
    """A block in 16 bytes: two different ones of one length have the same with probability 2⁻⁶⁴; 15 times as fast."""
    from dpsrm.mechanisms.fingerprint_kernel import products

    return np.array(products(block.view(np.uint64), keys), dtype=np.uint64).tobytes()
