"""CSV and Parquet: cells as they stand, errors with their place."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpsrm.core.errors import DpsrmError, InputError
from dpsrm.data.encoding import HashEncoder
from dpsrm.data.frames import read_parquet, table_of_frame
from dpsrm.data.load import load, load_like
from dpsrm.data.tables import Table, read_csv, split_target
from dpsrm.data.unlabelled import encode_unlabelled


def test_cells_stay_their_own_text():
    table = read_csv(b'\xef\xbb\xbfid, name \r\n007,"Smith, ""J"""\r\n\r\n1.50,NA\r\n')
    assert table == Table(("id", "name"), (("007", "1.50"), ('Smith, "J"', "NA")))


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_header_tells_the_delimiter(mark):
    assert read_csv(f'a{mark}"b,;c"\n1{mark}2\n'.encode()).columns == ("a", "b,;c")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", ["empty"]),
        (b" \n\n", ["empty"]),
        (b"a,b\n", ["records"]),
        (b"a,b\n1,2\n\n1,2,3\n", ["line=4", "cells=3", "header=2"]),
        (b"a,b\n1\n", ["line=2", "cells=1"]),
        (b"a,a\n1,2\n", ["differ", "'a'"]),
        (b",a\n0,2\n", ["column=1", "index=False"]),
        (b"a,b\n1,2\n\xff,3\n", ["line=3", "UTF-8"]),
        (b'a,b\n1,"2\n', ["line=2"]),
        (b'a,b\n1,"2"3\n', ["line=2"]),
    ],
)
def test_bad_csv_is_named(raw, words):
    with pytest.raises(InputError) as caught:
        read_csv(raw)
    assert all(word in str(caught.value) for word in words), caught.value


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.binary(max_size=60) | st.text('a1,;"\t\r\n\0 ?', max_size=40).map(str.encode))
@example(b'"')
@example(b"\x0c\na")
@example(b"a\x1e\n1")
def test_any_bytes_are_a_table_or_an_input_error(raw):
    try:
        table = read_csv(raw)
        x = HashEncoder(table.columns).encode(table)
    except DpsrmError:
        return
    assert len(x) == len(table) > 0
    assert np.isfinite(x).all()


def test_parquet_cells(tmp_path):
    path = tmp_path / "year=2020"  # a folder name that other readers turn into a column
    path.mkdir()
    columns = {
        "i": pa.array([1, None]),
        "f": pa.array([0.5, float("nan")]),
        "s": pa.array(["x", None]).dictionary_encode(),
        "b": pa.array([True, None]),
        "d": pa.array([date(2020, 2, 3), None]),
        "m": pa.array([Decimal("1.5"), None]),
        "n": pa.nulls(2),
    }
    pq.write_table(pa.table(columns), path / "t.parquet")
    table = read_parquet(path / "t.parquet")
    assert table.columns == tuple(columns)
    assert [cells[0] for cells in table.cells] == [1.0, 0.5, "x", 1.0, "2020-02-03", 1.5, None]
    missing = HashEncoder(table.columns, normalise=False).encode(
        Table(table.columns, tuple((c[1],) for c in table.cells))
    )
    assert missing.sum() == len(columns)


def test_parquet_and_csv_encode_alike(tmp_path):
    csv = read_csv(b"age,job\n31,nurse\n,cook\n2.5,?\n")
    pq.write_table(pa.table({"age": [31, None, 2.5], "job": ["nurse", "cook", None]}), tmp_path / "t.parquet")
    encoder = HashEncoder(("age", "job"))
    np.testing.assert_array_equal(encoder.encode(csv), encoder.encode(read_parquet(tmp_path / "t.parquet")))


def test_bad_parquet_is_named(tmp_path):
    path = tmp_path / "t.parquet"
    for raw in (b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"):
        path.write_bytes(raw)
        with pytest.raises(InputError, match="Parquet"):
            read_parquet(path)
    pq.write_table(pa.table({"v": [[1, 2]]}), path)
    with pytest.raises(InputError, match="column='v'"):
        read_parquet(path)
    pq.write_table(pa.table({"v": pa.array([], pa.float64())}), path)
    with pytest.raises(InputError, match="records"):
        read_parquet(path)
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["v", "v"]), path)
    with pytest.raises(InputError, match="differ"):
        read_parquet(path)


JAPAN = timezone(timedelta(hours=9))
DAYS = [datetime(2020, 1, k, 1, tzinfo=UTC) for k in range(1, 5)]


