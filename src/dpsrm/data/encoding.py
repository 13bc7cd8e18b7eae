"""Turn a table's cells into features by a fixed, public function of each record alone.

Shapes: n = records, K = knots, D = features.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import need
from dpsrm.data.pairs import Column, pair_slots
from dpsrm.data.tables import MISSING, Cell, Table, read_cell

Floats = npt.NDArray[np.float32]

_SERIES = [digit * 10.0**power for power in range(-1, 6) for digit in (1, 2, 5)]
_POSITIVE = [*_SERIES, 1e6, 1e9]
_NEGATIVE = [-x for x in (*(x for x in _SERIES if x <= 100), 1e3, 1e6)]  # rarer in tables, so coarser when large
KNOTS = (*sorted(_NEGATIVE), 0.0, *_POSITIVE)
"""Where the hat functions of a number stand; between two of them the weight moves linearly in asinh(x)."""

MISSING_RULE = f"an indicator per column, value 0; missing is null or one of {list(MISSING)} in any case"


def unit_norm(x: Floats) -> Floats:
    """Scale every record to Euclidean norm 1; a record of zeros stays.

    >>> unit_norm(np.array([[3, 4], [0, 0]], dtype=np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    flat = x.reshape(len(x), -1)
    norm = np.sqrt(np.einsum("nd,nd->n", flat, flat, dtype=np.float64))
    scaled = np.empty_like(flat)
    np.divide(flat, np.where(norm > 0, norm, 1.0)[:, None], out=scaled, casting="same_kind")
    return scaled.reshape(x.shape)


@dataclass(frozen=True)
class HashEncoder:
    """Features of a table about which only the header is known.

    A missing cell sets its column's indicator. A number x shares a weight of 1 between the two knots around it,
    linearly in asinh(x): a linear model then fits any function of x that bends at the fixed `KNOTS` only,
    whatever the column's scale. Any other text adds ±1 to the bucket that blake2b("column=text") points to;
    all columns share the buckets. With `pairs` every two columns do so, too, in so many further buckets, where the
    knot nearest to a number stands for it. Then the record is scaled to norm 1.

    Args:
        columns: the feature columns in order.
        buckets: how many hash buckets.
        normalise: whether each record is scaled to norm 1.
        pairs: how many buckets pairs of columns have; 0 leaves them out.

    Guarantee: the features of a record are a function of that record, the columns and constants.

    Edge cases: an infinite number raises `InputError` with column, row (from 1) and value.

    >>> encoder = HashEncoder(("age", "job"), buckets=8)
    >>> x = encoder.encode(Table(("age", "job"), (("31", ""), ("nurse", "?"))))
    >>> x.shape == (2, encoder.features), np.linalg.norm(x, axis=1).round(3).tolist()
    (True, [1.0, 1.0])
    """

    columns: tuple[str, ...]
    buckets: int = 256
    normalise: bool = True
    pairs: int = 0

    def __post_init__(self) -> None:
        need(self.buckets >= 1, "buckets must be at least 1", buckets=self.buckets)
        need(self.pairs >= 0, "pairs must be 0 or more", pairs=self.pairs)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that become features."""
        return self.columns

    @property
    def features(self) -> int:
        return len(self.columns) * (1 + len(KNOTS)) + self.buckets + self.pairs

    def encode(self, table: Table) -> Floats:
        """Features (n, D) of every record."""
        need_columns(table, self.columns, remedy="remove the column")
        out = np.zeros((len(table), self.features), dtype=np.float32)
        width, read = 1 + len(KNOTS), list[Column]()
        hashed = out[:, len(self.columns) * width :]
        for j, name in enumerate(self.columns):
            codes, distinct = distinct_cells(table.cells[table.columns.index(name)])
            values = [read_cell(cell) for cell in distinct]
            need_finite(name, values, codes)
            out[:, j * width : (j + 1) * width] = _number_slots(values)[codes]
            buckets, signs = self._buckets(name, values)
            hashed[np.arange(len(table)), buckets[codes]] += signs[codes]
            read.append((name, codes, [_word(value) for value in values]))
        if self.pairs:
            hashed[:, self.buckets :] = pair_slots(read, self.pairs, bucket)
        return unit_norm(out) if self.normalise else out

    def _buckets(self, name: str, values: Sequence[float | str | None]) -> tuple[npt.NDArray[np.int64], Floats]:
        """Bucket and sign of each text; sign 0 for what is no text."""
        hashes = [bucket(name, v, self.buckets) if isinstance(v, str) else (0, 0) for v in values]
        return np.array([h[0] for h in hashes]), np.array([h[1] for h in hashes], dtype=np.float32)

    def describe(self) -> dict[str, object]:
        """What preprocessing knew, and why it is public."""
        pairs = {"pairs": self.pairs, "pair": "blake2b of both names and words; a number's word is its nearest knot"}
        return {
            "format": "table",
            "encoder": "hash",
            "columns": list(self.columns),
            "features": self.features,
            "buckets": self.buckets,
            "hash": 'blake2b("column=text"), 8 bytes; bucket = h mod buckets, sign = bit 63',
            "numbers": "hat functions at the knots, linear in asinh(x) between them",
            "knots": list(KNOTS),
            **(pairs if self.pairs else {}),
            "missing": MISSING_RULE,
            "normalise": self.normalise,
            "public": "only the header was used; all else is constant, each record is encoded by itself",
        }


def bucket(column: str, text: str, buckets: int) -> tuple[int, int]:
    """The bucket and sign of "column=text": a fixed public hash, the same on every machine.

    >>> bucket("job", "nurse", 256) == bucket("job", "nurse", 256)
    True
    """
    digest = hashlib.blake2b(f"{column}={text}".encode(errors="surrogatepass"), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    return number % buckets, 1 if number >> 63 else -1


def need_columns(table: Table, wanted: Sequence[str], *, optional: Sequence[str] = (), remedy: str) -> None:
    """A table must have the wanted columns, in any order, and no other but the optional ones."""
    for name in wanted:
        need(
            name in table.columns,
            "the file must have every column that becomes a feature",
            missing=name,
            remedy=f"the file has {', '.join(table.columns)}",
        )
    for name in table.columns:
        need(
            name in wanted or name in optional,
            f"the file must have only the columns {', '.join(dict.fromkeys([*wanted, *optional]))} beside its target",
            column=name,
            remedy=remedy.format(name=name),
        )


def distinct_cells(cells: Sequence[Cell]) -> tuple[npt.NDArray[np.int64], list[Cell]]:
    """Codes into the distinct cells, so that each is read once: speed only, the result is the same."""
    seen: dict[Cell, int] = {}
    codes = np.fromiter((seen.setdefault(cell, len(seen)) for cell in cells), np.int64, len(cells))
    return codes, list(seen)


def need_finite(name: str, values: Sequence[float | str | None], codes: npt.NDArray[np.int64]) -> None:
    """Refuse infinities in a column, naming the first row that has one."""
    for code, value in enumerate(values):
        if isinstance(value, float) and math.isinf(value):
            need(
                False,
                "numbers must be finite",
                column=name,
                row=int(np.argmax(codes == code)) + 1,
                value=value,
                remedy="remove the record or leave the cell empty",
            )


def _number_slots(values: Sequence[float | str | None]) -> Floats:
    """(cells, 1+K): the missing indicator, then the hats; zeros for text."""
    slots = np.zeros((len(values), 1 + len(KNOTS)), dtype=np.float32)
    slots[[i for i, value in enumerate(values) if value is None], 0] = 1
    rows = np.array([i for i, value in enumerate(values) if isinstance(value, float)], dtype=np.int64)
    knots = np.arcsinh(np.array(KNOTS))
    x = np.arcsinh(np.array([value for value in values if isinstance(value, float)], dtype=np.float64))
    x = np.clip(x, knots[0], knots[-1])
    left = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
    share = (x - knots[left]) / (knots[left + 1] - knots[left])
    slots[rows, 1 + left] = 1 - share
    slots[rows, 2 + left] = share
    return slots


def _word(value: float | str | None) -> str | None:
    """What stands for a cell in a pair: its text, or the knot nearest to its number in asinh; nothing if missing."""
    if not isinstance(value, float):
        return value
    return f"{KNOTS[int(np.abs(np.arcsinh(KNOTS) - np.arcsinh(value)).argmin())]:g}"
