"""Classes of a target, known before the data is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import need
from dpsrm.data.cells import Cell, cell_text, read_cell, shown

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


def parse_labels(cells: Iterable[Cell], classes: Sequence[str] | None = None) -> npt.NDArray[np.int64]:
    """Turn label cells into 0..K-1.

    Args:
        cells: one label per record.
        classes: the K class names in their order; None understands the pairs in `BINARY`.

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
    _need_known(cells, texts, codes)
    if classes is None:
        used = set(texts)
        need(
            any(used <= set(pair) for pair in BINARY),
            "labels must come from one pair of values",
            labels=sorted(map(str, used)),
            remedy=_REMEDY,
        )
    return np.array([codes[str(text)] for text in texts], dtype=np.int64)


def _need_known(cells: Sequence[Cell], texts: Sequence[str | None], codes: dict[str, int]) -> None:
    """Refuse the first label that is missing or not a class."""
    for row, text in enumerate(texts, 1):
        if text in codes:
            continue
        if text is None:
            need(
                False,
                "every record must have a label",
                row=row,
                label=cells[row - 1],
                remedy="remove the record",
            )
        need(
            False,
            f"a label must be one of {', '.join(codes)}",
            row=row,
            label=shown(cells[row - 1]),
            remedy=_NUMBERS if _many_numbers(texts) else _REMEDY,
        )


def _many_numbers(texts: Sequence[str | None]) -> bool:
    """Whether labels look like measurements: more than ten different values, all numbers."""
    values = {text for text in texts if text is not None}
    return len(values) > _MANY and all(isinstance(read_cell(text), float) for text in values)
