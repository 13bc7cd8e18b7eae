"""Files larger than memory: the same records as in memory, read a draw at a time; hostile files are refused."""

import numpy as np
import pandas as pd
import pytest
import torch

from dpsrm.core.errors import InputError
from dpsrm.data import EncodedRecords, Reading, load, load_like
from dpsrm.data import arrow as arrow_module

DISK = Reading(in_memory=False)
N = 500


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "who": rng.integers(0, 40, N),
            "age": rng.integers(18, 90, N).astype(float),
            "job": pd.Categorical(rng.choice(["nurse", "cook", None], N)),
            "seen": pd.to_datetime("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, N), unit="D"),
            "ill": rng.choice(["yes", "no"], N),
        }
    )


def write(frame, path, **options):
    frame.to_feather(path, **options) if path.suffix in (".arrow", ".feather") else frame.to_parquet(path, **options)
    return path


def need_equal(disk, memory):
    assert isinstance(disk.rows, EncodedRecords)
    assert disk.description == memory.description
    assert len(disk.rows) == len(memory.records) == disk.n
    for indices in ([3, 499, 3, 0, 250], [], list(range(N))[::-1]):
        x, y = disk.rows.take(np.array(indices, dtype=int))
        expected = memory.records.take(np.array(indices, dtype=int))
        assert torch.equal(x, expected[0])
        assert torch.equal(y, expected[1])


@pytest.mark.parametrize("name", ["x.parquet", "x.pq", "x.arrow", "x.feather"])
def test_tables(frame, tmp_path, name, monkeypatch):
    monkeypatch.setattr(arrow_module, "ROWS", 64)
    options = {"row_group_size": 37} if name == "x.parquet" else {}
    path = write(frame, tmp_path / name, **options)
    need_equal(load(path, "ill", reading=DISK), load(path, "ill", reading=Reading(in_memory=True)))
    assert sorted(p.name for p in tmp_path.iterdir()) == [name], "the copy has no name"


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view"])
def test_texts_of_every_kind(frame, tmp_path, kind):
    """Those of the newest kind were read in memory, and on disk stopped the first step in pyarrow's words."""
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pandas(frame[["age", "job", "ill"]])
    job = table.column("job").cast(pa.string()).cast(getattr(pa, kind)())
    path = tmp_path / "x.arrow"
    table = table.set_column(1, "job", job)
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=100)
    need_equal(load(path, "ill", reading=DISK), load(path, "ill", reading=Reading(in_memory=True)))


def test_small_tables_are_kept_in_memory(frame, tmp_path, monkeypatch):
    path = write(frame, tmp_path / "x.parquet")
    assert len(load(path, "ill").records) == N
    monkeypatch.setattr("dpsrm.data.stored.IN_MEMORY", 4 * N * 100)
    assert isinstance(load(path, "ill").rows, EncodedRecords)
    with pytest.raises(InputError, match="stay on disk"):
        _ = load(path, "ill").records
    assert len(load_like(path, load(path, "ill")).records) == N


def test_only_drawn_rows_are_encoded(frame, tmp_path, monkeypatch):
    found = load(write(frame, tmp_path / "x.parquet"), "ill", reading=DISK)
    sizes = []
    kept = type(found.encoder).encode
    monkeypatch.setattr(type(found.encoder), "encode", lambda self, t: sizes.append(len(t)) or kept(self, t))
    found.rows.take(np.array([1, 2]))
    assert sizes == [2]


def test_units(frame, tmp_path):
    path = write(frame, tmp_path / "x.parquet")
    disk, memory = (load(path, "ill", unit="who", reading=Reading(in_memory=kept)) for kept in (False, True))
    assert disk.n == memory.n == frame["who"].nunique()
    assert np.array_equal(disk.units.order, memory.units.order)
    assert torch.equal(disk.rows.take(np.arange(9))[0], memory.records.take(np.arange(9))[0])


def test_numbers_to_predict(frame, tmp_path):
    path = write(frame, tmp_path / "x.parquet")
    args = {"target_range": (0, 100)}
    need_equal(load(path, "age", **args, reading=DISK), load(path, "age", **args))


