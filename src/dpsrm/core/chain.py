"""An append-only, hash-chained, fsynced file of JSON lines with one writer: what ledgers and budgets are made of.

Line k is {"body": …, "hash": SHA-256(previous hash ‖ canonical body), "index": k}. A last line that only lacks its line
end counts: its hash proves that it is whole, so its writer may have gone on, and the end may have been lost later.
What comes after the last whole line and is no line itself ("torn") was not completed, as far as the file tells: a
writer waits for its whole line. A file that was cut short looks the same; who must know keeps count (position.py).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsrm.core.errors import LedgerError
from dpsrm.core.files import sync_directory

GENESIS = "0" * 64
MAX_LINE = 2**20
MAX_FILE = 2**28
"""Bytes that a line and a file may have: files come from elsewhere, and nothing honest is larger."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The verified content of a chain: bodies and hashes line by line.

    Attributes:
        size: where the last whole line ends, its line end included if it has one.
        ended: whether it has one.
        torn: whether bytes that are no line follow.
    """

    bodies: tuple[dict[str, Any], ...] = ()
    hashes: tuple[str, ...] = ()
    size: int = 0
    ended: bool = True
    torn: bool = False

    @property
    def head(self) -> str:
        """The hash that stands for everything."""
        return self.hashes[-1] if self.hashes else GENESIS

    def extends(self, count: int, head: str) -> bool:
        """Whether the first `count` lines are those whose last hash is `head`."""
        return 0 <= count <= len(self.hashes) and head == (GENESIS, *self.hashes)[count]


class Chain:
    """The writer's end. `append` returns only after the line is on disk; a failed one leaves the chain unusable.

    Guarantee: while a chain is open no other process has it open (`flock`); the lock ends with the process.
    """

    def __init__(self, path: Path, handle: int, lines: Lines) -> None:
        """Go on after `lines`; use `create` or `reopen`."""
        self.path = path
        self.head = lines.head
        self.count = len(lines.bodies)
        self._size = lines.size
        self._ended = lines.ended
        self._torn = lines.torn
        self._file = handle
        self._broken = False

    @classmethod
    def create(cls, path: Path, *, mode: int = 0o644) -> Chain:
        """A new, empty, locked file; `FileExistsError` if it exists."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, mode)
        _lock(handle, path, wait=False)
        sync_directory(path.parent)
        return cls(path, handle, Lines())

    @classmethod
    def reopen(cls, path: Path, *, wait: bool = False) -> tuple[Chain, Lines]:
        """Lock an existing file, verify it, and go on after its last whole line.

        Nothing is written yet: `mend`, or the first `append`, makes the file end there.

        Args:
            wait: wait for the lock; otherwise `LedgerError` if another process has it.
        """
        try:
            handle = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise LedgerError(f"cannot open {path} for writing: {error}") from error
        try:
            _lock(handle, path, wait=wait)
            lines = parse(_read(handle, path), path, torn=True)
        except BaseException:
            os.close(handle)
            raise
        return cls(path, handle, lines), lines

    def mend(self) -> None:
        """Make the file end with its last whole line: cut off what is torn, write a line end that is missing."""
        if self._ended and not self._torn:
            return
        try:
            os.ftruncate(self._file, self._size)
            if not self._ended:
                self._size += os.write(self._file, b"\n")
            os.fsync(self._file)
        except OSError as error:
            raise LedgerError(f"cannot write {self.path}: {error}; nothing was released") from error
        self._ended, self._torn = True, False

    def append(self, body: dict[str, Any]) -> None:
        """Write one line and wait until it is on disk."""
        self.mend()
        digest = _link(self.head, body)
        line = _canonical({"index": self.count, "body": body, "hash": digest}) + b"\n"
        if self._broken:
            raise LedgerError(f"an earlier write to {self.path} failed; nothing was released since; resume the run")
        try:
            self._broken = True
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were taken (disk full?)")
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise LedgerError(f"cannot write {self.path}: {error}; nothing was released") from error
        self._broken = False
        self.head = digest
        self.count += 1
        self._size += len(line)

    def close(self) -> None:
        """Let go of the file and the lock; what is on disk stays as it is."""
        os.close(self._file)


def read_chain(path: Path, *, torn: bool = False) -> Lines:
    """Read a chain and check every link; `LedgerError` names the first line that is wrong.

    Args:
        torn: accept a file whose last line was not completed (left out) or lost its line end (counted).
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise LedgerError(f"cannot read the ledger {path}: {error}") from error
    try:
        return parse(_read(handle, path), path, torn=torn)
    finally:
        os.close(handle)


def parse(raw: bytes, path: Path, *, torn: bool = False) -> Lines:
    """The verified lines of a chain's bytes."""
    *whole, rest = raw.split(b"\n")
    if rest and not torn:
        raise LedgerError(f"{path}: the last line is torn (no line end): a crash, or tampering")
    bodies: list[dict[str, Any]] = []
    hashes = [GENESIS]
    for index, line in enumerate(whole):
        body, digest = _checked(line, index, hashes[-1], path)
        bodies.append(body)
        hashes.append(digest)
    last = _whole_or_none(rest, len(whole), hashes[-1], path)
    if last is not None:
        bodies.append(last[0])
        hashes.append(last[1])
    torn_bytes = 0 if last is not None else len(rest)
    return Lines(
        bodies=tuple(bodies),
        hashes=tuple(hashes[1:]),
        size=len(raw) - torn_bytes,
        ended=last is None,
        torn=torn_bytes > 0,
    )


def _lock(handle: int, path: Path, *, wait: bool) -> None:
    """Be the only writer."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        raise LedgerError(f"another process is writing {path}; wait until it ends") from error


def _read(handle: int, path: Path) -> bytes:
    """All bytes of an open file, if it is one and not too large."""
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        raise LedgerError(f"{path} must be a file")
    if facts.st_size > MAX_FILE:
        raise LedgerError(f"{path} has {facts.st_size} bytes; a ledger has at most {MAX_FILE}")
    with os.fdopen(os.dup(handle), "rb") as file:
        file.seek(0)
        return file.read(MAX_FILE)


def _checked(line: bytes, index: int, head: str, path: Path) -> tuple[dict[str, Any], str]:
    """One line's body and hash, after checking that it is the canonical text of the next link."""
    where = f"{path}, line {index + 1}"
    if len(line) > MAX_LINE:
        raise LedgerError(f"{where}: a line has at most {MAX_LINE} bytes; got {len(line)}")
    try:
        entry = json.loads(line)
        body, digest = entry["body"], entry["hash"]
        expected = _canonical({"index": index, "body": body, "hash": _link(head, body)})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LedgerError(f"{where}: not a ledger line ({str(error)[:200]}): the ledger was changed") from error
    if line != expected or not isinstance(body, dict):
        raise LedgerError(f"{where}: the chain is broken: this line or one before it was changed")
    return body, digest


def _whole_or_none(rest: bytes, index: int, head: str, path: Path) -> tuple[dict[str, Any], str] | None:
    """Body and hash of what follows the last line end, if it is a whole line that only lacks its own."""
    try:
        return _checked(rest, index, head, path) if rest else None
    except LedgerError:
        return None


def _link(previous: str, body: Any) -> str:
    """The hash that ties `body` to everything before it."""
    return hashlib.sha256(previous.encode() + _canonical(body)).hexdigest()


def _canonical(value: Any) -> bytes:
    """The one text of a JSON value: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
