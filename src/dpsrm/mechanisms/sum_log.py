"""What every release was made of, as fingerprints, so that its noise is never made again for another sum.

A lost release is made again with the same noise (docs/decisions/resume.md). That is no new information if and only if
the sum is the same, to the bit. Nobody else can know: a loss, its records or a learning rate may be others after a
crash, or back at an earlier state. The same noise on another sum would reveal their difference.

Fingerprints are keyed, and the same for the same sum under the same noise on any number of ranks: a large sum is known
by its blocks, those of its noise, each by itself, so it does not matter which rank holds which.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dpsrm.core.errors import InputError, ResumeError, need
from dpsrm.core.files import write_atomically
from dpsrm.core.secret import LARGE, ClippedScores, ClippedSum, Streams

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


T = TypeVar("T")
_HEADER = "dpsrm sums 1"
_MADE = "made"
_MARK = re.compile(f"failed [0-9]{{20}}|{_MADE}")  # all digits: a mark that was cut off is none
_LINE = re.compile(f"[0-9a-f]{{32}}|{_MARK.pattern}")

Gathered = Callable[[str], list[str]]
"""From this process's digest to that of all processes."""


def begin_sums(path: Path) -> None:
    """Make the file, without a release; on disk before anything is charged, so it is never missing honestly."""
    write_atomically(path, f"{_HEADER}\n".encode(), mode=0o600)


def read_sums(path: Path, *, released: int) -> list[str]:
    """The fingerprints (and marks, see `Stopped`) of a run that was interrupted, of `released` releases at least.

    Guarantee: `ResumeError` if the file is missing, malformed or shorter than that: what was released is then unknown.

    Edge cases: a last line that was not written to its end is left out, its release was never made.
    """
    try:
        header, *lines = path.read_text().split("\n")
    except (OSError, ValueError) as error:
        raise ResumeError(f"{path} cannot be read ({error}); {_LOST}") from error
    if lines and not _LINE.fullmatch(lines[-1]):
        lines.pop()
    if header != _HEADER or not all(_LINE.fullmatch(line) for line in lines):
        raise ResumeError(f"{path} was changed; {_LOST}")
    known = sum(not _MARK.fullmatch(line) for line in lines)
    if known < released:
        raise ResumeError(f"{path} knows {known} of {released} releases that were made; {_LOST}")
    return lines


_LOST = "without what was released, noise could be used for another sum; restore it, or begin a new run"


class Stopped:
    """The last release that failed over records, until it is made: a run that ends before would tell of them.

    Args:
        marks: what was noted before, in its order.
        note: keeps a mark for those who go on with the run.
    """

    def __init__(self, marks: Iterable[str] = (), *, note: Callable[[str], None] = lambda _: None) -> None:
        """Go on after `marks`."""
        self.at: int | None = None
        self._note = note
        for mark in marks:
            self.at = None if mark == _MADE else int(mark.split()[1])

    def mark(self, release: int) -> None:
        """Release number `release` failed; where the run went back, a later one that failed before still counts."""
        if self.at is None or release > self.at:
            self.at = release
            self._note(f"failed {release:020d}")

    def made(self, release: int) -> None:
        """Release number `release` was made: if it is the one that failed, nothing is to be hidden any more."""
        if release == self.at:
            self.at = None
            self._note(_MADE)


