"""One cell of a table: missing, a number, or text; decided by the cell alone."""

from __future__ import annotations

from dataclasses import dataclass

Cell = str | float | int | None

MISSING = ("", "?", "na", "n/a", "nan", "null", "none")
"""Texts that mean "missing", in any case and with blanks around them."""


@dataclass(frozen=True)
class Table:
    """Cells as the file has them, by column: `cells[j][i]` is column j of record i."""

    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]

    def __len__(self) -> int:
        return len(self.cells[0]) if self.cells else 0


def read_cell(cell: Cell) -> float | str | None:
    """What one cell says: None when missing, a number, or stripped text.

    Guarantee: a fixed function of this cell; no other record is consulted.

    Edge cases: text that Python reads as NaN is missing; "1_000" is text; infinity is returned as a number,
    for the caller to refuse.

    >>> [read_cell(c) for c in (" 7 ", "1e3", "?", None, "Private", "1_000", 2)]
    [7.0, 1000.0, None, None, 'Private', '1_000', 2.0]
    """
    if cell is None:
        return None
    if isinstance(cell, str):
        text = cell.strip()
        if text.casefold() in MISSING:
            return None
        if "_" in text:
            return text
    else:
        text = str(cell)
    try:
        number = float(text)
    except ValueError:
        return text
    return None if number != number else number


def cell_text(cell: Cell) -> str | None:
    """One spelling for a category: numbers that are equal read the same ("1", "1.0", 1), text as it stands.

    >>> [cell_text(c) for c in ("1.0", 1, "+1", "0.5", " Private", "NA")]
    ['1', '1', '1', '0.5', 'Private', None]
    """
    value = read_cell(cell)
    if not isinstance(value, float):
        return value
    return str(int(value)) if value.is_integer() else repr(value)


def shown(cell: Cell) -> str:
    """A cell for an error message: short even when the cell is not.

    >>> shown("x" * 100)
    'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'
    """
    text = str(cell)
    return text if len(text) <= 40 else text[:37] + "..."
