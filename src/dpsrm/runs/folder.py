"""The run folder: what can be published, beside it `private/`, which must not be, and in that the key of its streams.

The key is on disk from before the first charge until the run ends, readable by its owner alone. Whoever has it can
subtract the noise. It is in this one file, and never in a checkpoint, ledger, report or log. Two folders that went on
with one key would add the same noise to different sums, and so would a folder that an old copy was put back into. So
the key names a file beside it that nobody ever writes again, by its number (inode) and the time of its last change,
which the system sets and no copying tool can: a copy resumes nothing.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsrm.core.errors import InputError, ResumeError, need
from dpsrm.core.files import hold_lock, read_limited, sha256_of, sync_directory, write_atomically
from dpsrm.core.secret import Streams

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


PRIVATE_NOTE = """\
Not for publication. Everything in this folder is an exact function of private records (losses, gradient norms, clip
shares, metrics on test data, a non-private reference) and carries no differential privacy guarantee.
"""


def need_outside(path: Path) -> None:
    """Refuse a place in the published part of a run folder: the run would not verify any more."""
    above = path.resolve().parents
    for run in map(RunFolder, above):
        inside = run.ledger.is_file() and run.config.is_file() and run.private not in above
        rule = "what lies in a run folder, outside of its private/, keeps it from verifying"
        need(not inside, rule, place=str(path), run=str(run.path), remedy="choose another place")


class _RunFile:
    """Where a file of a run lies, asked of its `RunFolder`."""

    def __init__(self, name: str) -> None:
        """Its path inside the run folder."""
        self._name = name

    def __get__(self, run: RunFolder, _: object = None) -> Path:
        """In this run's folder."""
        return run.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Where each file of a run lies."""

    path: Path

    ledger = _RunFile("ledger.jsonl")  # what was charged
    model = _RunFile("model.safetensors")  # the trained parameters
    config = _RunFile("config.toml")  # the settings, as they were used
    environment = _RunFile("environment.json")  # versions of what ran
    certificate = _RunFile("certificate.md")  # the guarantee in plain words
    report = _RunFile("report.html")  # the guarantee as a page to show to others
    statement = _RunFile("statement.json")  # the same for machines
    card = _RunFile("model_card.md")  # the same as a model card
    private = _RunFile("private")  # for the operator's eyes only
    private_report = _RunFile("private/report.html")  # utility, learning curves and advice, for the operator
    keys = _RunFile("private/keys.json")  # the stream key of a run that is not finished
    checkpoint = _RunFile("private/checkpoint.safetensors")  # where a run that is not finished stands
    sums = _RunFile("private/sums.log")  # fingerprints of what the releases of a run that is not finished were made of
    lock = _RunFile("private/lock")  # held by the process that trains here

    @property
    def bound(self) -> tuple[Path, ...]:
        """The published files whose digests stand in the ledger's closing line: all but the ledger."""
        said = self.statement, self.card, self.report, self.certificate
        return self.config, self.environment, self.model, *said

    @contextmanager
    def create(self, *, overwrite: bool = False) -> Iterator[None]:
        """Make the folder and hold it; an existing run is emptied only if `overwrite`, and nothing but a run ever is.

        Guarantee: nobody else trains in the folder meanwhile, or has it overwritten (see `hold`). The folder itself and
        its lock stay when a run is overwritten, so there is no moment at which two could take it.
        """
        if self.path.exists():
            need(
                overwrite,
                "the run folder must not exist yet",
                out=str(self.path),
                remedy="choose another out=, or overwrite=True (what it spent stays spent); a run that was interrupted "
                "goes on by dpsrm.resume, or by resume=True of make_private",
            )
            self._need_run()
        need_outside(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=overwrite)
            self.private.mkdir(exist_ok=overwrite)
            self.private.chmod(0o700)
        except OSError as error:
            raise InputError(f"cannot create the run folder {self.path}: {error}; choose another --out") from error
        with self.hold():
            self._need_run()
            try:
                self._empty()
                (self.private / "README.txt").write_text(PRIVATE_NOTE)
            except OSError as error:
                raise InputError(f"cannot empty the run folder {self.path}: {error}; choose another --out") from error
            yield

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Be the only process in this folder, and in the runs inside it; the lock ends with the process.

        Edge cases: `InputError` if another process trains here, or into a reference run inside `private/`.
        """
        with ExitStack() as held:
            held.enter_context(hold_lock(self.lock))
            for inner in sorted(self.private.glob("**/private/lock")):
                held.enter_context(hold_lock(inner))
            yield

    def _need_run(self) -> None:
        """Refuse to remove anything but a run, perhaps one killed while it was being made or removed."""
        parts = {path.name for path in (*self.bound, self.private, self.ledger)}
        found = [path.name for path in self.path.iterdir()] if self.path.is_dir() else ["no folder"]
        others = sorted(name for name in found if name.removesuffix(".tmp").removesuffix(".part") not in parts)
        rule, remedy = "only a run folder can be overwritten", "move what is no part of a run, or choose another --out"
        need(not others, rule, out=str(self.path), others=others[:5], remedy=remedy)

    def _empty(self) -> None:
        """Remove everything but the lock, the key first."""
        destroy_keys(self.keys)
        for each in [*self.path.iterdir(), *self.private.iterdir()]:
            if each in (self.private, self.lock):
                continue
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                each.unlink()

    def digests(self, *paths: Path) -> dict[str, str]:
        """The SHA-256 of some of the run's files, by name; `InputError` if one cannot be read."""
        try:
            return {path.name: sha256_of(path) for path in paths}
        except OSError as error:
            raise InputError(f"a file of the run cannot be read: {error}; put it back, or train a new run") from error

    def destroy_key(self) -> None:
        """Destroy the key and remove checkpoint and fingerprints of a run that has ended."""
        destroy_keys(self.keys)
        self.checkpoint.unlink(missing_ok=True)
        self.sums.unlink(missing_ok=True)

    def write_json(self, path: Path, value: dict[str, Any]) -> None:
        """Write a JSON file for people and machines."""
        write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def write_environment(self) -> None:
        """Record the versions of what ran; nothing about the machine's owner."""
        found = versions()
        self.write_json(self.environment, {"python": found.pop("python"), "packages": found})


def versions() -> dict[str, str]:
    """The versions of what runs."""
    names = ("dpsrm", "torch", "numpy", "scipy", "dp-accounting", "randomgen", "safetensors")
    packages = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), **packages}
