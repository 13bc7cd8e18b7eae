"""Records on disk: what a draw reads is what memory would give; what cannot be trusted is refused."""

import os
import time

import numpy as np
import pytest
import torch

from dpsrm.core.errors import InputError
from dpsrm.data import MappedRecords, Records, TreeRecords, as_records
from dpsrm.data import mapped as mapped_module
from dpsrm.data.mapped import open_npy


@pytest.fixture
def on_disk(tmp_path):
    """Save an array and map it again."""

    def save(values, name="x.npy", mode="r"):
        np.save(tmp_path / name, values)
        return np.load(tmp_path / name, mmap_mode=mode)

    return save


def same(ours, theirs):
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "u1", "i2", "i8", "?"])
def test_a_draw_is_what_memory_would_give(on_disk, dtype):
    x = (np.arange(60).reshape(20, 3) % 7).astype(dtype)
    y = (np.arange(20) % 2).astype(np.uint8)
    native = x.astype(x.dtype.newbyteorder("="))
    found, memory = as_records((on_disk(x), on_disk(y, "y.npy"))), as_records((native, y))
    assert isinstance(found, MappedRecords)
    assert isinstance(memory, Records)
    for indices in ([3, 3, 0], [], [19]):
        same(found.take(np.array(indices, dtype=int)), memory.take(np.array(indices, dtype=int)))


def test_dictionaries_and_one_array_in_memory(on_disk):
    x = np.arange(40).reshape(10, 4)
    found = as_records({"ids": on_disk(x), "label": torch.arange(10)})
    assert isinstance(found, MappedRecords)
    expected = TreeRecords({"ids": torch.from_numpy(x), "label": torch.arange(10)}).take(np.array([7, 2]))
    assert {name: value.tolist() for name, value in found.take(np.array([7, 2])).items()} == {
        name: value.tolist() for name, value in expected.items()
    }


@pytest.mark.parametrize("index", [-1, 20])
def test_positions_outside_are_refused(on_disk, index):
    found = as_records((on_disk(np.zeros((20, 2))), np.zeros(20)))
    with pytest.raises(InputError, match=r"0\.\.n-1"):
        found.take(np.array([index]))


@pytest.mark.parametrize(
    ("x", "y", "rule"),
    [
        (np.zeros((4, 2)), np.zeros(5), "a row per record"),
        (np.zeros((0, 2)), np.zeros(0), "at least one record"),
        (np.zeros((4, 2), dtype=complex), np.zeros(4), "must be numbers"),
        (np.array([["a"], ["b"]]), np.zeros(2), "must be numbers"),
        (np.zeros((4, 2), dtype=np.uint64), np.zeros(4), "must be numbers"),
    ],
)
def test_bad_arrays_are_refused(on_disk, x, y, rule):
    with pytest.raises((InputError, ValueError), match=rule if len(x) else "record|empty"):
        as_records((on_disk(x), y))


def test_numbers_are_checked_when_drawn(on_disk):
    x = np.zeros((9, 2))
    x[5, 1] = np.nan
    found = as_records((on_disk(x), np.zeros(9)))
    found.take(np.array([4, 6]))
    with pytest.raises(InputError, match=r"must be finite; got row=5, column=1"):
        found.take(np.array([4, 5]))


def test_a_file_that_is_written_to_is_refused(on_disk, tmp_path):
    found = as_records((on_disk(np.zeros((9, 2))), np.zeros(9)))
    found.take(np.array([1]))
    time.sleep(0.01)
    np.load(tmp_path / "x.npy", mmap_mode="r+")[0, 0] = 1.0
    with pytest.raises(InputError, match=r"x.npy' was written to"):
        found.take(np.array([1]))


def test_writing_to_the_very_map_is_noticed(tmp_path):
    """The map's pages are dirty when it is handed over: they are written out, so that the next write tells."""
    x = np.memmap(tmp_path / "x.dat", dtype=np.float32, mode="w+", shape=(9, 2))
    x[:] = 1.0
    found = as_records((x, np.zeros(9)))
    found.take(np.array([1]))
    time.sleep(0.01)
    x[1, 1] = 2.0
    with pytest.raises(InputError, match="was written to"):
        found.take(np.array([1]))


def test_a_file_that_is_cut_is_refused_before_it_is_read(on_disk, tmp_path):
    found = as_records((on_disk(np.zeros((9000, 2))), np.zeros(9000)))
    os.truncate(tmp_path / "x.npy", 200)
    with pytest.raises(InputError, match="was written to"):
        found.take(np.array([8999]))
    with pytest.raises(InputError, match="whole"):
        open_npy(tmp_path / "x.npy")


def test_a_file_that_is_replaced_stays_as_it_was(on_disk, tmp_path):
    found = as_records((on_disk(np.zeros((9, 2))), np.zeros(9)))
    np.save(tmp_path / "other.npy", np.ones((9, 2)))
    (tmp_path / "other.npy").replace(tmp_path / "x.npy")
    assert found.take(np.array([1]))[0].sum() == 0


def test_the_fingerprint_goes_by_blocks_and_under_a_bar(on_disk, monkeypatch):
    shown = []

    def track(items, total, title):
        shown.append((total, title))
        return items

    x = np.random.default_rng(0).random((100, 4))
    whole = b"".join(MappedRecords((on_disk(x), np.zeros(100)), track).blocks())
    monkeypatch.setattr(mapped_module, "BLOCK", 320)
    found = MappedRecords((on_disk(x), np.zeros(100)), track)
    pieces = list(found.blocks())
    assert b"".join(pieces) == whole
    assert max(len(piece) for piece in pieces) <= 320
    assert shown == [(2, "fingerprint of the records"), (10 + 3, "fingerprint of the records")]
    other = x.copy()
    other[99, 3] += 1e-9
    assert b"".join(MappedRecords((on_disk(other, "o.npy"), np.zeros(100))).blocks()) != whole


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b"not an array"])
def test_open_npy_refuses_what_is_none(tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(InputError, match=r"must be a whole \.npy array"):
        open_npy(tmp_path / "x.npy")


def test_open_npy_executes_nothing(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match=r"must be a whole \.npy array"):
        open_npy(tmp_path / "x.npy")
