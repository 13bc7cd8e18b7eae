"""A lock that a process holds while it trains in a folder, and that ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpsrm.core.errors import InputError


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