class SumLog:
    """The fingerprints of a run's releases by their number: a file in `private/`, and the same in memory.

    Args:
        lines: those of the releases that were made, and marks, as `read_sums` gives them.
        path: the file that holds them, if this process keeps it (the leader, of a run that can be resumed).
        gathered: everybody's digest, if several processes release parts of one sum.

    Attributes:
        stopped: which release a record may have stopped; on disk at once, for whoever goes on with the run.

    Guarantee: a fingerprint is written before its release is made, so a killed process has told nothing that its file
    does not know; after `sync` it is on disk, so that a computer that fails has not either.
    """

    def __init__(
        self, streams: Streams, lines: list[str], *, path: Path | None = None, gathered: Gathered = lambda own: [own]
    ) -> None:
        """Go on after `lines`."""
        self._fingerprints, self._gathered = Fingerprints(streams), gathered
        self._known = [line for line in lines if not _MARK.fullmatch(line)]
        self.stopped = Stopped(filter(_MARK.fullmatch, lines), note=self._mark)
        self._file = None if path is None else _opened(path, lines)
        self._synced, self._broken, self._process = True, False, os.getpid()

    def __len__(self) -> int:
        """How many releases were made, those included that are to be made again."""
        return len(self._known)

    def need_same_sum(self, total: ClippedSum[Tensor], *, release: int, std: float, batch: int) -> None:
        """Keep what release number `release` is made of; `ResumeError` if it was made before, of something else."""
        own = self._fingerprints.of_sum(total, release=release, std=std, batch=batch)
        parts = self._gathered(own.hex())
        whole = parts[0] if len(parts) == 1 else joined([bytes.fromhex(part) for part in parts]).hex()
        self._need_same(release, whole)

    def need_same_scores(self, scores: ClippedScores, *, release: int, said: str) -> None:
        """The same for a choice, which every process makes and the first one tells."""
        own = self._fingerprints.of_scores(scores, release=release, said=said)
        self._need_same(release, self._gathered(own.hex())[0])

    def _need_same(self, release: int, digest: str) -> None:
        """Keep one fingerprint, or compare it."""
        if release > len(self._known):
            raise ResumeError(f"{len(self._known)} of {release} releases before this one are known; {_LOST}")
        if release == len(self._known):
            self._write(digest)
            self._known.append(digest)
        elif self._known[release] != digest:
            raise ResumeError(
                f"release {release} was made before, from another sum (another loss or model, other records, another "
                "learning rate or schedule, or a computer that rounds differently); its noise is not used again for "
                "this one; nothing was released; restore what it was; or finish() here, in one's own loop; or begin a "
                "new run"
            )

    def sync(self) -> None:
        """Wait until every fingerprint is on disk: to be called before anybody sees what was released."""
        if self._file is not None and not self._synced:
            self._done(lambda file: os.fsync(file))
            self._synced = True

    def _mark(self, line: str) -> None:
        """Have a mark on disk; not by a forked process, whose run this is not, nor after what failed is this file."""
        if not self._broken and os.getpid() == self._process:
            self._write(line)
            self.sync()

    def _write(self, line: str) -> None:
        """Hand one line to the system."""
        content, self._synced = f"{line}\n".encode(), False
        if self._file is not None and self._done(lambda file: os.write(file, content)) != len(content):
            self._broken = True
            raise InputError("cannot write private/sums.log: the disk is full; free some space, then resume")

    def _done(self, what: Callable[[int], T]) -> T:
        """Do something with the file; never again after a failure: what is in it then is no longer known."""
        assert self._file is not None
        need(not self._broken, "an earlier write to private/sums.log failed", remedy="resume the run")
        self._broken = True
        try:
            found = what(self._file)
        except OSError as error:
            raise InputError(f"cannot write private/sums.log: {error}; free some space, then resume") from error
        self._broken = False
        return found

    def __enter__(self) -> SumLog:
        """Keep the file open for a while."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the file, everything in it on disk."""
        if self._file is not None:
            try:
                if not self._broken:
                    self.sync()
            finally:
                os.close(self._file)
                self._file = None


def _opened(path: Path, lines: list[str]) -> int:
    """The file to go on with; what follows its last whole line is removed, and nothing else is ever."""
    text = "".join(f"{line}\n" for line in (_HEADER, *lines)).encode()
    if path.read_bytes() != text:
        write_atomically(path, text, mode=0o600)
    return os.open(path, os.O_WRONLY | os.O_APPEND)
