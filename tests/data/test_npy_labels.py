"""Labels in a .npy file of their own, texts too: part of the fingerprint, watched like the records."""

import subprocess
import sys
import time

import numpy as np
import pytest

from dpsrm.core.errors import InputError
from dpsrm.core.secret import Streams
from dpsrm.data import load
from dpsrm.data import stored as stored_module
from packages import environment

N = 300


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(2)
    np.save(tmp_path / "x.npy", rng.random((N, 3)).astype(np.float32))
    np.save(tmp_path / "y.npy", np.where(rng.random(N) < 0.5, "no", "yes"))
    return tmp_path


def loaded(files):
    return load(files / "x.npy", str(files / "y.npy"), classes=["no", "yes"])


def tag(files):
    return Streams.seeded(1).tag(loaded(files).rows.blocks())


def rewrite(files, change, name="y"):
    """Change a file in place, as whoever has it mapped does."""
    time.sleep(0.01)  # the file system's clock ticks
    array = np.load(files / f"{name}.npy", mmap_mode="r+")
    array[:] = change(array)
    array.flush()


def test_the_fingerprint_is_of_the_files_and_nothing_else(files, monkeypatch):
    """Whatever was in memory before: NumPy's uninitialised arrays hold something else each time."""
    fills = iter(range(100))
    monkeypatch.setattr(np, "empty", lambda shape, dtype=float: np.full(shape, next(fills), dtype=dtype))
    assert tag(files) == tag(files)


def test_the_fingerprint_is_the_same_in_another_process(files):
    code = (
        "import hashlib, sys; from dpsrm.data import load\n"
        "found = load(sys.argv[1] + '/x.npy', sys.argv[1] + '/y.npy', classes=['no', 'yes'])\n"
        "print(hashlib.sha256(b''.join(found.rows.blocks())).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(files)]
    prints = {
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment()).stdout for _ in range(2)
    }
    assert len(prints) == 1


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("y", lambda y: np.where(np.arange(N) == N - 1, np.where(y == "no", "yes", "no"), y)),
        ("x", lambda x: x + (np.arange(N) == N - 1)[:, None] * np.float32(0.1)),
    ],
)
def test_one_changed_cell_is_another_fingerprint(files, name, change):
    before = tag(files)
    rewrite(files, change, name)
    assert tag(files) != before


def test_the_same_bytes_read_otherwise_are_another_fingerprint(files):
    """U+0100 in one byte order is U+10000 in the other."""
    tags = []
    for kind in ("<U1", ">U1"):
        np.save(files / "y.npy", np.full(N, 256, dtype="<u4").view(kind))
        rows = stored_module.ArrayFile(files / "x.npy", str(files / "y.npy")).opened(lambda items, *_: items)
        tags.append(Streams.seeded(1).tag(rows.blocks()))
    assert tags[0] != tags[1]


def test_texts_are_hashed_by_blocks(files, monkeypatch):
    monkeypatch.setattr("dpsrm.data.mapped.BLOCK", 240)
    assert max(len(piece) for piece in loaded(files).rows.blocks()) <= 240


# files that change meanwhile


@pytest.mark.parametrize("texts", [True, False])
def test_labels_that_are_rewritten_between_two_draws_are_refused(files, texts):
    if not texts:
        np.save(files / "y.npy", np.arange(N) % 2)
    found = load(files / "x.npy", str(files / "y.npy"))
    found.rows.take(np.arange(5))
    rewrite(files, lambda y: y[::-1].copy())
    with pytest.raises(InputError, match=r"y\.npy' was written to; nothing was released; [^()]*$"):
        found.rows.take(np.arange(5))


def test_labels_that_are_rewritten_while_they_are_read_are_refused(files, monkeypatch):
    found = loaded(files)
    kept = stored_module._labels

    def slow(values):
        rewrite(files, lambda y: y[::-1].copy())
        return kept(values)

    monkeypatch.setattr(stored_module, "_labels", slow)
    with pytest.raises(InputError, match=r"y\.npy' was written to"):
        found.rows.take(np.arange(5))


def test_labels_that_are_no_texts_are_refused(files):
    np.save(files / "y.npy", np.full(N, 2**32 - 1, dtype=np.uint32).view("<U1"))
    with pytest.raises(InputError, match="texts of characters"):
        loaded(files)
    whole = (files / "y.npy").read_bytes()
    (files / "y.npy").write_bytes(whole.replace(b"<U1", b"<U0"))
    with pytest.raises(InputError, match="labels must be numbers or texts"):
        loaded(files)
