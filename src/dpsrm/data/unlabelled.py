"""Records without labels, to predict: a file, a table or arrays, encoded as the training records were."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse
from torch import Tensor

from dpsrm.core.errors import InputError, need
from dpsrm.data.arrays import Arrays, need_numbers
from dpsrm.data.conversion import need_unmasked
from dpsrm.data.encoders import Encoder, Source, encode_source, need_numbers_read
from dpsrm.data.encoding import Floats
from dpsrm.data.frames import table_of_frame
from dpsrm.data.libsvm import LibsvmEncoder, SparseRows
from dpsrm.data.load import read_source
from dpsrm.data.tables import Cell, Table


def encode_unlabelled(data: object, encoder: Encoder, *, target: str | None = None, unit: str | None = None) -> Floats:
    """Features (n, …) of records whose labels are unknown, or not looked at.

    Args:
        data: a file (as `load` takes it); a table as a pandas DataFrame or a dictionary of columns; an array or
            tensor; a SciPy sparse matrix.
        encoder: the one made for the training records.
        target, unit: the columns of labels and of ids, left out if the table has them.

    Guarantee: features are the same to the bit as those `load` makes of the same records with their labels.

    Edge cases: a missing or unknown column, another kind of data than the encoder's, and no record raise `InputError`.

    >>> from dpsrm.data.encoding import HashEncoder
    >>> encode_unlabelled({"age": [31, None]}, HashEncoder(("age",), buckets=8), target="ill").shape
    (2, 45)
    """
    source = _source(data, encoder)
    for name in (target, unit):
        if isinstance(source, Table) and name in source.columns:
            source = source.split(str(name))[0]
    need_numbers_read(source, encoder)
    return encode_source(source, encoder)


def _source(data: object, encoder: Encoder) -> Source:
    """What was given, as a file's content would be."""
    if isinstance(data, (str, Path)):
        return read_source(Path(data), labelled=False)
    if isinstance(data, Table):
        return data
    if is_frame(data):
        return table_of_frame(data)
    if isinstance(data, Mapping):
        return _table(data)
    if isinstance(encoder, LibsvmEncoder):
        return _sparse_rows(data)
    numbers = _numbers(data)
    return Arrays(numbers, (None,) * len(numbers))


def is_frame(data: object) -> TypeGuard[Any]:
    """Whether this is a pandas DataFrame, without importing pandas for those who have none."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _table(columns: Mapping[Any, Any]) -> Table:
    """A dictionary of columns, each a list of cells."""
    cells = tuple(_column(str(name), values) for name, values in columns.items())
    lengths = {str(name): len(column) for name, column in zip(columns, cells, strict=True)}
    need(len(set(lengths.values())) == 1, "columns must have the same length", lengths=lengths)
    need(len(cells[0]) > 0, "a table must have records", columns=tuple(lengths))
    return Table(tuple(lengths), cells)


def _column(name: str, values: Any) -> tuple[Cell, ...]:
    """One column's cells, NumPy's numbers as Python's."""
    listed = values.tolist() if isinstance(values, (np.ndarray, Tensor)) else values
    good = isinstance(listed, (list, tuple)) and all(c is None or isinstance(c, (str, int, float)) for c in listed)
    need(good, "a column must be a list of numbers, texts and None", column=name, type=type(values).__name__)
    return tuple(float(cell) if isinstance(cell, bool) else cell for cell in listed)


def _numbers(data: object) -> npt.NDArray[np.float64]:
    """An array, tensor or sparse matrix as numbers; a row per record."""
    if scipy.sparse.issparse(data):
        data = scipy.sparse.csr_array(cast(Any, data)).toarray()
    known = isinstance(data, (np.ndarray, Tensor))
    need(
        known,
        "records must be a path, a DataFrame, a dictionary of columns, an array, a tensor or a sparse matrix",
        type=type(data).__name__,
    )
    need_unmasked(data, "records")
    values = data.detach().cpu().numpy() if isinstance(data, Tensor) else np.asarray(data)
    need_numbers(values)
    return values.astype(np.float64)


def _sparse_rows(data: object) -> SparseRows:
    """Columns 0, 1, … of an array or sparse matrix as the indices 1, 2, … of LIBSVM text."""
    given = cast(Any, data) if scipy.sparse.issparse(data) else _numbers(data)
    matrix = scipy.sparse.csr_array(given).astype(np.float64)
    matrix.sum_duplicates()
    n = matrix.shape[0]
    need(n > 0, "records must hold at least one", shape=matrix.shape)
    if not np.isfinite(matrix.data).all():
        raise InputError("features must be finite; got NaN or infinity; remove the record or leave the feature out")
    row = np.repeat(np.arange(n), np.diff(matrix.indptr))
    return SparseRows(("",) * n, np.arange(1, n + 1), row, matrix.indices.astype(np.int64) + 1, matrix.data)
