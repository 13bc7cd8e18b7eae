"""Tables that others made: Parquet and Arrow files, pandas frames and arrays, as cells."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

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
    """The cells of a pandas DataFrame, as those of the Parquet file it would be written to; the index is left out.

    Edge cases: columns that Parquet could not hold (of mixed types, for instance) raise `InputError`.
    """
    need_extra("pyarrow", extra="cli")
    import pyarrow as pa

    columns = need_names([str(name) for name in frame.columns])
    try:
        table = pa.Table.from_pandas(frame.set_axis(list(columns), axis=1), preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"a DataFrame's columns must hold one type each; got {str(error)[:200]}") from error
    need(len(frame) > 0, "a table must have records", columns=columns)
    return Table(columns, tuple(cells_of(name, table.column(name)) for name in columns))


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
    return tuple(_cell(value) for value in column.to_pylist())


def _cell(value: object) -> Cell:
    """One Parquet value as a cell."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and abs(value) > 2**53:
        return value  # an id, perhaps: as a float it might be another's
    if isinstance(value, (bool, int, float, Decimal)):
        return float(value)
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    raise InputError(f"a Parquet value must be a number, text or date; got {type(value).__name__}; convert it to text")