@pytest.mark.parametrize(
    ("others", "one"),
    [
        (DAYS, datetime(2020, 1, 1, 1, tzinfo=JAPAN)),
        (DAYS, datetime(2020, 1, 1, 1)),
        ([day.replace(tzinfo=None) for day in DAYS], DAYS[0]),
        ([day.replace(tzinfo=None) for day in DAYS], pd.Timestamp("2020-01-01T00:00:00.000000001")),
        ([day.date() for day in DAYS], datetime(2020, 1, 1, 3)),
        ([time(1), time(2)], "noon"),
        ([1, 2, 2**53 + 1], 0.5),
        ([True, False], "perhaps"),
    ],
)
@pytest.mark.parametrize("kind", [object, "category"])
def test_no_object_of_a_frame_changes_another(others, one, kind):
    """One type for the whole column would be one time zone for all: that of the first record."""

    def features(cells):
        table = table_of_frame(pd.DataFrame({"seen": pd.Series(cells, dtype=object).astype(kind)}))
        return HashEncoder(table.columns).encode(table)

    alone = features(others)
    np.testing.assert_array_equal(features([one, *others])[1:], alone)
    np.testing.assert_array_equal(features([*others, one])[:-1], alone)


def test_frames_and_parquet_have_the_same_cells(tmp_path):
    frame = pd.DataFrame(
        {
            "i": [1, 2],
            "s": ["x", None],
            "c": pd.Categorical(["x", None]),
            "o": pd.Series([Decimal("1.5"), pd.NA], dtype=object),
            "t": pd.Series([datetime(2020, 1, 2, 3), pd.NaT], dtype=object),
            "d": pd.to_datetime(["2020-01-02", None]).tz_localize("Asia/Tokyo"),
            "n": pd.Series([np.int64(3), np.datetime64("2020-01-02", "ns")], dtype=object),
        }
    )
    frame.drop(columns="n").to_parquet(tmp_path / "t.parquet")
    table, read = table_of_frame(frame), read_parquet(tmp_path / "t.parquet")
    encoder = HashEncoder(read.columns)
    np.testing.assert_array_equal(encoder.encode(table.split("n")[0]), encoder.encode(read))
    assert table.cells[-1] == (3.0, "2020-01-02T00:00:00")


@pytest.mark.parametrize("bad", [b"x", [1], np.timedelta64(1, "ns"), timedelta(1), 1j, object()])
def test_objects_that_are_no_cells_are_refused(bad):
    with pytest.raises(InputError, match="column 'v'"):
        table_of_frame(pd.DataFrame({"v": pd.Series([1.0, bad], dtype=object)}))


def test_target_column():
    table = Table(("a", "y", "b"), (("1",), ("2",), ("3",)))
    assert split_target(table, "y") == (Table(("a", "b"), (("1",), ("3",))), ("2",))
    for target in (None, "z"):
        with pytest.raises(InputError, match="a, y, b"):
            split_target(table, target)
    with pytest.raises(InputError, match="feature"):
        split_target(Table(("y",), (("1",),)), "y")


def test_nul_bytes_are_refused():
    with pytest.raises(InputError, match="NUL bytes; got line=2"):
        read_csv(b"age,job\n3\0,nurse\n")


def test_decimal_commas_are_refused_where_they_would_be_hashed(tmp_path):
    (tmp_path / "comma.csv").write_text("weight;job;ill\n70;a,b;yes\n121,2;c;no\n;d;no\n")
    (tmp_path / "point.csv").write_text("weight;job;ill\n70;a,b;yes\n121.2;1,2;no\n;d;no\n")
    loaded = load(tmp_path / "point.csv", "ill")
    says = "written with a point.*column='weight', cell='121,2'"
    for read in (
        lambda: load(tmp_path / "comma.csv", "ill"),
        lambda: load_like(tmp_path / "comma.csv", loaded),
        lambda: encode_unlabelled(tmp_path / "comma.csv", loaded.encoder, target="ill"),
    ):
        with pytest.raises(InputError, match=says):
            read()


def test_columns_that_should_not_be_texts_are_told(tmp_path, caplog):
    rows = [f"{1 + i % 28}.09.2022,${i},{i}%,note {i},nurse,{i},{'yes' if i % 2 else 'no'}" for i in range(150)]
    (tmp_path / "x.csv").write_text("\n".join(["seen,cost,share,note,job,age,ill", *rows]) + "\n")
    loaded = load(tmp_path / "x.csv", "ill")
    (told,) = [record.getMessage() for record in caplog.records]
    assert "seen (dates), cost (money), share (per cent), note (free text): read as texts" in told
    assert "for your eyes only" in told
    assert "free text" not in str(loaded.description), "nothing of it is published"
    caplog.clear()
    (tmp_path / "y.csv").write_text("job,version,ill\nnurse,1.2.3,yes\ncook,1.2.4,no\n")
    load(tmp_path / "y.csv", "ill")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("kind", "cell", "words"),
    [
        ('number", min = 0, max = 9', "$1,200", "not \\$1,200.50"),
        ('date", min = 2020-01-01, max = 2024-12-31', "11.09.2022", "2024-05-31"),
    ],
)
def test_how_a_cell_of_a_schema_is_written(tmp_path, kind, cell, words):
    (tmp_path / "s.toml").write_text(f'columns.a = {{kind = "{kind}}}\n')
    (tmp_path / "x.csv").write_text(f'a,ill\n"{cell}",yes\n')
    with pytest.raises(InputError, match=words):
        load(tmp_path / "x.csv", "ill", schema=tmp_path / "s.toml")
