"""The public tables on which the defaults were fitted: bundled with scikit-learn and statsmodels, a9a and ijcnn1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpsrm.core.errors import need_extra
from dpsrm.data import Records, SparseRecords, load, load_like, load_rand_health
from dpsrm.data.encoding import HashEncoder, unit_norm
from dpsrm.data.public import public_files
from dpsrm.data.tables import Table
from dpsrm.experiments.logistic import FEATURES


@dataclass(frozen=True, eq=False)
class Split:
    """Records to train on and to measure on; every fifth is held out where there is no test file."""

    name: str
    train: SparseRecords
    test: Records
    classes: int

    @property
    def features(self) -> int:
        """How many features a record has."""
        return int(self.test.inputs.shape[1])


def _split(name: str, inputs: Any, targets: Any) -> Split:
    """A split of arrays."""
    x, y = torch.from_numpy(np.array(inputs, dtype=np.float32)), torch.from_numpy(np.array(targets, dtype=np.int64))
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
    held_out = order % 5 == 4
    train = SparseRecords.of(Records(x[~held_out], y[~held_out]))
    return Split(name, train, Records(x[held_out], y[held_out]), int(y.max()) + 1)


def _hashed(name: str, frame: Any, targets: Any) -> Split:
    """A split of a data frame, encoded as the command line encodes a table without a schema."""
    columns = tuple(str(column) for column in frame.columns)
    table = Table(columns, tuple(tuple(frame[column].astype(float).tolist()) for column in frame.columns))
    return _split(name, HashEncoder(columns).encode(table), targets)


def _libsvm(name: str, folder: Path | None, *, normalise: bool) -> Split:
    """a9a or ijcnn1, each record scaled to norm 1 or raw."""
    train_path, test_path = public_files(name, Path("data") if folder is None else folder)
    train = load(train_path, features=FEATURES[name], normalise=normalise)
    test = load_like(test_path, train).records
    return Split(name if normalise else f"{name}-raw", SparseRecords.of(train.records), test, 2)


def _rand(_folder: Path | None) -> Split:
    """The demo's data by its schema."""
    train, test, _ = load_rand_health()
    return Split("rand", SparseRecords.of(train.records), test.records, 2)


def _visits(_folder: Path | None) -> Split:
    """The same people without a schema; no, one to three, or more visits."""
    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    return _hashed("visits", frame.drop(columns="mdvis"), np.digitize(frame["mdvis"].to_numpy(), [1, 4]))


def _affairs(_folder: Path | None) -> Split:
    """Fair's survey of 1974."""
    from statsmodels.datasets import fair

    frame = fair.load_pandas().data
    return _hashed("affairs", frame.drop(columns="affairs"), frame["affairs"].to_numpy() > 0)


def _cancer(_folder: Path | None) -> Split:
    """Wisconsin breast cancer."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer(as_frame=True)
    return _hashed("cancer", found.data, found.target.to_numpy())


def _digits(_folder: Path | None) -> Split:
    """Digits of 8 × 8 pixels, each scaled to norm 1."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return _split("digits", unit_norm(found.data.astype(np.float32)), found.target)


TABLES: dict[str, Callable[[Path | None], Split]] = {
    "rand": _rand,
    "visits": _visits,
    "affairs": _affairs,
    "cancer": _cancer,
    "digits": _digits,
    "a9a": partial(_libsvm, "a9a", normalise=True),
    "ijcnn1": partial(_libsvm, "ijcnn1", normalise=True),
    "a9a-raw": partial(_libsvm, "a9a", normalise=False),
    "ijcnn1-raw": partial(_libsvm, "ijcnn1", normalise=False),
}


def load_split(name: str, folder: Path | None) -> Split:
    """The table called `name`; `folder` holds a9a and ijcnn1."""
    need_extra("statsmodels", extra="demo")
    need_extra("sklearn", extra="sklearn")
    return TABLES[name](folder)
