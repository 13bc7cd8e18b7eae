"""Read CSV into cells, inferring nothing from them, and read cells by what is public.

A cell is missing, a number, text, or a label; decided by the cell alone and what is public. A column is a feature, the
target, or says whose a record is; the latter is told by its name alone.
"""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import InputError, need

Cell = str | float | int | None
MISSING = ("", "?", "na", "n/a", "nan", "null", "none")
"""Texts that mean "missing", in any case and with blanks around them."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Table:
    """Cells as the file has them, by column: `cells[j][i]` is column j of record i."""

    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]

    def __len__(self) -> int:
        return len(self.cells[0]) if self.cells else 0

    def split(self, name: str) -> tuple[Table, tuple[Cell, ...]]:
        """The table without one of its columns, and that column's cells."""
        at = self.columns.index(name)
        rest = Table(self.columns[:at] + self.columns[at + 1 :], self.cells[:at] + self.cells[at + 1 :])
        return rest, self.cells[at]


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


_NUMBERS = "to predict a number, add --task regression --target-range LOW,HIGH; otherwise "


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
    remedy = _REMEDY if classes is None else "correct the cell, or add it to --classes (or [target] classes)"
    _need_known(cells, texts, codes, rows=rows, remedy=remedy)
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
    cells: Sequence[Cell],
    texts: Sequence[str | None],
    codes: dict[str, int],
    *,
    rows: Sequence[int] | None,
    remedy: str,
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
            remedy=f"{_NUMBERS}{remedy}" if _many_numbers(texts) else remedy,
        )


def _many_numbers(texts: Sequence[str | None]) -> bool:
    """Whether labels look like measurements: more than ten different values, all numbers."""
    values = {text for text in texts if text is not None}
    return len(values) > _MANY and all(isinstance(read_cell(text), float) for text in values)


def read_csv(raw: bytes) -> Table:
    """Parse UTF-8 delimited text with a header line into text cells.

    The delimiter is the one of comma, semicolon, tab and | that the header line has most of.

    Guarantee: no type, category or missing value is inferred; every cell stays its own text.

    Edge cases: blank lines are skipped; undecodable bytes, a row of another length, duplicate or empty column
    names, and a file without records raise `InputError` with the line.

    >>> read_csv(b"age,job\\n31,nurse\\n,?\\n").cells
    (('31', ''), ('nurse', '?'))
    """
    text = _decode(raw)
    need(bool(text.strip()), "a table must have a header line; the file is empty")
    header_line = re.sub('"[^"]*"', "", text.lstrip().splitlines()[0])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t|", key=header_line.count), strict=True)
    try:
        header = need_names([name.strip() for name in next(row for row in reader if row)])
        rows = [_need_width(row, header, reader.line_num) for row in reader if row]
    except csv.Error as error:
        raise InputError(
            f"the file must be a CSV table; got line={reader.line_num}: {error}; look for a quotation mark that is not "
            "closed, there or above"
        ) from error
    need(bool(rows), "a table must have records below its header", columns=header)
    return Table(header, tuple(zip(*rows, strict=True)))


_COMMA_NUMBER = re.compile(r"[+-]?[0-9]+(,[0-9]+)+")


def need_points(table: Table, columns: Sequence[str]) -> None:
    """Refuse columns of numbers with commas (121,2 or 1,000): each would be taken for a text of its own.

    >>> need_points(Table(("weight",), (("70", "121,2"),)), ["weight"])
    Traceback (most recent call last):
        ...
    dpsrm.core.errors.InputError: numbers are written with a point, 121.2; got column='weight', cell='121,2'; replace \
the commas (sed 's/,/./g' in a file with semicolons); texts such as 1,2 that are no numbers need another sign, or a \
schema
    """
    for name, cells in zip(table.columns, table.cells, strict=True):
        found = next((cell for cell in cells if isinstance(cell, str) and "," in cell), None)
        if found is None or name not in columns:
            continue
        number = all(not isinstance(read_cell(c), str) or _COMMA_NUMBER.fullmatch(str(c).strip()) for c in cells)
        need(
            not number,
            "numbers are written with a point, 121.2",
            column=name,
            cell=shown(found),
            remedy="replace the commas (sed 's/,/./g' in a file with semicolons); texts such as 1,2 that are no "
            "numbers need another sign, or a schema",
        )


