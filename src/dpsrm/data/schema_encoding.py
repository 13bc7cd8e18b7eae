"""Encode a table by a schema whose ranges and categories the user declared public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import InputError, need
from dpsrm.data.cells import Cell, Table, cell_text, read_cell, shown
from dpsrm.data.encoding import MISSING_RULE, Floats, distinct_cells, need_columns, need_finite, unit_norm
from dpsrm.data.schema import Category, Column, Ignored, Number, Schema


@dataclass(frozen=True)
class SchemaEncoder:
    """Features of a table whose ranges and categories the user declared public.

    A number is clamped to [min, max] and mapped to [-1, 1]; a category is one-hot over its values and
    "other"; each column ends in a missing indicator. Then the record is scaled to norm 1.

    Edge cases: text or an infinity in a number column, a column the schema does not know, and a column the
    table lacks raise `InputError`.

    >>> from dpsrm.data.schema import schema_from
    >>> schema = schema_from({"columns": {"age": {"kind": "number", "min": 0, "max": 100}}})
    >>> SchemaEncoder(schema, normalise=False).encode(Table(("age",), (("75", "?"),))).tolist()
    [[0.5, 0.0], [0.0, 1.0]]
    """

    schema: Schema
    normalise: bool = True

    @property
    def used(self) -> tuple[Column, ...]:
        """The columns that become features."""
        return tuple(column for column in self.schema.columns if not isinstance(column, Ignored))

    @property
    def features(self) -> int:
        return sum(_width(column) for column in self.used)

    def encode(self, table: Table) -> Floats:
        """Features (n, D) of every record."""
        used, known = ([c.name for c in columns] for columns in (self.used, self.schema.columns))
        remedy = 'add [columns.{name}] to the schema, with kind = "number", "category" or "ignore"'
        need_columns(table, used, optional=known, remedy=remedy)
        blocks = [_schema_slots(c, table.cells[table.columns.index(c.name)]) for c in self.used]
        out = np.concatenate(blocks, axis=1)
        return unit_norm(out) if self.normalise else out

    def describe(self) -> dict[str, object]:
        """What preprocessing knew, and why it is public."""
        return {
            "format": "table",
            "encoder": "schema",
            "features": self.features,
            "columns": {column.name: _described(column) for column in self.schema.columns},
            "missing": MISSING_RULE,
            "normalise": self.normalise,
            "public": "ranges and categories were declared public by the schema",
        }


def _width(column: Column) -> int:
    """How many features a column of a schema takes."""
    if isinstance(column, Number):
        return 2
    if isinstance(column, Category):
        return len(column.values) + 2
    raise InputError(f"a column that is used must be a number or a category; got {column!r}")


def _described(column: Column) -> dict[str, object]:
    """A column as the schema file says it."""
    if isinstance(column, Number):
        return {"kind": "number", "min": column.min, "max": column.max}
    if isinstance(column, Category):
        return {"kind": "category", "values": list(column.values)}
    return {"kind": "ignore"}


def _schema_slots(column: Column, cells: Sequence[Cell]) -> Floats:
    """The features of one declared column."""
    codes, distinct = distinct_cells(cells)
    if isinstance(column, Number):
        return _range_slots(column, distinct, codes)[codes]
    if isinstance(column, Category):
        return _one_hot_slots(column, distinct)[codes]
    raise InputError(f"a column that is used must be a number or a category; got {column!r}")


def _range_slots(column: Number, distinct: Sequence[Cell], codes: npt.NDArray[np.int64]) -> Floats:
    """(cells, 2): the number mapped from [min, max] to [-1, 1], and the missing indicator."""
    values = [read_cell(cell) for cell in distinct]
    need_finite(column.name, values, codes)
    slots = np.zeros((len(values), 2), dtype=np.float32)
    for i, value in enumerate(values):
        if value is None:
            slots[i, 1] = 1
        elif isinstance(value, float):
            inside = min(max(value, column.min), column.max)
            slots[i, 0] = 2 * ((inside - column.min) / (column.max - column.min)) - 1
        else:
            need(
                False,
                "a column the schema calls a number must hold numbers or missing cells",
                column=column.name,
                row=int(np.argmax(codes == i)) + 1,
                value=shown(value),
                remedy=f'correct the cell, or declare [columns.{column.name}] kind = "category"',
            )
    return slots


def _one_hot_slots(column: Category, distinct: Sequence[Cell]) -> Floats:
    """(cells, values + 2): one-hot over the values, then "other", then the missing indicator."""
    place = {value: k for k, value in enumerate(column.values)}
    slots = np.zeros((len(distinct), len(place) + 2), dtype=np.float32)
    for i, cell in enumerate(distinct):
        text = cell_text(cell)
        if text is None:
            listed = cell.strip() if isinstance(cell, str) else None
            slots[i, place.get(listed or "", len(place) + 1)] = 1
        else:
            slots[i, place.get(text, len(place))] = 1
    return slots
