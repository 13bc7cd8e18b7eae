"""One cell of a table: missing, a number, text, or a label; decided by the cell alone and what is public."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import need

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


BINARY = (("0", "1"), ("-1", "1"), ("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t"))
"""Pairs (negative, positive) understood without being told; case does not matter, "1.0" and "+1" are "1"."""

BINARY_CLASSES = ("0", "1")
_REMEDY = "name the classes with --classes A,B, or [target] classes in the schema"
_NUMBERS = f"to predict a number, add --task regression --target-range LOW,HIGH; otherwise {_REMEDY}"
_MANY = 10


def need_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """Class names in one spelling: at least two, none missing, none twice.

    >>> need_classes(["<=50K", ">50K"])
    ('<=50K', '>50K')
    """
    names = tuple(cell_text(name) for name in classes)
    need(len(names) >= 2, "classes must name at least two values", classes=tuple(classes))
    need(None not in names, "a class must not be a text that means missing", classes=tuple(classes))
    need(len(set(names)) == len(names), "classes must differ", classes=tuple(classes))
    return tuple(str(name) for name in names)


def parse_labels(
    cells: Iterable[Cell], classes: Sequence[str] | None = None, *, rows: Sequence[int] | None = None
) -> npt.NDArray[np.int64]:
    """Turn label cells into 0..K-1.

    Args:
        cells: one label per record.
        classes: the K class names in their order; None understands the pairs in `BINARY`.
        rows: where the cells stand, from 1, if that is not 1, 2, …

    Guarantee: the code of a label depends on that label and the public list only.

    Edge cases: a missing or unknown label raises `InputError` with its row (counted from 1); so do labels
    mixed from several binary pairs (-1, 0 and 1), since merging classes silently would be worse.

    >>> parse_labels(["-1", "+1", "1.0"]).tolist(), parse_labels(["b", "a"], ["a", "b"]).tolist()
    ([0, 1, 1], [1, 0])
    """
    cells = list(cells)
    if classes is None:
        codes = {word: code for pair in BINARY for code, word in enumerate(pair)}
        texts = [text if text is None else text.casefold() for text in map(cell_text, cells)]
    else:
        codes = {word: code for code, word in enumerate(need_classes(classes))}
        texts = [cell_text(cell) for cell in cells]
    _need_known(cells, texts, codes, rows=rows)
    if classes is None:
        used = set(texts)
        need(
            any(used <= set(pair) for pair in BINARY),
            "labels must come from one pair of values",
            labels=sorted(map(str, used)),
            remedy=_REMEDY,
        )
    return np.array([codes[str(text)] for text in texts], dtype=np.int64)


def _need_known(
    cells: Sequence[Cell], texts: Sequence[str | None], codes: dict[str, int], *, rows: Sequence[int] | None = None
) -> None:
    """Refuse the first label that is missing or not a class."""
    for cell, row, text in zip(cells, rows or range(1, len(cells) + 1), texts, strict=True):
        if text in codes:
            continue
        if text is None:
            need(
                False,
                "every record must have a label",
                row=row,
                label=cell,
                remedy="remove the record",
            )
        need(
            False,
            f"a label must be one of {', '.join(codes)}",
            row=row,
            label=shown(cell),
            remedy=_NUMBERS if _many_numbers(texts) else _REMEDY,
        )


def _many_numbers(texts: Sequence[str | None]) -> bool:
    """Whether labels look like measurements: more than ten different values, all numbers."""
    values = {text for text in texts if text is not None}
    return len(values) > _MANY and all(isinstance(read_cell(text), float) for text in values)