_LOOKS = {
    "dates": re.compile(
        r"[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}([ T].*)?|[0-9]{1,2}[-/.][0-9]{1,2}[-/.][0-9]{2,4}( .*)?"
    ),
    "money": re.compile(r"[+-]?[$€£¥] ?[0-9.,]+|[+-]?[0-9.,]+ ?[$€£¥]"),
    "per cent": re.compile(r"[+-]?[0-9.,]+ ?%"),
}


_ENOUGH = 100


def tell_texts(table: Table, columns: Sequence[str]) -> None:
    """Warn of columns that say more than texts can: dates, money, per cent, and texts that nearly all differ."""
    found = {
        name: words
        for name, cells in zip(table.columns, table.cells, strict=True)
        if name in columns and (words := _looks_of(cells))
    }
    if found:
        _log.warning(
            "%s: read as texts, each a category of its own, near ones with nothing in common. Write money and per cent "
            "as plain numbers (1200, 12), declare dates (2024-05-31) in a --schema, leave free text out "
            "(docs/data.md). This was read from the records: for your eyes only",
            ", ".join(f"{name} ({words})" for name, words in found.items()),
        )


def _looks_of(cells: Sequence[Cell]) -> str:
    """What more than half of the different texts of a column look like; empty if like nothing.

    >>> _looks_of(["$1,200", "?", "$80", "7"]), _looks_of(["11.09.2022"]), _looks_of(["nurse", "cook"])
    ('money', 'dates', '')
    """
    texts = [text for cell in dict.fromkeys(cells) if isinstance(text := read_cell(cell), str)]
    for words, pattern in _LOOKS.items():
        if 2 * sum(pattern.fullmatch(text) is not None for text in texts) > len(texts):
            return words
    return "free text" if len(texts) > max(_ENOUGH, len(cells) / 2) else ""


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
    return table.split(str(target))


def _decode(raw: bytes) -> str:
    """UTF-8 text, with or without a byte-order mark; an error names the line."""
    zero = raw.find(b"\0")
    need(
        zero < 0,
        "a table is text, without NUL bytes",
        line=raw[: max(0, zero)].count(b"\n") + 1,
        remedy="convert it, for example with iconv -f UTF-16 -t UTF-8, or with tr -d '\\000'",
    )
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


def split_unit(source: Table, unit: str | None) -> tuple[Table, tuple[Cell, ...] | None]:
    """The table without the column of ids, and that column's cells; as it is where there is no such column.

    >>> split_unit(Table(("who", "a"), (("ann",), ("1",))), "who")
    (Table(columns=('a',), cells=(('1',),)), ('ann',))
    """
    return (source, None) if unit is None or unit not in source.columns else source.split(unit)


_WHO = (
    "patient|person|subject|participant|respondent|individual|people|user|customer|client|member|student|pupil|employee|"
    "worker|player|household|hh|family|account|device|card|owner|author"
)


_WORD = "id|ids|uid|uuid|guid|pid|no|nr|num|number|key|code|ref|identifier"


_IDENTIFIER = re.compile(
    rf"({_WHO})s?|(.*_)?(id|uid|uuid|guid|pid|identifier|ssn|mrn|imsi|imei|iban|email|username)|({_WHO})_?({_WORD})|name"
)


def identifier_names(columns: Iterable[str]) -> list[str]:
    """The columns whose names say that they tell whose a record is; their cells are not looked at.

    >>> identifier_names(["age", "PatientID", "user_id", "person", "paid", "household_size", "input_ids", "idp"])
    ['PatientID', 'user_id', 'person']
    """
    snake = {name: re.sub(r"(?<=[a-z])(?=[A-Z])|[^A-Za-z0-9]+", "_", name.strip()).lower() for name in columns}
    return [name for name, plain in snake.items() if _IDENTIFIER.fullmatch(plain)]


def tell_identifiers(columns: Iterable[str]) -> None:
    """Warn of columns that look as if one person had several records, by their names alone."""
    found = identifier_names(columns)
    if found:
        _log.warning(
            "%s looks like an identifier by its name. If one person (or household, …) has several records, they are "
            "protected one at a time only, and the identifier becomes a feature: give --unit %s, or remove the column "
            "(docs/whose-privacy.md)",
            ", ".join(found),
            found[0],
        )
