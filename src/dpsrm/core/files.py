"""Files: there whole or not at all, whatever kills the process or fills the disk; locks; TOML with our own errors."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w

from dpsrm.core.errors import InputError


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
