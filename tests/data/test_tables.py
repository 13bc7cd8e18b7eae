"""CSV and Parquet: cells as they stand, errors with their place."""

from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpsrm.core.errors import DpsrmError, InputError
from dpsrm.data.encoding import HashEncoder
from dpsrm.data.frames import read_parquet
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
