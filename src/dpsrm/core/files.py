"""Files that are there whole or not at all, whatever kills the process or fills the disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dpsrm.core.chain import sync_directory
from dpsrm.core.errors import InputError


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Put `content` at `path`: written beside it, fsynced, renamed, the folder fsynced.

    Guarantee: at every moment, a crash included, `path` holds its old content or all of the new one.
    Edge cases: a full disk or a read-only folder raises `InputError`; the old content stays.
    """
    beside = path.with_name(path.name + ".tmp")
    try:
        _write(beside, content, mode)
        beside.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error}; free some space or make the folder writable") from error


def _write(path: Path, content: bytes, mode: int) -> None:
    """All bytes, on disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        rest = memoryview(content)
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
