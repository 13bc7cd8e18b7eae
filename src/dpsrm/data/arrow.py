"""Parquet and Arrow tables as rows on disk: copied once, row group by row group, to where single rows can be read.

A Parquet file is compressed by pages, so one row costs a whole row group. The copy is plain columns in a file without a
name from its first row on, gone when the process ends, however it does; the original no longer matters then.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import InputError, need, need_extra
from dpsrm.core.tracking import Track
from dpsrm.data.frames import cells_of
from dpsrm.data.tables import Cell, Table, need_names

ROWS = 2**18
"""Rows that are copied together, and lie together in the copy."""
SUFFIXES = (".parquet", ".pq", ".arrow", ".feather")
MANY = 10_000
"""More different labels than this are not classes: looking for further ones ends."""


class TableFile:
    """A Parquet, Arrow or Feather file of which so far only the header was read."""

    def __init__(self, path: Path) -> None:
        """Read the names of the columns and the number of rows."""
        need_extra("pyarrow", extra="cli")
        import pyarrow as pa

        self._path = path
        try:
            self._open()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InputError(f"the file must be a whole Parquet or Arrow table; got {str(path)!r}: {error}") from error
        columns = need_names(list(self._schema.names))
        need(self.n > 0, "a table must have records", columns=columns)
        self.head = Table(columns, ((),) * len(columns))

    def _open(self) -> None:
        """The reader of the file's kind."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._path.suffix.lower() in (".parquet", ".pq"):
            self._parquet: Any = pq.ParquetFile(self._path)
            self._schema, self.n = self._parquet.schema_arrow, self._parquet.metadata.num_rows
        else:
            self._parquet = None
            file = pa.ipc.open_file(pa.memory_map(str(self._path)))
            self._schema = file.schema
            self.n = sum(file.get_batch(i).num_rows for i in range(file.num_record_batches))

    def opened(self, track: Track) -> ArrowRows:
        """The rows, copied to where they can be read one by one: a file that has no name when the first is written."""
        import pyarrow as pa

        folder = _scratch(self._path)
        with tempfile.TemporaryFile(dir=folder, prefix=".dpsrm-", suffix=".rows") as file:
            need(
                shutil.disk_usage(folder).free > 2 * self._path.stat().st_size,
                "reading a table row by row needs room for a copy of it on disk",
                folder=folder,
                remedy="set TMPDIR to a folder with more room, or keep the records in memory: data.in_memory=true",
            )
            try:
                self._copy(file, track)
                reader = pa.ipc.open_file(_mapped(file))
            except (pa.ArrowException, OSError, ValueError) as error:
                raise InputError(f"the file must be a whole table; got {str(self._path)!r}: {error}") from error
        rows = ArrowRows(reader, track)
        need(len(rows) == self.n, "the file must stay as it is while it is read", rows=len(rows), said=self.n)
        return rows

    def _copy(self, file: IO[bytes], track: Track) -> None:
        """Write all rows as plain columns, `ROWS` together."""
        import pyarrow as pa

        schema = pa.schema([(f.name, _plain_type(f.type)) for f in self._schema])
        with pa.ipc.new_file(file, schema) as sink:
            total = -(-self.n // ROWS)
            told = "copying the table to where rows can be read"
            for table in track(_gathered(self._batches(), schema), total, told):
                sink.write_table(table.combine_chunks(), max_chunksize=ROWS)

    def _batches(self) -> Iterator[Any]:
        """The rows, some at a time."""
        import pyarrow as pa

        if self._parquet is not None:
            yield from self._parquet.iter_batches(batch_size=ROWS)
            return
        file = pa.ipc.open_file(pa.memory_map(str(self._path)))
        yield from (file.get_batch(i) for i in range(file.num_record_batches))


def _scratch(path: Path) -> str:
    """Where the copy lies: $TMPDIR if it is set, else beside the file, else where temporary files are."""
    beside = str(path.resolve().parent)
    return tempfile.gettempdir() if "TMPDIR" in os.environ or not os.access(beside, os.W_OK) else beside


def _mapped(file: IO[bytes]) -> Any:
    """What was written to an open file, mapped by its descriptor: there is no name to open it by."""
    import pyarrow as pa

    file.flush()
    return pa.BufferReader(pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def _plain_type(kind: Any) -> Any:
    """What a column is without a dictionary, and without views of texts, of which single rows cannot be taken."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.large_string() if str(kind) == "string_view" else kind


def _gathered(batches: Iterator[Any], schema: Any) -> Iterator[Any]:
    """Tables of `ROWS` rows each (the last of fewer)."""
    import pyarrow as pa

    waiting = schema.empty_table()
    for batch in batches:
        waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch]).cast(schema)])
        while waiting.num_rows >= ROWS:
            yield waiting.slice(0, ROWS)
            waiting = waiting.slice(ROWS)
    if waiting.num_rows:
        yield waiting


class ArrowRows:
    """Rows of plain Arrow columns in a memory-mapped file without a name."""

    def __init__(self, reader: Any, track: Track) -> None:
        """Keep every group of rows; they stay on disk."""
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        self._schema = reader.schema
        self._columns = tuple(reader.schema.names)
        self._track = track
        self._ends = np.cumsum([batch.num_rows for batch in self._batches])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def at(self, positions: npt.NDArray[np.int64]) -> Table:
        """Some rows, in the order asked for; the time is that of these rows."""
        import pyarrow as pa

        order = np.argsort(positions, kind="stable")
        where = np.searchsorted(self._ends, positions[order], side="right")
        parts = []
        for group in np.unique(where).tolist():
            begin = int(self._ends[group]) - self._batches[group].num_rows
            parts.append(self._batches[group].take(pa.array(positions[order][where == group] - begin)))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        table = pa.Table.from_batches(parts).combine_chunks().take(pa.array(back))
        return Table(self._columns, tuple(cells_of(name, table.column(name)) for name in self._columns))

    def column(self, name: str) -> tuple[Cell, ...]:
        """All cells of one column."""
        import pyarrow as pa

        return cells_of(name, pa.chunked_array([batch.column(name) for batch in self._batches]))

    def blocks(self) -> Iterator[bytes | memoryview]:
        """The numbers and texts of every column, group by group, after their names and types."""
        yield repr([(field.name, str(field.type)) for field in self._schema]).encode()
        for batch in self._track(self._batches, len(self._batches), "fingerprint of the records"):
            for column in batch.columns:
                yield from (b"" if buffer is None else memoryview(buffer) for buffer in column.buffers())

    def labels(self, name: str | None) -> dict[Cell, int]:
        """The different labels and where each is first; a missing one is None."""
        import pyarrow as pa

        found: dict[Cell, int] = {}
        start = 0
        for batch in self._batches:
            column = batch.column(str(name))
            values = column.unique()
            for cell, value in zip(cells_of(str(name), pa.chunked_array([values])), values, strict=True):
                if cell not in found:
                    at = column.index(value) if value.is_valid else column.is_null().index(True)
                    found[cell] = start + at.as_py()
            start += batch.num_rows
            if len(found) > MANY:
                break
        return found
