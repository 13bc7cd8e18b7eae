"""What every release was made of, as fingerprints, so that its noise is never made again for another sum.

A lost release is made again with the same noise (docs/decisions/resume.md). That is no new information if and only if
the sum is the same, to the bit. Nobody else can know: a loss, its records or a learning rate may be others after a
crash, or back at an earlier state. The same noise on another sum would reveal their difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from dpsrm.core.errors import InputError, ResumeError, need
from dpsrm.core.files import write_atomically
from dpsrm.core.randomness import Streams
from dpsrm.core.secret import ClippedScores, ClippedSum
from dpsrm.mechanisms.fingerprint import Fingerprints, joined

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
