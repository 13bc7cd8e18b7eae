"""Encode a table by a schema whose ranges and categories the user declared public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import InputError, need
from dpsrm.data.columns import Boolean, Category, Column, Date, Ignored, Number, Ordered, described
from dpsrm.data.encoding import MISSING_RULE, Floats, distinct_cells, need_columns, need_finite, unit_norm
from dpsrm.data.schema import Schema
from dpsrm.data.tables import BINARY, Cell, Table, cell_text, read_cell, shown


@dataclass(frozen=True)
class SchemaEncoder:
    """Features of a table whose ranges and categories the user declared public.

    A number or date is clamped to [min, max] and mapped to [-1, 1], or, with knots, shares a weight of 1 between the
    two knots around it; a category is one-hot over its values and "other"; an ordered one has its place in [-1, 1]
    besides; a boolean is ±1. Each column ends in a missing indicator. Then the record is scaled to norm 1.

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
    def names(self) -> tuple[str, ...]:
        """The names of those columns."""
        return tuple(column.name for column in self.used)

    @property
    def features(self) -> int:
        return sum(_width(column) for column in self.used)

    def encode(self, table: Table) -> Floats:
        """Features (n, D) of every record."""
        used, known = ([c.name for c in columns] for columns in (self.used, self.schema.columns))
        remedy = 'add [columns.{name}] to the schema, with a kind: "number", "category", … or "ignore"'
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
            "columns": {column.name: described(column) for column in self.schema.columns},
            "missing": MISSING_RULE,
            "normalise": self.normalise,
            "public": "ranges and categories were declared public by the schema",
        }


def _width(column: Column) -> int:
    """How many features a column of a schema takes."""
    if isinstance(column, (Number, Date)):
        return (column.knots or 1) + 1
    if isinstance(column, (Category, Ordered)):
        return len(column.values) + 2 + isinstance(column, Ordered)
    if isinstance(column, Boolean):
        return 2
    raise InputError(f"a column that is used must not be ignored; got {column!r}")


def _schema_slots(column: Column, cells: Sequence[Cell]) -> Floats:
    """The features of one declared column."""
    codes, distinct = distinct_cells(cells)
    if isinstance(column, Category):
        return _one_hot_slots(column.values, distinct)[codes]
    if isinstance(column, Ordered):
        return _ordered_slots(column, distinct)[codes]
    if isinstance(column, Ignored):
        raise InputError(f"a column that is used must not be ignored; got {column!r}")
    values = [_number_of(column, cell, codes, at) for at, cell in enumerate(distinct)]
    need_finite(column.name, values, codes)
    scale = Number(column.name, -1.0, 1.0) if isinstance(column, Boolean) else column
    return _range_slots(scale.as_number if isinstance(scale, Date) else scale, values)[codes]


def _number_of(column: Number | Boolean | Date, cell: Cell, codes: npt.NDArray[np.int64], at: int) -> float | None:
    """The cell as a number of its column, or None if it is missing; what is neither is named."""
    value = read_cell(cell)
    if value is None:
        return None
    if isinstance(column, Number) and isinstance(value, float):
        return value
    if isinstance(column, Boolean):
        word = str(cell_text(cell)).casefold()
        if word in _TRUTH:
            return _TRUTH[word]
    try:
        if isinstance(column, Date) and isinstance(value, str):
            return column.days(value)
    except InputError:
        pass
    kind = type(column).__name__.lower()
    written = _WRITTEN[kind] if any(map(str.isdigit, str(value))) else ""
    need(
        False,
        f"a column the schema calls a {kind} must hold {kind}s or missing cells",
        column=column.name,
        row=int(np.argmax(codes == at)) + 1,
        value=shown(value),
        remedy=f'{written}correct the cell, or declare [columns.{column.name}] kind = "category"',
    )
    return None


_WRITTEN = {
    "number": "write numbers plainly (1200.5, not $1,200.50), ",
    "date": "write dates as 2024-05-31, ",
    "boolean": "",
}
"""How cells of each kind are written, where people write them otherwise."""


_TRUTH = {word: 2.0 * code - 1 for pair in BINARY for code, word in enumerate(pair)}
"""Words of a boolean column, as ±1."""


def _range_slots(column: Number, values: Sequence[float | None]) -> Floats:
    """(cells, 2): the number mapped from [min, max] to [-1, 1], and the missing indicator; or (cells, knots + 1)."""
    slots = np.zeros((len(values), (column.knots or 1) + 1), dtype=np.float32)
    for i, value in enumerate(values):
        if value is None:
            slots[i, -1] = 1
            continue
        share = (min(max(value, column.min), column.max) - column.min) / (column.max - column.min)
        if column.knots is None:
            slots[i, 0] = 2 * share - 1
            continue
        place = share * (column.knots - 1)
        left = min(int(place), column.knots - 2)
        slots[i, left], slots[i, left + 1] = 1 - (place - left), place - left
    return slots


def _one_hot_slots(values: Sequence[str], distinct: Sequence[Cell]) -> Floats:
    """(cells, values + 2): one-hot over the values, then "other", then the missing indicator."""
    place = {value: k for k, value in enumerate(values)}
    slots = np.zeros((len(distinct), len(place) + 2), dtype=np.float32)
    for i, cell in enumerate(distinct):
        text = cell_text(cell)
        if text is None:
            listed = cell.strip() if isinstance(cell, str) else None
            slots[i, place.get(listed or "", len(place) + 1)] = 1
        else:
            slots[i, place.get(text, len(place))] = 1
    return slots


def _ordered_slots(column: Ordered, distinct: Sequence[Cell]) -> Floats:
    """(cells, values + 3): the place among the values, from -1 to 1 (0 for others), then as an unordered category."""
    one_hot = _one_hot_slots(column.values, distinct)
    places = np.linspace(-1, 1, len(column.values), dtype=np.float32) if len(column.values) > 1 else np.zeros(1)
    place = one_hot[:, : len(column.values)] @ places.astype(np.float32)
    return np.concatenate([place[:, None], one_hot], axis=1)
