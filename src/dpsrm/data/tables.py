"""Read CSV and Parquet into cells, inferring nothing from them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import InputError, need, need_extra
from dpsrm.data.cells import Cell, Table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def read_csv(raw: bytes) -> Table:
    """Parse UTF-8 delimited text with a header line into text cells.

    The delimiter is the one of comma, semicolon and tab that the header line has most of.

    Guarantee: no type, category or missing value is inferred; every cell stays its own text.

    Edge cases: blank lines are skipped; undecodable bytes, a row of another length, duplicate or empty column
    names, and a file without records raise `InputError` with the line.

    >>> read_csv(b"age,job\\n31,nurse\\n,?\\n").cells
    (('31', ''), ('nurse', '?'))
    """
    text = _decode(raw)
    need(bool(text.strip()), "a table must have a header line; the file is empty")
    header_line = re.sub('"[^"]*"', "", text.lstrip().splitlines()[0])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header_line.count), strict=True)
    try:
        header = need_names([name.strip() for name in next(row for row in reader if row)])
        rows = [_need_width(row, header, reader.line_num) for row in reader if row]
    except csv.Error as error:
        raise InputError(f"the file must be a CSV table; got line={reader.line_num}: {error}") from error
    need(bool(rows), "a table must have records below its header", columns=header)
    return Table(header, tuple(zip(*rows, strict=True)))


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


def split_target(table: Table, target: str | None) -> tuple[Table, tuple[Cell, ...]]:
    """The table without the target column, and that column's cells.

    >>> split_target(Table(("a", "y"), (("1",), ("no",))), "y")
    (Table(columns=('a',), cells=(('1',),)), ('no',))
    """
    columns = table.columns
    remedy = f"the columns are {', '.join(columns)}"
    need(target is not None, "a table needs the name of its target column", target=target, remedy=remedy)
    need(target in columns, "the target must be a column of the file", target=target, remedy=remedy)
    need(len(columns) > 1, "a table must have a feature beside its target", columns=columns)
    at = columns.index(str(target))
    features = Table(columns[:at] + columns[at + 1 :], table.cells[:at] + table.cells[at + 1 :])
    return features, table.cells[at]


def _decode(raw: bytes) -> str:
    """UTF-8 text, with or without a byte-order mark; an error names the line."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(
            f"the file must be UTF-8 text; got line={line}, byte={raw[error.start : error.start + 1]!r}; "
            "convert it, for example with iconv -t UTF-8"
        ) from error


def need_names(columns: list[str]) -> tuple[str, ...]:
    """Column names: each there, and once."""
    for number, name in enumerate(columns, 1):
        need(
            name != "",
            "every column must have a name",
            column=number,
            remedy="name it; pandas writes tables without its unnamed index with index=False",
        )
        need(columns.count(name) == 1, "column names must differ", name=name, columns=tuple(columns))
    return tuple(columns)


def _need_width(row: list[str], header: tuple[str, ...], line: int) -> list[str]:
    """A row as long as the header."""
    need(
        len(row) == len(header),
        "every row must have as many cells as the header",
        line=line,
        cells=len(row),
        header=len(header),
        remedy="quote cells that contain the delimiter",
    )
    return row


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
