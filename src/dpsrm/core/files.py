"""Files that are there whole or not at all, locks, TOML; and chains of lines, which ledgers and budgets are made of.

A chain is an append-only, hash-chained, fsynced file of JSON lines with one writer. Line k is
{"body": …, "hash": SHA-256(previous hash ‖ canonical body), "index": k}. A last line that only lacks its line
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
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from dpsrm.core.errors import InputError, LedgerError


def write_atomically(path: Path, content: bytes | Iterable[bytes | memoryview], *, mode: int = 0o644) -> None:
    """Put `content`, in one piece or in several, at `path`: written beside it, fsynced, renamed, the folder fsynced.

    Guarantee: at every moment, a crash included, `path` holds its old content or all of the new one.
    Edge cases: a full disk or a read-only folder raises `InputError`; the old content stays.
    """
    beside = path.with_name(path.name + ".tmp")
    try:
        _write(beside, (content,) if isinstance(content, bytes) else content, mode)
        beside.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error}; free some space or make the folder writable") from error


def _write(path: Path, content: Iterable[bytes | memoryview], mode: int) -> None:
    """All bytes, on disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        for piece in content:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def read_limited(path: Path, limit: int) -> bytes:
    """The bytes of a file that must not be larger than `limit`; `InputError` otherwise."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise InputError(f"the file must be readable; got path={str(path)!r}: {error.strerror}") from error
    if len(content) > limit:
        raise InputError(f"{path} must have at most {limit} bytes; it has more")
    return content


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def sync_directory(path: Path) -> None:
    """Make a directory's entries durable, so that a crash cannot lose a file itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path` (made if need be) exclusively; `InputError` if another holder has it.

    Guarantee: the file that is locked is the one at `path`. Whoever opened a file that was removed meanwhile holds
    nothing and is refused.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InputError(f"cannot lock {path}: {error}; make the folder writable, or choose another --out") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(handle), path.stat()):
            raise FileNotFoundError(path)
    except OSError as error:
        os.close(handle)
        run = path.parent.parent
        raise InputError(f"another process trains in {run}; wait until it ends, or choose another --out") from error
    try:
        yield
    finally:
        os.close(handle)


MAX_BYTES = 2**20
"""No config that a person wrote is larger."""


def read_toml(path: Path) -> dict[str, Any]:
    """The file as a dictionary; `InputError` if it cannot be read or is not TOML."""
    try:
        sections: dict[str, Any] = tomllib.loads(read_limited(path, MAX_BYTES).decode("utf-8"))
        return sections
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the file must be TOML; got path={str(path)!r}: {str(error)[:200]}") from error


def parse_value(text: str) -> Any:
    """One value as TOML writes it; bare words are strings.

    >>> parse_value("0.5"), parse_value("[64, 32]"), parse_value("adam")
    (0.5, [64, 32], 'adam')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return text


def write_toml(path: Path, value: dict[str, Any]) -> None:
    """Write a dictionary; None values are left out, since TOML has none."""
    write_atomically(path, tomli_w.dumps(_without_none(value)).encode())


def _without_none(value: dict[str, Any]) -> dict[str, Any]:
    """The dictionary without None, at every depth."""
    kept = {name: item for name, item in value.items() if item is not None}
    return {name: _without_none(item) if isinstance(item, dict) else item for name, item in kept.items()}


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
