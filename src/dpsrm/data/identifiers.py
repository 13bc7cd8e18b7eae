"""Ids that say whose a record is: taken out of a file, and spelled alike."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.data.arrays import Arrays, read_ids
from dpsrm.data.columns import Ignored
from dpsrm.data.conversion import need_unmasked
from dpsrm.data.libsvm import SparseRows
from dpsrm.data.schema import Schema
from dpsrm.data.tables import Cell, Table, read_cell, shown, split_unit

_RANGES = "34f 115f-1160 17b4-17b5 180b-180f 2065 2800 3164 fe00-fe0f ffa0 fff0-fff8 e0000-e0fff"
_IGNORED = frozenset(
    code
    for low, _, high in (each.partition("-") for each in _RANGES.split())
    for code in range(int(low, 16), int(high or low, 16) + 1)
)
"""Unicode's Default_Ignorable_Code_Point without those of category Cf, and the blank Braille pattern: they look like
nothing."""

_ALIKE = str.maketrans(
    dict.fromkeys("\u02d7\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212", "-")
    | dict.fromkeys("`\u00b4\u02b9\u02bb\u02bc\u02bd\u2018\u2019\u201b\u2032\u2035", "'")
)
"""Dashes and apostrophes that people type, and programs put, in place of - and '."""

Array = npt.NDArray[Any]
Source = Table | SparseRows | Arrays


def split_ids(source: Source, unit: str, *, path: Path, schema: Schema | None) -> tuple[Source, Any]:
    """The content of a file without its ids, and the ids: a column of a table, or a further array of an .npz file."""
    if isinstance(source, Arrays):
        return source, read_ids(path, unit)
    if not isinstance(source, Table):
        need(False, "LIBSVM text has no ids", unit=unit, remedy="use a table or an .npz file")
        raise AssertionError
    known = f"the columns are {', '.join(source.columns)}"
    need(unit in source.columns, "the unit must be a column of the file", unit=unit, remedy=known)
    used = [] if schema is None else [c.name for c in schema.columns if not isinstance(c, Ignored)]
    need(unit not in used, "the unit must not be a feature as well", unit=unit, remedy="take it out of the schema")
    return split_unit(source, unit)


def distinct_ids(ids: Any) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The different ids as texts, as they first appear, and which of them each row has."""
    need_unmasked(ids, "ids")
    kind = object if isinstance(ids, (list, tuple)) else None  # one type for a list would merge long numbers as floats
    values = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids, dtype=kind)
    need(values.ndim == 1, "ids must be one-dimensional, one for each record", shape=values.shape)
    need(values.dtype.kind in "iufUOb", "ids must be numbers or texts", dtype=str(values.dtype))
    if values.dtype.kind in "iufbU":
        distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    else:
        distinct, first, inverse = _objects(values.tolist())
    texts = [_text(value, row) for value, row in zip(distinct.tolist(), first.tolist(), strict=True)]
    seen: dict[str, int] = {}
    order = np.argsort(first, kind="stable")
    codes = np.empty(len(texts), dtype=np.int64)
    for at in order.tolist():
        codes[at] = seen.setdefault(texts[at], len(seen))
    return list(seen), codes[inverse.reshape(-1)]


def _objects(values: Sequence[Any]) -> tuple[Array, Array, Array]:
    """`np.unique` of values that cannot be sorted; NaN and None are values, too."""
    seen: dict[Any, int] = {}
    first: list[int] = []
    inverse = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        value = value.item() if isinstance(value, np.generic) else value
        kind = value if isinstance(value, (str, int, float)) and value == value else None
        if kind is None:
            _text(value if isinstance(value, float) else None, row)
        at = inverse[row] = seen.setdefault(kind, len(seen))
        if at == len(first):
            first.append(row)
    return np.array(list(seen), dtype=object), np.array(first, dtype=np.int64), inverse


def _text(value: Cell, row: int) -> str:
    """One spelling of an id: whole numbers by their digits, however long; `InputError` if it is missing."""
    try:
        text = _known(value)
    except ValueError:  # more digits than Python turns into a number
        text = None
    need(
        text is not None,
        "every record must have an id of the unit whose privacy is protected; rows are counted from 1",
        row=row + 1,
        id=shown(value),
        remedy="find out whose record it is, or remove it",
    )
    return str(text)


def _known(value: Cell) -> str | None:
    """The id's text, None if it is missing."""
    value = _spelled(value) if isinstance(value, str) else value
    if isinstance(value, str) and value.removeprefix("-" if value[:1] == "-" else "+").isdecimal():
        return str(int(value))
    if isinstance(value, int):
        return str(int(value))
    read = read_cell(value)
    if not isinstance(read, float):
        return read
    return str(int(read)) if read.is_integer() else repr(read)


def _spelled(text: str) -> str:
    """One spelling of what looks the same: NFKC, without what shows nothing, one dash, one apostrophe, and one space
    wherever there is any.

    Upper and lower case stay two: ids that are codes may differ by that alone.

    >>> [_spelled(text) for text in ("Jose\\u0301", "Jose\\u200b\\u0301", "\\uff2a\\ufeffos\\u00e9", "jos\\u00e9")]
    ['José', 'José', 'José', 'josé']
    """
    text = text.translate(_ALIKE)
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    seen = "".join(c for c in text if c.isspace() or not _shows_nothing(c))
    return " ".join(unicodedata.normalize("NFKC", seen).translate(_ALIKE).split())


def _shows_nothing(character: str) -> bool:
    """Whether a character is one of control or format, or one that Unicode tells programs not to show."""
    return unicodedata.category(character) in ("Cc", "Cf") or ord(character) in _IGNORED