@pytest.mark.parametrize("labels", ["numbers", "texts"])
def test_npy(tmp_path, labels):
    rng = np.random.default_rng(1)
    x, y = rng.random((N, 3)).astype(np.float32), rng.integers(0, 2, N)
    y = y if labels == "numbers" else np.where(y, "yes", "no")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    np.savez(tmp_path / "both.npz", X=x, y=y)
    need_equal(load(tmp_path / "x.npy", str(tmp_path / "y.npy")), load(tmp_path / "both.npz"))
    scaled = load(tmp_path / "x.npy", str(tmp_path / "y.npy"), normalise=True).rows.take(np.arange(5))[0]
    assert torch.allclose(scaled.norm(dim=1), torch.ones(5))


# what is refused


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda f: f.assign(ill=[*["yes"] * 299, None, *["no"] * 200]), r"must have a label; got row=300"),
        (lambda f: f.assign(ill=[*["yes"] * 299, "perhaps", *["no"] * 200]), r"must be one of .*row=300"),
        (lambda f: f.assign(ill=[*["yes"] * 299, "1", *["no"] * 200]), "one pair of values"),
        (lambda f: f.drop(columns="ill"), "the target must be a column"),
        (lambda f: f.assign(tags=[[1]] * N), "numbers, texts, booleans or dates"),
    ],
)
def test_bad_labels_and_columns(frame, tmp_path, change, rule, monkeypatch):
    monkeypatch.setattr(arrow_module, "ROWS", 64)
    path = write(change(frame), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=rule):
        load(path, "ill", reading=DISK).rows.take(np.arange(3))


def test_an_infinite_cell_is_found_when_drawn(frame, tmp_path):
    frame.loc[77, "age"] = np.inf
    found = load(write(frame, tmp_path / "x.parquet"), "ill", reading=DISK)
    found.rows.take(np.arange(5))
    with pytest.raises(InputError, match=r"column='age', row=2, .*within this draw of 2 records"):
        found.rows.take(np.array([3, 77]))


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_cut_file(frame, tmp_path, keep):
    path = write(frame, tmp_path / "x.parquet")
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(InputError, match="must be a whole Parquet or Arrow table"):
        load(path, "ill", reading=DISK)


def test_a_file_without_rows(frame, tmp_path):
    with pytest.raises(InputError, match="must have records"):
        load(write(frame[:0], tmp_path / "x.parquet"), "ill", reading=DISK)


def test_what_happens_to_the_file_later_does_not_matter(frame, tmp_path):
    path = write(frame, tmp_path / "x.parquet")
    found = load(path, "ill", reading=DISK)
    before, prints = found.rows.take(np.arange(9))[0], b"".join(found.rows.blocks())
    path.write_bytes(b"changed")
    assert torch.equal(found.rows.take(np.arange(9))[0], before)
    assert b"".join(found.rows.blocks()) == prints
    again = load(write(frame.assign(age=frame["age"] + 1), path), "ill", reading=DISK)
    assert b"".join(again.rows.blocks()) != prints


@pytest.mark.parametrize(
    ("x", "y", "rule"),
    [
        (np.zeros((5, 2)), np.zeros(4), "one label per record"),
        (np.zeros(5), np.zeros(5), "row per record and a column per feature"),
        (np.full((5, 2), 1e6), np.zeros(5), "norm of at most 100"),
        (np.zeros((5, 2)), np.array([0, 1, 2, 0, 1]), "must be one of"),
        (np.array([["a"]]), np.zeros(1), "must hold numbers"),
    ],
)
def test_bad_npy(tmp_path, x, y, rule):
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(InputError, match=rule):
        load(tmp_path / "x.npy", str(tmp_path / "y.npy"))


def test_npy_needs_its_labels(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((5, 2)))
    for target in (None, "label", str(tmp_path / "none.npy")):
        with pytest.raises(InputError, match=r"\.npy"):
            load(tmp_path / "x.npy", target)
