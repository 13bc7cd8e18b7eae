"""LIBSVM text: one record per line, `label index:value index:value ...`, indices from 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import InputError, need
from dpsrm.data.encoding import unit_norm

FOLD = 1024
"""Features when the user does not say how many: a constant, since the largest index is private."""

_LARGEST_INDEX = 2**31
_NOT_LIBSVM = "write lines such as +1 3:0.5 7:1, or name a table .csv, .tsv or .parquet and arrays .npz"


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Labels beside (row, index, value) triples, as the file has them; `lines[row]` is where a row stands."""

    labels: tuple[str, ...]
    lines: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LibsvmEncoder:
    """Dense records of a number of features known beforehand.

    With `folded` index i becomes feature (i-1) mod `features`, values that meet are added, so that up to
    `features` features nothing is lost; without, a larger index is an error.

    >>> encoder = LibsvmEncoder(features=3)
    >>> encoder.encode(read_libsvm(b"+1 1:0.5 3:2\\n")).tolist()
    [[0.5, 0.0, 2.0]]
    """

    features: int = FOLD
    folded: bool = False
    normalise: bool = False

    def __post_init__(self) -> None:
        need(1 <= self.features <= 10**6, "features must lie in 1..1000000", features=self.features)

    def encode(self, rows: SparseRows) -> npt.NDArray[np.float32]:
        """Records as a dense array (n, features)."""
        if not self.folded:
            beyond, rule = np.flatnonzero(rows.index > self.features), "an index must not exceed the number of features"
            _need_none(rows, beyond, rule, features=self.features, remedy="give a larger --features")
        dense = np.zeros((len(rows.labels), self.features), dtype=np.float32)
        column = (rows.index - 1) % self.features
        with np.errstate(over="ignore"):
            np.add.at(dense, (rows.row, column), rows.value.astype(np.float32))
        infinite = np.flatnonzero(~np.isfinite(dense[rows.row, column]))
        _need_none(rows, infinite, "a value must fit float32", remedy="rescale the feature")
        return unit_norm(dense) if self.normalise else dense

    def describe(self) -> dict[str, object]:
        """What preprocessing knew, and why it is public."""
        why = (
            f"the constant {self.features}: index i is feature (i-1) mod {self.features}, whatever indices occur"
            if self.folded
            else "the number of features was given by the user"
        )
        return {
            "format": "libsvm",
            "features": self.features,
            "folded": self.folded,
            "normalise": self.normalise,
            "public": why,
        }


def read_libsvm(raw: bytes, *, labelled: bool = True) -> SparseRows:
    """Parse LIBSVM text. Not `labelled`, a line may begin with its first feature: its label is then empty.

    Edge cases: blank lines and comments from # on are skipped; `qid:` fields, an index below 1 or twice in a
    record, a value that is not a finite number, and a file without records raise `InputError` with the line.

    >>> read_libsvm(b"-1 2:1\\n+1 1:3 # a comment\\n").labels
    ('-1', '+1')
    """
    labels: list[str] = []
    lines: list[int] = []
    tokens: list[bytes] = []
    lengths: list[int] = []
    for number, line in enumerate(raw.split(b"\n"), 1):
        label, *pairs = line.partition(b"#")[0].split() or [b""]
        if not label:
            continue
        if not labelled and b":" in label:
            label, pairs = b"", [label, *pairs]
        labels.append(_label(label, number))
        lines.append(number)
        lengths.append(len(pairs))
        tokens += pairs
    need(bool(labels), "a LIBSVM file must have records; the file is empty")
    at = np.repeat(np.arange(len(labels)), lengths)
    index, value = _pairs(tokens, np.repeat(np.array(lines), lengths))
    rows = SparseRows(tuple(labels), np.array(lines), at, index, value)
    _need_once(rows)
    return rows


def _label(token: bytes, line: int) -> str:
    """A label: text without a colon."""
    try:
        text = token.decode("utf-8")
    except UnicodeDecodeError:
        text = ":"
    if ":" in text:
        raise InputError(f"a LIBSVM line must begin with a label; got line={line}, label={token[:40]!r}; {_NOT_LIBSVM}")
    return text


def _pairs(tokens: list[bytes], lines: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Indices and values of `index:value` tokens, each checked."""
    index = np.empty(len(tokens), dtype=np.int64)
    value = np.empty(len(tokens))
    for k, token in enumerate(tokens):
        left, colon, right = token.partition(b":")
        try:
            i, x = int(left), float(right)
        except ValueError:
            i, x = 0, math.nan
        if not (colon and 1 <= i < _LARGEST_INDEX and math.isfinite(x)) or b"_" in token:
            raise InputError(
                "a feature must be index:value with an index from 1 and a finite number; "
                f"got line={int(lines[k])}, feature={token[:40].decode('utf-8', 'replace')!r}; "
                f"correct the value; {_NOT_LIBSVM}"
            )
        index[k], value[k] = i, x
    return index, value


def _need_once(rows: SparseRows) -> None:
    """Refuse an index that a record has twice."""
    key = rows.row * _LARGEST_INDEX + rows.index
    order = np.argsort(key, kind="stable")
    again = order[1:][np.diff(key[order]) == 0]
    _need_none(rows, np.sort(again), "a record must have each index once")


def _need_none(rows: SparseRows, wrong: npt.NDArray[np.int64], rule: str, *, remedy: str = "", **got: object) -> None:
    """Refuse the first of the triples that break a rule, by its line and index."""
    if wrong.size:
        line, index = rows.lines[rows.row[wrong[0]]], rows.index[wrong[0]]
        need(False, rule, line=int(line), index=int(index), **got, remedy=remedy)
