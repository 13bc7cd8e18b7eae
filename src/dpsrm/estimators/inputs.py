"""From what scikit-learn's users hand over (arrays, CSR matrices, DataFrames) to records, reading nothing undeclared.

Shapes: n records, d columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy.sparse

from dpsrm.core.errors import need
from dpsrm.data.columns import Number
from dpsrm.data.encoders import Encoder
from dpsrm.data.encoding import Floats, HashEncoder
from dpsrm.data.frames import array_names, table_of_array
from dpsrm.data.libsvm import LibsvmEncoder
from dpsrm.data.schema import Schema, read_schema, schema_from
from dpsrm.data.schema_encoding import SchemaEncoder
from dpsrm.data.unlabelled import encode_unlabelled, is_frame
from dpsrm.estimators.leaks import tell_leak

FROM_DATA, BY_RECORD = "data", "record"
KNOTS = 9
"""At how many places a model may bend in a column whose bounds are given."""

_MOST_COLUMNS = 1000
_MOST_NUMBERS = 10**9


def by_record(bounds: Any) -> bool:
    """Whether each record is scaled to norm 1."""
    return isinstance(bounds, str) and bounds == BY_RECORD


def from_data(bounds: Any) -> bool:
    """Whether bounds are read from the records."""
    return isinstance(bounds, str) and bounds == FROM_DATA


def need_memory(n: int, features: int) -> None:
    """Refuse records that do not fit into memory as dense features."""
    need(
        n * features <= _MOST_NUMBERS,
        f"records times features must stay below {_MOST_NUMBERS:.0e}",
        records=n,
        features=features,
        remedy="use fewer features, for instance HashingVectorizer(n_features=4096)",
    )


def choose_encoder(data: Any, *, bounds: Any, schema: Any) -> Encoder:
    """The encoder of an estimator's records.

    A schema is for DataFrames. Otherwise columns of DataFrames and arrays are encoded by fixed knots, whatever their
    scale, unless `bounds` says (low, high), "data" (read from the records, with a warning) or "record" (each record is
    scaled to norm 1). Sparse matrices are always scaled by record.
    """
    if scipy.sparse.issparse(data) or by_record(bounds):
        need(schema is None, "a schema is for DataFrames", schema=schema, remedy="leave it out")
        return LibsvmEncoder(features=int(data.shape[1]), folded=False, normalise=True)
    columns = tuple(map(str, data.columns)) if is_frame(data) else array_names(data.shape[1])
    if schema is not None:
        need(is_frame(data), "a schema is for DataFrames", remedy="give bounds, or a DataFrame")
        return SchemaEncoder(_schema(schema))
    if bounds is None:
        few = len(columns) <= _MOST_COLUMNS
        need(few, "so many columns need bounds", columns=len(columns), remedy='bounds=(low, high), or "record"')
        return HashEncoder(columns)
    low, high = _ends(data, bounds)
    fit = all(end.shape in ((), (1,), (len(columns),)) for end in (low, high))
    need(fit, "bounds are two numbers, or two for each column", columns=len(columns), bounds=bounds)
    ends = zip(columns, np.broadcast_to(low, len(columns)), np.broadcast_to(high, len(columns)), strict=True)
    return SchemaEncoder(Schema(tuple(Number(name, float(a), float(b), KNOTS) for name, a, b in ends)))


def encode(data: Any, encoder: Encoder) -> Floats:
    """Features of a DataFrame by the names of its columns, of an array by their order (scikit-learn warns of that)."""
    if isinstance(encoder, (HashEncoder, SchemaEncoder)) and not is_frame(data):
        dense = scipy.sparse.csr_array(cast(Any, data)).toarray() if scipy.sparse.issparse(data) else data
        return encode_unlabelled(table_of_array(dense, encoder.names), encoder)
    return encode_unlabelled(data, encoder)


def _schema(schema: Schema | Mapping[str, Any] | Path | str) -> Schema:
    """A schema, its TOML file, or what such a file says."""
    if isinstance(schema, Schema):
        return schema
    return schema_from(schema) if isinstance(schema, Mapping) else read_schema(schema)


def _ends(data: Any, bounds: Any) -> tuple[Any, Any]:
    """The least and the largest value of each column, or of all; columns that do not vary get some width."""
    if isinstance(bounds, str):
        need(bounds == FROM_DATA, 'bounds are (low, high), "data" or "record"', bounds=bounds)
        tell_leak("the columns' bounds were read from the records", "give bounds=(low, high) that are public")
        values = np.asarray(data, dtype=np.float64)
        low, high = values.min(axis=0), values.max(axis=0)
        return low, np.where(high > low, high, low + 1)
    good = isinstance(bounds, Sequence | np.ndarray) and len(bounds) == 2
    need(good, 'bounds are (low, high), "data" or "record"', bounds=bounds)
    low, high = (np.asarray(end, dtype=np.float64) for end in bounds)
    finite = bool(np.isfinite(low).all() and np.isfinite(high).all())
    need(finite and bool((low < high).all()), "bounds are finite, the lower ones first", bounds=bounds)
    return low, high
