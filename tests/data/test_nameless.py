"""The copy of a table has no name while rows are written to it: killed at any moment, nothing of it stays."""

import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpsrm.core.errors import InputError
from dpsrm.data import Reading, load
from dpsrm.data import arrow as arrow_module
from packages import environment

N = 500
KILLED = """
import os, signal, sys
from dpsrm.data import Reading, arrow, load
arrow.ROWS = 64

def track(items, total, title):
    for at, item in enumerate(items):
        if at == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        yield item

load(sys.argv[1], "ill", reading=Reading(in_memory=False, track=track))
"""


@pytest.fixture(params=["t.parquet", "t.feather"])
def table(request, tmp_path):
    path = tmp_path / request.param
    frame = pd.DataFrame({"job": [f"person-{i}" for i in range(N)], "ill": np.arange(N) % 2})
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_feather(path)
    return path


def test_a_process_killed_while_it_copies_leaves_nothing(table):
    done = subprocess.run([sys.executable, "-c", KILLED, str(table)], check=False, env=environment())
    assert done.returncode == -signal.SIGKILL
    assert list(table.parent.iterdir()) == [table]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="asks Linux which files are open")
@pytest.mark.parametrize("flag", [True, False])
def test_rows_are_written_to_a_file_without_a_name(table, monkeypatch, flag):
    """Also where the file system knows no O_TMPFILE: it is unlinked while it is empty."""
    if not flag:
        monkeypatch.setattr("tempfile._O_TMPFILE_WORKS", False)
    monkeypatch.setattr(arrow_module, "ROWS", 64)
    seen = []

    def track(items, total, title):
        for item in items:
            seen.append([path.name for path in table.parent.iterdir()])
            yield item

    before = set(Path("/proc/self/fd").iterdir())
    found = load(table, "ill", reading=Reading(in_memory=False, track=track))
    assert len(seen) == 8
    assert all(names == [table.name] for names in seen)
    opened = [fd.stat() for fd in set(Path("/proc/self/fd").iterdir()) - before if fd.exists()]
    own = [file for file in opened if stat.S_ISREG(file.st_mode) and file.st_nlink == 0]
    assert [stat.S_IMODE(file.st_mode) for file in own] == [0o600]
    assert found.rows.take(np.array([3, 499]))[1].tolist() == [1, 1]


def test_a_full_disk_is_told_and_leaves_nothing(table, monkeypatch):
    class Full:
        """A file on a disk without room."""

        closed = False

        def __init__(self, *args, **options): ...

        def __enter__(self):
            return self

        def __exit__(self, *_): ...

        def write(self, content):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", Full)
    with pytest.raises(InputError, match="No space left"):
        load(table, "ill", reading=Reading(in_memory=False))
    assert list(table.parent.iterdir()) == [table]
