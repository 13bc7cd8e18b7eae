"""Tables that others made: Parquet and Arrow files, pandas frames and arrays, as cells."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import InputError, need, need_extra
from dpsrm.data.tables import Cell, Table, need_names

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def read_parquet(path: Path | str) -> Table:
    """Read a Parquet or Arrow file: numbers stay numbers, texts texts, null is missing, dates become ISO text; what is
    no whole file, duplicate columns, nested or binary columns raise `InputError`."""
    need_extra("pyarrow", extra="cli")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if Path(path).suffix.lower() in (".arrow", ".feather"):
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        else:  # ParquetFile, not read_table: the latter adds columns guessed from folder names
            table = pq.ParquetFile(path).read()
        columns = need_names(table.column_names)
        cells = tuple(cells_of(name, table.column(name)) for name in columns)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"the file must be a whole Parquet or Arrow table; got {str(path)!r}: {error}") from error
    need(table.num_rows > 0, "a table must have records", columns=columns)
    return Table(columns, cells)


def table_of_frame(frame: pd.DataFrame) -> Table:
    """The cells of a pandas DataFrame; the index is left out.

    Columns of numbers, booleans and dates have a type, which is public as a Parquet file's; their cells are those of
    that file. Columns of objects and categories have none, so each of their cells is read by itself.

    Guarantee: a cell is a function of what the record has there and the column's type; no other record is looked at.

    Edge cases: cells that are no number, text or date (bytes, lists, durations) raise `InputError`.
    """
    need_extra("pyarrow", extra="cli")
    columns = need_names([str(name) for name in frame.columns])
    need(len(frame) > 0, "a table must have records", columns=columns)
    return Table(columns, tuple(_series_cells(name, frame.iloc[:, j]) for j, name in enumerate(columns)))


def _series_cells(name: str, series: pd.Series[Any]) -> tuple[Cell, ...]:
    """One column of a DataFrame as cells.

    pyarrow would find one type for all objects of a column: the time zone of the first was everybody's.
    """
    import pyarrow as pa

    try:
        if series.dtype.kind != "O":
            return cells_of(name, pa.chunked_array([pa.Array.from_pandas(series)]))
        return tuple(_object_cell(value) for value in series.tolist())
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"a DataFrame must hold numbers, texts and dates; column {name!r}: {str(error)[:200]}"
        ) from error


def _object_cell(value: Any) -> Cell:
    """One object of a DataFrame as a cell; pandas' words for missing are None."""
    pandas = sys.modules["pandas"]  # of which the DataFrame is
    if value is pandas.NA or value is pandas.NaT:
        return None
    if isinstance(value, np.datetime64):
        return _object_cell(pandas.Timestamp(value))
    plain = isinstance(value, np.number | np.bool_) and not isinstance(value, np.timedelta64)  # whose item is an int
    return _cell(value.item() if plain else value)


def array_names(columns: int) -> tuple[str, ...]:
    """What the columns of an array are called: x0, x1, …"""
    return tuple(f"x{j}" for j in range(columns))


def table_of_array(x: npt.NDArray[np.float64], columns: Sequence[str]) -> Table:
    """An array's columns as those of a table, in their order; NaN is a missing cell.

    >>> table_of_array(np.array([[1.0, np.nan]]), ["age", "income"]).cells
    ((1.0,), (nan,))
    """
    need(
        x.ndim == 2 and x.shape[1] == len(columns),
        "an array must have a column for each that the model was made for",
        shape=x.shape,
        columns=tuple(columns),
    )
    return Table(tuple(columns), tuple(tuple(column) for column in x.T.tolist()))


def cells_of(name: str, column: pa.ChunkedArray) -> tuple[Cell, ...]:
    """One Parquet column as cells."""
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    readable = (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or str(kind) == "string_view"
        or types.is_date(kind)
        or types.is_time(kind)
        or types.is_timestamp(kind)
        or types.is_null(kind)
    )
    need(
        readable,
        "a Parquet column must hold numbers, texts, booleans or dates",
        column=name,
        type=str(kind),
        remedy="remove or flatten the column",
    )
    try:
        return tuple(_cell(value) for value in column.to_pylist())
    except (ValueError, OverflowError) as error:  # a date that Python has no word for
        if isinstance(error, InputError):
            raise
        raise InputError(f"cells must be numbers, texts and dates; column {name!r}: {str(error)[:200]}") from error


def _cell(value: object) -> Cell:
    """One value of a Parquet or pandas column as a cell."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and abs(value) > 2**53:
        return value  # an id, perhaps: as a float it might be another's
    if isinstance(value, (bool, int, float, Decimal)):
        return float(value)
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    raise InputError(f"a value must be a number, text or date; got {type(value).__name__}; convert it to text")
