"""The run's stream key on disk: from before the first charge until the run ends, readable by its owner alone.

Whoever has the key can subtract the noise. It is in this one file, and never in a checkpoint, ledger, report or log.
Two folders that went on with one key would add the same noise to different sums, and so would a folder that an old
copy was put back into. So the key names a file beside it that nobody ever writes again, by its number (inode) and the
time of its last change, which the system sets and no copying tool can: a copy resumes nothing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from dpsrm.core.errors import InputError, ResumeError
from dpsrm.core.files import read_limited, sync_directory
from dpsrm.core.randomness import Streams

ORIGIN = "origin"
_LIMIT = 4096
_RESTORED = 10 * 10**9
"""Nanoseconds between the last write to a file and its last change: a write is both, restoring keeps the old time."""
_COPY = (
    "{} is a copy: the folder was copied, restored from a backup or moved to another disk. If two copies go on, the "
    "same noise is added to different sums, and both can be read. Go on with the original; or, if no other copy ever "
    "goes on and none went further than this one, say so by --moved (in Python moved=True)"
)


def keep_keys(path: Path, streams: Streams) -> None:
    """Create the file (which must not exist), mode 0600, on disk before this returns."""
    body = {"warning": "whoever has this key can remove the noise", "private": streams.private}
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            content = json.dumps({**body, "origin": _begun(path), "key": streams.surrender_key().hex()}).encode()
            if os.write(handle, content) != len(content):
                raise OSError("disk full")
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_directory(path.parent)
    except OSError as error:
        raise InputError(f"cannot keep the run's key in {path}: {error}") from error


def _begun(path: Path) -> list[int]:
    """Write the file beside the key that tells an original from a copy; its number and the time of its last change."""
    handle = os.open(path.with_name(ORIGIN), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, b"never written again: tells whether this folder is a copy\n")
        os.fsync(handle)
        return _facts(os.fstat(handle))
    finally:
        os.close(handle)


def _facts(file: os.stat_result) -> list[int]:
    """A file's number, and when it was last changed in any way, as the system has it."""
    return [file.st_ino, file.st_ctime_ns]


def read_keys(path: Path, *, moved: bool = False) -> Streams:
    """The streams of an interrupted run; `ResumeError` if the key is gone, malformed, readable by others, or a copy.

    Args:
        moved: the caller's word that of all copies only this one goes on.
    """
    if not path.exists():
        raise ResumeError(f"{path} is gone: the run is finished, or its key was destroyed; it cannot be resumed")
    if path.stat().st_mode & 0o077:
        raise ResumeError(f"{path} can be read by others, so the noise may be known; run chmod 600 if you are sure")
    try:
        body = json.loads(read_limited(path, _LIMIT))
        private, key = body["private"], bytes.fromhex(body["key"])
        if type(private) is not bool or len(key) != 32:
            raise ValueError("a key has 32 bytes")
        origin = path.with_name(ORIGIN)
        original = origin.exists() and body.get("origin") == _facts(origin.stat())
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        # the message must not quote the file's content
        raise ResumeError(f"{path} is not a key file ({type(error).__name__}); the run cannot be resumed") from None
    if private and not (original or moved):
        raise ResumeError(_COPY.format(path))
    return Streams(key, private=private)


def need_not_restored(path: Path) -> None:
    """Refuse a file of an interrupted run that an older one was put in the place of, with its old time.

    Edge cases: one that is gone is refused by who reads it.
    """
    if not path.exists():
        return
    facts = path.stat()
    if facts.st_ctime_ns - facts.st_mtime_ns > _RESTORED:
        raise ResumeError(_COPY.format(path))


def adopt_keys(path: Path, streams: Streams) -> None:
    """Make the copy an original, for which nobody has to give their word again."""
    new = path.with_suffix(".new")
    destroy_keys(new)  # of an attempt that was killed
    keep_keys(new, streams)
    with path.open("r+b", buffering=0) as old:
        new.replace(path)
        sync_directory(path.parent)
        old.write(bytes(os.fstat(old.fileno()).st_size))
        os.fsync(old.fileno())


def destroy_keys(path: Path) -> None:
    """Overwrite the key with zeros, then remove it: the noise can no longer be subtracted by anybody.

    Edge cases: nothing happens if it is gone. A file system that writes elsewhere (snapshots, some SSDs) may keep the
    old bytes: put run folders on encrypted disks.
    """
    try:
        handle = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return
    try:
        os.write(handle, bytes(os.fstat(handle).st_size))
        os.fsync(handle)
    finally:
        os.close(handle)
    path.unlink()
    path.with_name(ORIGIN).unlink(missing_ok=True)
    sync_directory(path.parent)


def pack_key(streams: Streams) -> bytes:
    """The key as the ranks of one run hand it to each other: secret, 33 bytes."""
    return bytes([streams.private]) + streams.surrender_key()


def unpack_key(packed: bytes) -> Streams:
    """The streams of the key that `pack_key` packed."""
    return Streams(packed[1:], private=bool(packed[0]))
